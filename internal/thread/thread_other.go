//go:build !linux

// Package thread identifies operating system threads.
package thread

// ID returns 0 for every thread. So the host device applies the rules of the capturing
// thread to all goroutines. CUDA is supported only on Linux.
func ID() int { return 0 }
