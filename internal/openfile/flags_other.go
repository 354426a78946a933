//go:build !unix

package openfile

import "os"

// flags open for reading. On these systems the name of a file is not that of a pipe.
const flags = os.O_RDONLY
