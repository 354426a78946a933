package cli

import (
	"fmt"
	"math"
	"os"
	"runtime/debug"

	"pwc/ir/dtype"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// available returns how many bytes this process can still take, a sixteenth less, which is for
// the process itself. Where the platform does not tell it is the most that there can be.
func available() int64 {
	n, known := host.Available()
	if !known {
		return math.MaxInt64
	}
	return max(n-n/16, 1)
}

// boundHeap has the collector run before the heap exceeds what the process can take. Without
// it the heap may grow to twice what is in use, which ends the process although there is room.
// GOMEMLIMIT goes first.
func boundHeap() {
	if n, known := host.Available(); known && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(n - n/32)
	}
}

// checkRoom returns a [device.MemoryError] unless the process can take so many bytes.
// Few are not worth a look at the limits, which costs some 50 µs.
func checkRoom(what string, bytes int64) error {
	if bytes < 1<<20 {
		return nil
	}
	if limit := available(); bytes > limit {
		return fmt.Errorf("%s: this machine's memory: %w", what, &device.MemoryError{Asked: bytes, Limit: limit})
	}
	return nil
}

// heldBytes returns what a tensor takes on its way between a file or a device and the
// interpreter: its bytes, and 8 for each element.
func heldBytes(dt dtype.DType, shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		if d == 0 {
			return 0
		}
		n = mulBytes(n, d)
	}
	return addBytes(mulBytes(n, 8), dt.Bytes(min(n, math.MaxInt64/64)))
}

// addBytes and mulBytes compute with numbers of bytes that are not negative; what exceeds an
// int64 becomes the largest.
func addBytes(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func mulBytes(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}
