package host

import (
	"math"

	"golang.org/x/sys/unix"
)

func available() (bytes int64, known bool) {
	n, err := unix.SysctlUint64("hw.memsize")
	return int64(min(n, math.MaxInt64)), err == nil && n > 0
}
