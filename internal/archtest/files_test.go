package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestFilesAreOpenedInOnePlace holds that, tests aside, only package openfile calls the functions of
// package os in openers. They open files by their names, block on a pipe without a writer, and also open devices.
func TestFilesAreOpenedInOnePlace(t *testing.T) {
	openers := map[string]bool{"Open": true, "OpenFile": true, "OpenRoot": true, "ReadFile": true, "DirFS": true}
	files := 0
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(path)
		switch {
		case e.IsDir() && (e.Name() == "testdata" || strings.HasPrefix(e.Name(), ".") && e.Name() != ".."), e.IsDir() && strings.HasSuffix(name, "internal/openfile"):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		files++
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		imports := map[string]bool{}
		for _, i := range f.Imports {
			p, _ := strconv.Unquote(i.Path.Value)
			imports[p] = true
		}
		if !imports["os"] {
			return nil
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok || !openers[s.Sel.Name] {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "os" && x.Obj == nil {
				t.Errorf("%s: os.%s; use pwc/internal/openfile", set.Position(s.Pos()), s.Sel.Name)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("only %d files were looked at", files)
	}
}
