//go:build !unix

package openfile

import "os"

// flags open for reading: file names do not mean pipes here.
const flags = os.O_RDONLY
