package cli

import (
	"fmt"
	"math"
	"os"
	"runtime/debug"

	"pwc/ir/dtype"
	"pwc/runtime/host"
)

// available returns 15/16 of the bytes that this process can still allocate. The rest is for the
// process's other needs. It returns the largest int64 if the platform does not know the limit.
func available() int64 {
	n, known := host.Available()
	if !known {
		return math.MaxInt64
	}
	return max(n-n/16, 1)
}

// boundHeap sets the garbage collector's memory limit to 31/32 of the memory that the process can
// allocate. Without a limit the heap may grow to twice the live memory, and the process is killed
// although there is garbage to collect. GOMEMLIMIT takes precedence.
func boundHeap() {
	if n, known := host.Available(); known && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(n - n/32)
	}
}

// checkRoom returns an error if bytes, the host memory that what takes, are more than the process can
// allocate. It does not check less than 1 MiB, because reading the limits takes about 50 µs.
func checkRoom(what string, bytes int64) error {
	if bytes < 1<<20 {
		return nil
	}
	if limit := available(); bytes > limit {
		return fmt.Errorf("%s takes %d bytes of host memory, and pwc can allocate %d", what, bytes, limit)
	}
	return nil
}

// heldBytes returns the bytes that converting a tensor between a file or a device and the
// interpreter takes: those of the tensor, and 8 for each element.
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

// addBytes and mulBytes compute with numbers of bytes of at least 0, and saturate at the largest
// int64.
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
