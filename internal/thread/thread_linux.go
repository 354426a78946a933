// Package thread tells operating system threads apart.
package thread

import "syscall"

// ID returns the calling thread's id. It identifies the goroutine only while it
// is locked to the thread.
func ID() int { return syscall.Gettid() }
