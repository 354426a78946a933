//go:build (!amd64 && !arm64) || purego

package host

// units returns the units that this processor runs, the fastest last.
func units() []*unit { return []*unit{portable()} }
