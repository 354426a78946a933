//go:build !amd64 || purego

package simd

// Best returns the kernels for this processor.
func Best() *Kernels { return Portable() }
