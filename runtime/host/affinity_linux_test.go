package host

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// workersOnly is an environment variable. A process of the test binary that has it prints the workers of its
// device.
const workersOnly = "PWC_TEST_WORKERS_ONLY"

// TestPrintWorkers prints the workers of a device that is opened without options, if workersOnly is set.
func TestPrintWorkers(t *testing.T) {
	if os.Getenv(workersOnly) != "" {
		fmt.Printf("workers=%d\n", openDevice(t, 0).Info().Properties[WorkersProperty])
	}
}

// workersOf returns the workers of a device that a process opens. The command runs the test binary.
func workersOf(t *testing.T, command ...string) int {
	t.Helper()
	cmd := exec.Command(command[0], append(command[1:], "-test.run=^TestPrintWorkers$")...)
	cmd.Env = append(os.Environ(), workersOnly+"=1", "GOMAXPROCS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
		return 0
	}
	_, after, _ := strings.Cut(string(out), "workers=")
	line, _, _ := strings.Cut(after, "\n")
	n, err := strconv.Atoi(line)
	if err != nil {
		t.Errorf("%q: %v", out, err)
	}
	return n
}

// onThread runs f on a thread that no goroutine uses afterwards, as a process inherits the affinity of the
// thread that starts it.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		f()
	}()
	<-done
}

// TestWorkersFollowAffinity: a device has a worker for each processor that the process may run on.
func TestWorkersFollowAffinity(t *testing.T) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	onThread(func() {
		var some unix.CPUSet
		for cpu := range len(all) * 64 {
			if !all.IsSet(cpu) {
				continue
			}
			some.Set(cpu)
			if err := unix.SchedSetaffinity(0, &some); err != nil {
				t.Error(err)
				return
			}
			if got := workersOf(t, os.Args[0]); got != some.Count() {
				t.Errorf("%d workers on %d processors, want as many", got, some.Count())
			}
			if some.Count() == 3 {
				return
			}
		}
	})
}

// TestWorkersFollowQuota: a device has no more workers than the cgroup's quota of processor time, rounded
// up and at least 2, as Go's GOMAXPROCS.
func TestWorkersFollowQuota(t *testing.T) {
	if runtime.NumCPU() < 3 {
		t.Skip("a quota leaves at least two workers, and there are no more processors")
	}
	root := "/sys/fs/cgroup/cpu" // version 1
	unified := false
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		root, unified = "/sys/fs/cgroup", true
	}
	dir, err := os.MkdirTemp(root, "pwc-test-")
	if err != nil {
		t.Skipf("no cgroup can be made here: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	files := map[string]string{"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "15000"}
	if unified {
		files = map[string]string{"cpu.max": "15000 10000"}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0); err != nil {
			t.Skipf("no quota can be set here: %v", err)
		}
	}
	got := workersOf(t, "sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(dir, "cgroup.procs"), os.Args[0])
	if got != 2 {
		t.Errorf("%d workers with a quota of 1.5 processors, want 2", got)
	}
}
