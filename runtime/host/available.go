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
//   - what the machine has: on Linux MemAvailable and SwapFree of /proc/meminfo, on macOS
//     all of its memory (hw.memsize), since macOS compresses and swaps without a fixed bound;
//   - what the memory cgroups (v1 or v2) of the process, and those above them, leave; file
//     pages that the kernel can drop count as free;
//   - what RLIMIT_AS and RLIMIT_DATA leave of address space and data (Linux).
//
// known is false where the platform tells none of them.
func Available() (bytes int64, known bool) { return available() }

// machine is where the limits are read: the files of /proc and /sys, and resource limits.
type machine struct {
	file func(name string) (string, bool) // contents; false: it is not there
	as   uint64                           // RLIMIT_AS, bytes; noLimit: none
	data uint64                           // RLIMIT_DATA
}

const noLimit = math.MaxUint64

// runtimeBytes is address space that the Go runtime takes in units of: a heap arena on 64-bit
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

// cgroup passes on what a cgroup and those above it leave. In a container the path may be that
// of the machine, where nothing lies: the container's own cgroup is then the root.
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

// field returns the number behind a name at the start of a line.
func field(text, name string) (int64, bool) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
