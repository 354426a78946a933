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

// Golden runs a test for each txtar file of a pattern. The comment and the first file of an
// archive are the input. expect gets an archive with only these and appends the results; the
// archive must then equal the file. With update, Golden writes the file instead.
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
