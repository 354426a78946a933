//go:build !unix

package openfile

import "os"

// flags open for reading. On Windows, opening a pipe does not wait: without a server it fails.
const flags = os.O_RDONLY
