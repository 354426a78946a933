//go:build unix

package openfile

import (
	"os"
	"syscall"
)

// flags open without waiting for the writer of a pipe or the carrier of a serial port (O_NONBLOCK), and
// without making a terminal the controlling terminal of the process (O_NOCTTY).
const flags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY
