package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pwc/ir"
)

// notOps are the files that compare strings with the names of ops for another reason, and
// the meaning of these strings there.
var notOps = map[string]string{
	"cli/bench.go":              "a mode",
	"cli/bench_run.go":          "a mode",
	"frontend/pt2/pointwise.go": "an attribute of an ATen op",
	"frontend/pt2/reduce.go":    "which of two ATen ops",
	"graphs/scenario/parse.go":  "a word of a scenario",
	"ir/lex.go":                 "a reserved word",
	"ir/parse.go":               "a word of a declaration",
}

// TestOpsAreNotToldByName: code that treats ops differently asks for facts of the op table,
// or compares IDs. It compares no names.
func TestOpsAreNotToldByName(t *testing.T) {
	excused := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		name = filepath.ToSlash(name)
		if !knowsOps(f, name) {
			return nil
		}
		for _, at := range comparedNames(f) {
			if notOps[name] != "" {
				excused[name] = true
				continue
			}
			t.Errorf("%s:%d: compares an op by name; use a fact of the op table (ir.Op) or an ir.OpID", name, set.Position(at).Line)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, what := range notOps {
		if !excused[name] {
			t.Errorf("%s compares no string that may be an op (%s): drop it from the list", name, what)
		}
	}
}

// knowsOps reports whether a file may have to do with ops: it is of package ir, or imports
// it or package compile/loop.
func knowsOps(f *ast.File, name string) bool {
	return filepath.ToSlash(filepath.Dir(name)) == "ir" || slices.ContainsFunc(f.Imports, func(s *ast.ImportSpec) bool {
		return s.Path.Value == `"pwc/ir"` || s.Path.Value == `"pwc/compile/loop"`
	})
}

// comparedNames returns where ops are compared by name: comparisons and cases with the
// name of an op or of a node's op, and switches on the name of a node's op.
func comparedNames(f *ast.File) []token.Pos {
	var out []token.Pos
	isName := func(e ast.Expr) bool {
		switch e := e.(type) {
		case *ast.BasicLit:
			s, err := strconv.Unquote(e.Value)
			return e.Kind == token.STRING && err == nil && ir.LookupOp(s) != nil
		case *ast.SelectorExpr: // n.Op.Name
			x, ok := e.X.(*ast.SelectorExpr)
			return ok && e.Sel.Name == "Name" && x.Sel.Name == "Op"
		}
		return false
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if (n.Op == token.EQL || n.Op == token.NEQ) && (isName(n.X) || isName(n.Y)) {
				out = append(out, n.Pos())
			}
		case *ast.CaseClause:
			for _, e := range n.List {
				if isName(e) {
					out = append(out, e.Pos())
				}
			}
		case *ast.SwitchStmt:
			if n.Tag != nil && isName(n.Tag) {
				out = append(out, n.Tag.Pos())
			}
		}
		return true
	})
	return out
}

// TestComparedNames: comparedNames finds comparisons of ops by name, and no other code.
func TestComparedNames(t *testing.T) {
	for text, want := range map[string]int{
		`if n.Op.Name == "reshape" {}`:                   1,
		`if x := name; x != "add" {}`:                    1,
		`switch name { case "linear", "other": }`:        1,
		`switch n.Op.Name { case other: }`:               1,
		`if n.Op.ID == ir.OpReshape || n.Op.Writable {}`: 0,
		`b.Op("reshape"); use(n.Op.Name)`:                0,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package p\nfunc f() {\n"+text+"\n}\n", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(comparedNames(f)); got != want {
			t.Errorf("%s: found %d, want %d", text, got, want)
		}
	}
}
