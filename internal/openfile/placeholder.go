package openfile

import "bytes"

// Placeholder says what the first bytes of a file are, if they are what stands in place of a
// file that was not fetched; empty: they may be the file's own.
func Placeholder(head []byte) string {
	const longest = 512 // of what is looked at
	head = bytes.ToLower(bytes.TrimSpace(head[:min(len(head), longest)]))
	switch {
	case bytes.HasPrefix(head, []byte("version https://git-lfs.github.com/spec/")):
		return "it is a Git LFS pointer, not the file: fetch it with git lfs pull"
	case bytes.HasPrefix(head, []byte("<!doctype html")), bytes.HasPrefix(head, []byte("<html")):
		return "it is a page of HTML, not the file: its download failed, or asked for a login"
	}
	return ""
}
