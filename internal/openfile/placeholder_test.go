package openfile

import (
	"strings"
	"testing"
)

func TestPlaceholder(t *testing.T) {
	for head, want := range map[string]string{
		"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n": "Git LFS pointer",
		"<!DOCTYPE html>\n<html>":            "HTML",
		"\n <html lang=\"en\">":              "HTML",
		"":                                   "",
		"{}":                                 "",
		"\x08\x00\x00\x00\x00\x00\x00\x00{}": "",
		strings.Repeat(" ", 600) + "<html>":  "",
	} {
		if got := Placeholder([]byte(head)); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q is %q", head, got)
		}
	}
}
