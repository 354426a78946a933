//go:build !linux

// Package thread tells operating system threads apart.
package thread

// ID returns 0 for every thread. The host device then holds all goroutines to the
// rules of the one that captures; CUDA is on Linux alone.
func ID() int { return 0 }
