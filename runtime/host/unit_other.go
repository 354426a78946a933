//go:build !amd64

package host

// bestUnit returns the unit for this processor.
func bestUnit() *unit { return portable() }
