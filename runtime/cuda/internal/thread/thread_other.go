//go:build !linux

// Package thread tells operating system threads apart.
package thread

// ID returns 0: CUDA is on Linux alone, so nothing that matters runs here.
func ID() int { return 0 }
