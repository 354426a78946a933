package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// signature is a method as text: its name, and the types that it takes and returns without
// their packages: package device writes Buffer, another one device.Buffer.
type signature string

// methodsOf returns the methods that a list of fields declares, without embedded interfaces.
func methodsOf(fields *ast.FieldList) []signature {
	var out []signature
	for _, f := range fields.List {
		if t, ok := f.Type.(*ast.FuncType); ok {
			for _, n := range f.Names {
				out = append(out, signatureOf(n.Name, t))
			}
		}
	}
	return out
}

func signatureOf(name string, t *ast.FuncType) signature {
	text := name
	for _, list := range []*ast.FieldList{t.Params, t.Results} {
		text += "("
		if list != nil {
			for _, f := range list.List {
				typ := qualifiers.ReplaceAllString(types.ExprString(f.Type), "")
				if fn, ok := f.Type.(*ast.FuncType); ok { // whose parameters may have other names
					typ = string(signatureOf("func", fn))
				}
				text += strings.Repeat(typ+",", max(1, len(f.Names)))
			}
		}
		text += ")"
	}
	return signature(text)
}

// qualifiers are the names of packages before those of types.
var qualifiers = regexp.MustCompile(`\b[a-z]+\.`)

// required are the interfaces that optional ones embed, each with a method by which
// implementers recognizes its types.
var required = map[string]string{"Device": "Info", "Stream": "Synchronize", "Memory": "Free", "Op": "Signature"}

// capability is an optional interface: the required one that it embeds, and its further methods.
type capability struct {
	base    string
	methods []signature
}

// optional returns the interfaces of runtime/device that embed a required one.
func optional(t *testing.T) map[string]capability {
	t.Helper()
	out := map[string]capability{}
	eachFile(t, filepath.Join(root, "runtime", "device"), func(_ string, f *ast.File) {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			it, ok := spec.Type.(*ast.InterfaceType)
			if !ok {
				return true
			}
			for _, m := range it.Methods.List {
				if id, ok := m.Type.(*ast.Ident); ok && len(m.Names) == 0 && required[id.Name] != "" {
					out["runtime/device."+spec.Name.Name] = capability{id.Name, methodsOf(it.Methods)}
				}
			}
			return true
		})
	})
	return out
}

// eachFile parses the Go files of a folder and of the folders below it, except tests.
func eachFile(t *testing.T, dir string, f func(folder string, file *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != dir && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		f(filepath.ToSlash(folder), file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// implementers returns the exported types that declare the methods of a capability, and
// declare the method or embed the interface of its base, by capability. Packages internal
// to the module are left out.
func implementers(t *testing.T, of map[string]capability) map[string][]string {
	t.Helper()
	declared := map[string]map[signature]bool{} // by type
	embeds := map[string]map[string]bool{}      // by type: names of embedded types
	mark := func(list map[string]map[string]bool, typ, name string) {
		if list[typ] == nil {
			list[typ] = map[string]bool{}
		}
		list[typ][name] = true
	}
	names := map[string]map[string]bool{} // by type: methods
	eachFile(t, root, func(folder string, file *ast.File) {
		if strings.Contains(folder, "internal/") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil {
					return true
				}
				typ := folder + "." + receiver(n.Recv.List[0].Type)
				if declared[typ] == nil {
					declared[typ] = map[signature]bool{}
				}
				declared[typ][signatureOf(n.Name.Name, n.Type)] = true
				mark(names, typ, n.Name.Name)
			case *ast.TypeSpec:
				st, ok := n.Type.(*ast.StructType)
				if !ok {
					return true
				}
				for _, f := range st.Fields.List {
					if sel, ok := f.Type.(*ast.SelectorExpr); ok && len(f.Names) == 0 {
						mark(embeds, folder+"."+n.Name.Name, sel.Sel.Name)
					}
				}
			}
			return true
		})
	})
	out := map[string][]string{}
	for name, c := range of {
		for typ, has := range declared {
			exported := ast.IsExported(typ[strings.LastIndex(typ, ".")+1:])
			based := names[typ][required[c.base]] || embeds[typ][c.base]
			if exported && based && !slices.ContainsFunc(c.methods, func(m signature) bool { return !has[m] }) {
				out[name] = append(out[name], typ)
			}
		}
		slices.Sort(out[name])
	}
	return out
}

// TestCapabilities holds the table of docs/devices.md to the optional interfaces of
// runtime/device and to the types that implement them.
func TestCapabilities(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "devices.md"))
	if err != nil {
		t.Fatal(err)
	}
	interfaces := optional(t)
	has := implementers(t, interfaces)
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 7 || !strings.Contains(cells[1], "`runtime/device.") {
			continue
		}
		name := code.FindStringSubmatch(cells[1])[1]
		if _, ok := interfaces[name]; !ok {
			t.Errorf("docs/devices.md has a row for %s, which is no optional interface of runtime/device", name)
			continue
		}
		seen[name] = true
		for i, what := range map[int]string{2: "of", 3: "adds", 4: "without it"} {
			if strings.TrimSpace(cells[i]) == "" {
				t.Errorf("docs/devices.md, %s: column %q is empty", name, what)
			}
		}
		var listed []string
		for _, m := range code.FindAllStringSubmatch(cells[5], -1) {
			listed = append(listed, m[1])
		}
		if slices.Sort(listed); !slices.Equal(listed, has[name]) {
			t.Errorf("docs/devices.md, %s: types %v, the module has %v", name, listed, has[name])
		}
	}
	for name := range interfaces {
		if !seen[name] {
			t.Errorf("docs/devices.md has no row for %s", name)
		}
	}
	if len(seen) == 0 {
		t.Fatal("docs/devices.md has no table of capabilities")
	}
}
