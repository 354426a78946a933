//go:build !amd64

package host

// bestKernels returns the micro kernels for this processor.
func bestKernels() *microKernels { return portable() }
