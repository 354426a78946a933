//go:build unix

package cache

import (
	"io/fs"
	"syscall"
)

// modesMean is true: the bits of a file's mode decide who can write it.
const modesMean = true

// owner returns the owner of a file.
func owner(info fs.FileInfo) (uid int, known bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
