package host

import (
	"errors"
	"math"
	"testing"

	"pwc/runtime/device"
)

// TestAvailable compares available with numbers that were found by hand: the least of the limits of the
// machine, of cgroups and of the process.
func TestAvailable(t *testing.T) {
	const gib = 1 << 30
	machineFiles := map[string]string{"/proc/meminfo": "MemTotal:  16777216 kB\nMemFree: 1 kB\nMemAvailable:  8388608 kB\nSwapFree:  1048576 kB\n"} // 8 GiB and 1
	with := func(more map[string]string) map[string]string {
		out := map[string]string{}
		for _, m := range []map[string]string{machineFiles, more} {
			for k, v := range m {
				out[k] = v
			}
		}
		return out
	}
	status := "Name:\tpwc\nVmSize:\t 1048576 kB\nVmData:\t  524288 kB\n" // 1 GiB and a half
	for name, c := range map[string]struct {
		files    map[string]string
		as, data uint64
		want     int64 // -1: not known
	}{
		"nothing known":     {map[string]string{}, noLimit, noLimit, -1},
		"machine":           {machineFiles, noLimit, noLimit, 9 * gib},
		"address space":     {with(map[string]string{"/proc/self/status": status}), 5 * gib, noLimit, 4*gib - runtimeBytes},
		"data":              {with(map[string]string{"/proc/self/status": status}), noLimit, 5 * gib, 4*gib + gib/2 - runtimeBytes},
		"none left":         {with(map[string]string{"/proc/self/status": status}), gib / 2, noLimit, 0},
		"cgroup v2":         {with(map[string]string{"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "3221225472\n", "/sys/fs/cgroup/a/b/memory.current": "1073741824\n", "/sys/fs/cgroup/a/b/memory.stat": "anon 5\ninactive_file 268435456\nactive_file 268435456\n"}), noLimit, noLimit, 2*gib + gib/2},
		"cgroup v2 above":   {with(map[string]string{"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "max\n", "/sys/fs/cgroup/a/memory.max": "2147483648\n", "/sys/fs/cgroup/a/memory.current": "0\n"}), noLimit, noLimit, 2 * gib},
		"container":         {with(map[string]string{"/proc/self/cgroup": "0::/machine/path\n", "/sys/fs/cgroup/memory.max": "1073741824\n", "/sys/fs/cgroup/memory.current": "0\n"}), noLimit, noLimit, gib},
		"cgroup v1":         {with(map[string]string{"/proc/self/cgroup": "5:cpu,memory:/x\n0::/\n", "/sys/fs/cgroup/memory/x/memory.limit_in_bytes": "3221225472\n", "/sys/fs/cgroup/memory/x/memory.usage_in_bytes": "2147483648\n", "/sys/fs/cgroup/memory/x/memory.stat": "cache 1\ntotal_inactive_file 536870912\ntotal_active_file 0\n"}), noLimit, noLimit, gib + gib/2},
		"cgroup v1, none":   {with(map[string]string{"/proc/self/cgroup": "4:memory:/\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}), noLimit, noLimit, 9 * gib},
		"cgroup is full":    {with(map[string]string{"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "1073741824\n", "/sys/fs/cgroup/memory.current": "2073741824\n"}), noLimit, noLimit, 0},
		"more than machine": {with(map[string]string{"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "107374182400\n", "/sys/fs/cgroup/memory.current": "0\n"}), noLimit, noLimit, 9 * gib},
		"nonsense":          {map[string]string{"/proc/meminfo": "MemAvailable: x kB", "/proc/self/cgroup": "::\n:\n0::\n7:memory\n"}, noLimit, noLimit, -1},
	} {
		m := machine{as: c.as, data: c.data, file: func(f string) (string, bool) { s, ok := c.files[f]; return s, ok }}
		got, known := m.available()
		if known != (c.want >= 0) || known && got != c.want {
			t.Errorf("%s: %d, %v; want %d", name, got, known, c.want)
		}
	}
}

// TestDeviceKnowsItsLimit: without Options.MemoryBytes a device has a limit if Available knows one, and
// memory of AllocHost counts.
func TestDeviceKnowsItsLimit(t *testing.T) {
	d := Open(Options{Workers: 1})
	defer d.Close()
	n, known := Available()
	if limit := d.Info().MemoryBytes; known != (limit > 0) {
		t.Fatalf("limit %d where %d bytes are available (known: %v)", limit, n, known)
	}
	u := Open(Options{Workers: 1, MemoryBytes: Unlimited})
	if free, err := u.FreeBytes(); free != math.MaxInt64 || err != nil || u.Info().MemoryBytes != 0 || u.Close() != nil {
		t.Errorf("Unlimited: %+v, %d bytes free, %v, want MemoryBytes 0 and no limit", u.Info(), free, err)
	}
	small := Open(Options{Workers: 1, MemoryBytes: 1000})
	defer small.Close()
	h, err := small.AllocHost(600)
	if err != nil {
		t.Fatal(err)
	}
	var full *device.MemoryError
	if _, err := small.Alloc(401); !errors.As(err, &full) || *full != (device.MemoryError{Asked: 401, Reserved: 600, Active: 600, Limit: 1000}) {
		t.Errorf("401 bytes after 600 of 1000: %v, want a MemoryError", err)
	}
	if free, err := small.FreeBytes(); free != 400 || err != nil {
		t.Errorf("%d bytes free, %v, want 400", free, err)
	}
	if err := h.Free(); err != nil {
		t.Fatal(err)
	}
	if free, _ := small.FreeBytes(); free != 1000 {
		t.Errorf("%d bytes are free after Free, want 1000", free)
	}
	if m, err := small.Alloc(1000); err != nil || m.Free() != nil {
		t.Errorf("alloc and free of all 1000 bytes: %v", err)
	}
}
