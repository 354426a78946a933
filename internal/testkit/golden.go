package testkit

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"pwc/internal/openfile"
)

// Golden runs a test for each txtar file of a pattern. The comment and the first file are
// the case; expect appends to an archive with them alone what the case gives, which is
// what the file holds. With update the file is rewritten.
func Golden(t *testing.T, pattern string, update bool, expect func(t *testing.T, ar *txtar.Archive)) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			data, err := openfile.Read(name, 64<<20)
			Check(t, err)
			ar := txtar.Parse(data)
			out := &txtar.Archive{Comment: ar.Comment, Files: ar.Files[:1]}
			expect(t, out)
			got := txtar.Format(out)
			if update {
				Check(t, os.WriteFile(name, got, 0o644))
				return
			}
			if !bytes.Equal(got, data) {
				t.Errorf("go test -run Golden -update rewrites it (-want +got):\n%s", cmp.Diff(string(data), string(got)))
			}
		})
	}
}
