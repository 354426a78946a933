package host

import (
	"math"
	"path"
	"strconv"
	"strings"
)

// Available returns how many bytes the process can still take before an allocation fails or
// the system ends a process. It is the least of
//
//   - the memory of the machine: on Linux MemAvailable plus SwapFree of /proc/meminfo, on macOS
//     all memory (hw.memsize), since macOS compresses and swaps without a fixed bound;
//   - the free memory of the process's memory cgroups (v1 or v2) and of their parents; file
//     pages that the kernel can drop count as free;
//   - the free address space and data of RLIMIT_AS and RLIMIT_DATA, less 64 MiB for the Go
//     runtime (Linux).
//
// known is false if the platform has none of these numbers.
func Available() (bytes int64, known bool) { return available() }

// machine has the sources of the limits: the files of /proc and /sys, and resource limits.
type machine struct {
	file func(name string) (string, bool) // contents; false: there is no such file
	as   uint64                           // RLIMIT_AS, bytes; noLimit: none
	data uint64                           // RLIMIT_DATA
}

const noLimit = math.MaxUint64

// runtimeBytes is the unit in which the Go runtime reserves address space: a heap arena on 64-bit
// Linux (runtime.heapArenaBytes).
const runtimeBytes = 64 << 20

// available is [Available] on Linux.
func (m *machine) available() (bytes int64, known bool) {
	least := int64(math.MaxInt64)
	limit := func(n int64) { least = min(least, max(n, 0)) }
	if text, ok := m.file("/proc/meminfo"); ok {
		if n, ok := field(text, "MemAvailable:"); ok {
			swap, _ := field(text, "SwapFree:")
			limit((n + swap) << 10)
		}
	}
	if text, ok := m.file("/proc/self/status"); ok {
		if n, ok := field(text, "VmSize:"); ok && m.as < math.MaxInt64 {
			limit(int64(m.as) - n<<10 - runtimeBytes)
		}
		if n, ok := field(text, "VmData:"); ok && m.data < math.MaxInt64 {
			limit(int64(m.data) - n<<10 - runtimeBytes)
		}
	}
	groups, _ := m.file("/proc/self/cgroup")
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) < 3:
		case parts[0] == "0" && parts[1] == "":
			m.cgroup("/sys/fs/cgroup", parts[2], "memory.max", "memory.current", "", limit)
		case strings.Contains(","+parts[1]+",", ",memory,"):
			m.cgroup("/sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes", "memory.usage_in_bytes", "total_", limit)
		}
	}
	return least, least < math.MaxInt64
}

// cgroup calls limit with the free memory of a cgroup and of each of its parents. In a container
// name may be the path on the host, which does not exist in the container: then the root is the
// container's cgroup.
func (m *machine) cgroup(root, name, most, used, prefix string, limit func(int64)) {
	for name = path.Clean("/" + name); ; name = path.Dir(name) {
		dir := path.Join(root, name)
		text, ok := m.file(path.Join(dir, most))
		bound, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64) // "max" is no number
		if ok && err == nil && bound < 1<<60 {                          // cgroup v1 has a huge number for no limit
			text, _ = m.file(path.Join(dir, used))
			taken, _ := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			text, _ = m.file(path.Join(dir, "memory.stat"))
			for _, pages := range []string{"inactive_file", "active_file"} {
				n, _ := field(text, prefix+pages)
				taken -= n
			}
			limit(bound - max(taken, 0))
		}
		if name == "/" {
			return
		}
	}
}

// field returns the number after name, for the line that begins with name.
func field(text, name string) (int64, bool) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
