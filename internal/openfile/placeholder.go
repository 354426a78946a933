package openfile

import "bytes"

// Placeholder describes the contents of a file, by its first bytes, if they replace a file that
// was not downloaded: a Git LFS pointer or a page of HTML. Otherwise it returns "".
func Placeholder(head []byte) string {
	const longest = 512 // bytes that are examined
	head = bytes.ToLower(bytes.TrimSpace(head[:min(len(head), longest)]))
	switch {
	case bytes.HasPrefix(head, []byte("version https://git-lfs.github.com/spec/")):
		return "it is a Git LFS pointer, not the file: fetch it with git lfs pull"
	case bytes.HasPrefix(head, []byte("<!doctype html")), bytes.HasPrefix(head, []byte("<html")):
		return "it is a page of HTML, not the file: its download failed, or asked for a login"
	}
	return ""
}
