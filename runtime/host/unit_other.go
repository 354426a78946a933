//go:build !amd64 || purego

package host

// bestUnit returns the unit for this processor.
func bestUnit() *unit { return portable() }
