//go:build (!amd64 && !arm64) || purego

package simd

// available returns the kernels that this processor runs, the fastest last.
func available() []*Kernels { return []*Kernels{Portable()} }
