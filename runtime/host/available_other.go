//go:build !linux && !darwin

package host

func available() (bytes int64, known bool) { return 0, false }
