package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Limits of a function and of repetition, for files that are neither tests nor
// generated.
const (
	maxLines   = 100 // of a function, as codeLines counts them
	maxNesting = 4   // control statements around a statement of a function
	maxRepeat  = 9   // successive lines that two files may have in common
)

// goFile is a Go file of the module that is neither a test nor generated.
type goFile struct {
	name string // from the module's root, with slashes
	set  *token.FileSet
	file *ast.File
	text string
}

// goFiles returns the Go files of the module outside of testdata that are neither tests
// nor generated, for all platforms.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root {
			_, err := os.Stat(filepath.Join(path, "go.mod")) // another module
			if err == nil || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if ast.IsGenerated(f) {
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files = append(files, goFile{filepath.ToSlash(name), set, f, string(text)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 100 {
		t.Fatalf("found %d files; the walk must be wrong", len(files))
	}
	return files
}

// TestFunctionsAreShort: a function has at most maxLines lines, as codeLines counts them,
// and maxNesting levels.
func TestFunctionsAreShort(t *testing.T) {
	for _, f := range goFiles(t) {
		for _, d := range f.file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			if n := codeLines(f.set, fn); n > maxLines {
				t.Errorf("%s:%d: %s has %d lines, more than %d", f.name, f.set.Position(fn.Pos()).Line, fn.Name.Name, n, maxLines)
			}
			if depth, at := nesting(fn.Body); depth > maxNesting {
				t.Errorf("%s:%d: %s nests %d control statements, more than %d", f.name, f.set.Position(at).Line, fn.Name.Name, depth, maxNesting)
			}
		}
	}
}

// codeLines returns the lines of a function less those inside of composite literals
// without functions, which are data.
func codeLines(set *token.FileSet, fn *ast.FuncDecl) int {
	line := func(p token.Pos) int { return set.Position(p).Line }
	n := line(fn.End()) - line(fn.Pos()) + 1
	ast.Inspect(fn.Body, func(node ast.Node) bool {
		lit, ok := node.(*ast.CompositeLit)
		if !ok {
			return true
		}
		if hasStatements(lit) {
			return true
		}
		n -= line(lit.Rbrace) - line(lit.Lbrace)
		return false
	})
	return n
}

func hasStatements(e ast.Expr) bool {
	found := false
	ast.Inspect(e, func(node ast.Node) bool {
		_, is := node.(*ast.FuncLit)
		found = found || is
		return !found
	})
	return found
}

// nesting returns the deepest nesting of control statements of a body, and where it
// is. A function literal starts anew: it is a function. An "else if" is on the level
// of its "if", and the cases of a switch are on the level of the switch.
func nesting(body *ast.BlockStmt) (deepest int, at token.Pos) {
	var visit func(n ast.Node, depth int)
	visit = func(n ast.Node, depth int) {
		ast.Inspect(n, func(c ast.Node) bool {
			if c == nil || c == n {
				return true
			}
			switch c := c.(type) {
			case *ast.FuncLit:
				visit(c.Body, 0)
				return false
			case *ast.IfStmt:
				level := depth + 1
				if outer, ok := n.(*ast.IfStmt); ok && outer.Else == c {
					level = depth
				}
				enter(c, level, &deepest, &at)
				visit(c, level)
				return false
			case *ast.ForStmt, *ast.RangeStmt, *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt:
				enter(c, depth+1, &deepest, &at)
				visit(c, depth+1)
				return false
			}
			return true
		})
	}
	visit(body, 0)
	return deepest, at
}

func enter(n ast.Node, level int, deepest *int, at *token.Pos) {
	if level > *deepest {
		*deepest, *at = level, n.Pos()
	}
}

// codeLine is a line of a file as comparison sees it.
type codeLine struct {
	text   string // with single spaces
	number int
}

// normalised returns the lines after the imports that are not blank, with single spaces.
// The names of an enumeration do not count: two languages with the same ops list the same
// names.
func normalised(f goFile) []codeLine {
	start := 1
	enumerated := map[int]bool{} // lines
	for _, d := range f.file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		if g.Tok == token.IMPORT {
			start = f.set.Position(g.End()).Line + 1
		}
		for _, s := range g.Specs {
			if v, ok := s.(*ast.ValueSpec); ok && g.Tok == token.CONST && v.Values == nil {
				enumerated[f.set.Position(s.Pos()).Line] = true
			}
		}
	}
	var lines []codeLine
	number := 0
	for line := range strings.Lines(f.text) {
		number++
		if text := strings.Join(strings.Fields(line), " "); text != "" && number >= start && !enumerated[number] {
			lines = append(lines, codeLine{text, number})
		}
	}
	return lines
}

// TestFilesDoNotRepeat: no two files have more than maxRepeat successive lines in
// common, and no file has them twice.
func TestFilesDoNotRepeat(t *testing.T) {
	type place struct{ file, line int }
	files := goFiles(t)
	lines := make([][]codeLine, len(files))
	for i, f := range files {
		lines[i] = normalised(f)
	}
	first := map[string]place{}
	var told []string
	for i := range files {
		skip := 0
		for j := 0; j+maxRepeat < len(lines[i]); j++ {
			var window strings.Builder
			for _, l := range lines[i][j : j+maxRepeat+1] {
				window.WriteString(l.text)
				window.WriteByte('\n')
			}
			at, seen := first[window.String()]
			if !seen {
				first[window.String()] = place{i, j}
				continue
			}
			if at.file == i && at.line+maxRepeat >= j || j < skip {
				continue
			}
			skip = j + maxRepeat + 1
			told = append(told, fmt.Sprintf("%s:%d repeats %s:%d", files[i].name, lines[i][j].number, files[at.file].name, lines[at.file][at.line].number))
		}
	}
	slices.Sort(told)
	for _, s := range told {
		t.Error(s)
	}
}
