// Package thread identifies operating system threads.
package thread

import "syscall"

// ID returns the calling thread's id. It identifies the goroutine only while the
// goroutine is locked to the thread.
func ID() int { return syscall.Gettid() }
