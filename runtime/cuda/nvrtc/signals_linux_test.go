package nvrtc_test

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"testing"

	"pwc/runtime/cuda/nvrtc"
)

// TestSignalsAfterCompile: the library's front end replaces signal handlers during a compilation. After
// it, the program's handlers receive SIGINT and SIGTERM that are sent to a thread which runs a goroutine.
func TestSignalsAfterCompile(t *testing.T) {
	l := open(t)
	arrived := make(chan os.Signal, 2)
	signals := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}
	signal.Notify(arrived, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(arrived)
	if _, err := l.Compile(axpy, nvrtc.CompileOptions{Arch: "sm_80"}); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, sig := range signals {
		if _, _, err := syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(sig)); err != 0 {
			t.Fatal(err)
		}
		if got := <-arrived; got != sig {
			t.Errorf("%v arrived, %v was sent", got, sig)
		}
	}
}
