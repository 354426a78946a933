//go:build unix

package cache

import (
	"io/fs"
	"syscall"
)

// modesMean: the bits of a file's mode say who can write it.
const modesMean = true

// owner returns the user that a file belongs to.
func owner(info fs.FileInfo) (uid int, known bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
