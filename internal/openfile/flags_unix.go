//go:build unix

package openfile

import (
	"os"
	"syscall"
)

// flags open without waiting for a pipe's writer or a line's carrier, and without
// making a terminal the process's own.
const flags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY
