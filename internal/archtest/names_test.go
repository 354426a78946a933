package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// declared returns the names that a folder declares at top level, tests included:
// "Name", and "Type.Member" for methods and fields.
func declared(t *testing.T, folder string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					names[d.Name.Name] = true
				} else if owner := receiver(d.Recv.List[0].Type); owner != "" {
					names[owner+"."+d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						names[s.Name.Name] = true
						members(names, s)
					case *ast.ValueSpec:
						for _, n := range s.Names {
							names[n.Name] = true
						}
					}
				}
			}
		}
	}
	return names
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func members(names map[string]bool, s *ast.TypeSpec) {
	var fields *ast.FieldList
	switch t := s.Type.(type) {
	case *ast.StructType:
		fields = t.Fields
	case *ast.InterfaceType:
		fields = t.Methods
	default:
		return
	}
	for _, f := range fields.List {
		for _, n := range f.Names {
			names[s.Name.Name+"."+n.Name] = true
		}
	}
}

// named is a qualified name in a document: a folder, an identifier, and optionally a member.
var named = regexp.MustCompile("`((?:[a-z][a-z0-9]*/)*[a-z][a-z0-9]*)\\.([A-Z]\\w*(?:\\.[A-Z]\\w*)?)(?:\\([^`]*\\))?`")

// TestNames: names of code in documents, such as `split.Split` and `piecewise.TestStaleResult`,
// exist. Names of packages outside of this module, such as `errors.Is`, are not checked.
func TestNames(t *testing.T) {
	var files []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		list, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, list...)
	}
	short := map[string]string{} // last element of a folder's path: the folder
	for folder := range readImports(t) {
		short[path.Base(folder)] = folder
	}
	packages := map[string]map[string]bool{}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, m := range named.FindAllStringSubmatch(line, -1) {
				folder, name := m[1], m[2]
				if info, err := os.Stat(filepath.Join(root, folder)); err != nil || !info.IsDir() {
					if whole, ok := short[folder]; ok {
						t.Errorf("%s:%d: %s.%s is written %s.%s in documents", file, i+1, folder, name, whole, name)
					}
					continue
				}
				if packages[folder] == nil {
					packages[folder] = declared(t, folder)
				}
				found++
				if !packages[folder][name] {
					t.Errorf("%s:%d: there is no %s in %s", file, i+1, name, folder)
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("found %d names in %d documents; the pattern that finds them must be wrong", found, len(files))
	}
}
