package pt2

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/safetensors"
)

const archives = "../../testdata/pt2"

// optionsOf are the options that archives need to be imported.
var optionsOf = map[string]Options{
	"toy-attention":  {Externs: []string{"toy::attention"}},
	"custom":         {Externs: []string{"toy::scale", "toy::pair"}},
	"auto":           {Max: map[string]int64{"s17": 64}},
	"auto-core":      {Max: map[string]int64{"s17": 64}},
	"nested-auto":    {Max: map[string]int64{"s34": 64, "s62": 64}},
	"hf-llama-eager": {Max: map[string]int64{"s27": 64}},
}

// refused reports whether Import must refuse an archive. The errors of these archives are golden files.
func refused(name string) bool { return strings.HasPrefix(name, "refused-") }

// files are the archives of the tests and the results of PyTorch, by path: from folders and from tar files.
var files = sync.OnceValues(func() (map[string][]byte, error) {
	out := map[string][]byte{}
	paths, err := filepath.Glob(filepath.Join(archives, "*", "*"))
	if err != nil {
		return nil, err
	}
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		out[path.Join(filepath.Base(filepath.Dir(p)), filepath.Base(p))] = data
	}
	tars, err := filepath.Glob(filepath.Join(archives, "*.tar.gz"))
	if err != nil {
		return nil, err
	}
	for _, name := range tars {
		if err := untar(name, out); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return out, nil
})

// untar adds the files of an archive to out.
func untar(path string, out map[string][]byte) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if out[h.Name], err = io.ReadAll(r); err != nil {
			return err
		}
	}
}

// matching returns the paths of files that match, sorted.
func matching(t testing.TB, pattern string) []string {
	t.Helper()
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for name := range all {
		if ok, _ := path.Match(pattern, name); ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// names returns the names of the archives.
func names(t testing.TB) []string {
	out := matching(t, "*/model.pt2")
	if len(out) < 40 {
		t.Fatalf("there are %d archives", len(out))
	}
	for i, name := range out {
		out[i] = path.Dir(name)
	}
	return out
}

func content(t testing.TB, name string) []byte {
	t.Helper()
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	if all[name] == nil {
		t.Fatalf("there is no file %s", name)
	}
	return all[name]
}

func open(t testing.TB, name string) *Archive {
	t.Helper()
	data := content(t, name+"/model.pt2")
	a, err := Read(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func tensorOf(t *testing.T, src safetensors.Source, name string) *interp.Tensor {
	t.Helper()
	s, err := src.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	v, err := interp.FromBytes(s.DType, s.Shape, s.Data)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestArchives runs every archive that is not refused in the interpreter, and compares with PyTorch at all sizes for
// which there are results.
func TestArchives(t *testing.T) {
	for _, name := range names(t) {
		if refused(name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			a := open(t, name)
			m, err := a.Import(optionsOf[name])
			if err != nil {
				t.Fatal(err)
			}
			paths := matching(t, strings.TrimSuffix(name, "-core")+"/expected*.safetensors")
			if len(paths) == 0 {
				t.Fatal("there are no results to compare with")
			}
			for _, path := range paths {
				run(t, a, m, path)
			}
		})
	}
}

// TestBands computes convolutions in bands of a few rows.
func TestBands(t *testing.T) {
	for _, name := range []string{"conv", "conv-core"} {
		a := open(t, name)
		im := newImporter(a, &Options{Name: name}, nil)
		whole := len(im.graph.Nodes)
		im.bandBytes = 1 << 12
		m, err := im.run()
		if err != nil {
			t.Fatal(err)
		}
		if n := len(m.Module.Func(FuncName).Nodes); n < 20*whole {
			t.Errorf("%d nodes of %d: there are no bands", n, whole)
		}
		for _, path := range matching(t, "conv/expected*.safetensors") {
			run(t, a, m, path)
		}
	}
}

func run(t *testing.T, a *Archive, m *Model, path string) {
	t.Helper()
	file, err := safetensors.Parse(content(t, path))
	if err != nil {
		t.Fatal(err)
	}
	env := &interp.Env{Weights: map[string]*interp.Tensor{}, States: map[string]*interp.Tensor{}, Externs: externs}
	for _, w := range m.Module.Weights {
		env.Weights[w.Name] = tensorOf(t, a, w.Name)
	}
	for _, s := range m.Module.States {
		env.States[s.Name] = tensorOf(t, a, s.Expr.Name)
	}
	f := m.Module.Func(FuncName)
	for step := 0; ; step++ {
		prefix := ""
		if step > 0 {
			prefix = fmt.Sprintf("step%d.", step)
			if _, err := file.Info(prefix + "out0"); errors.Is(err, safetensors.ErrNotFound) {
				return
			}
		}
		var inputs []*interp.Tensor
		for i, p := range f.Params {
			v := tensorOf(t, file, fmt.Sprintf("in%d", i))
			inputs = append(inputs, widened(v, f.Values[p].Type.DType))
		}
		if shape := inputs[0].Shape; strings.HasPrefix(path, "divided") {
			env.Symbols = map[string]int64{m.Dims[0].Name: shape[0] / 4} // a size 4*s6 binds no symbol
		}
		out, err := interp.Run(context.Background(), m.Module, f, env, inputs)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for i, v := range out {
			if strings.HasPrefix(path, "mutation") && prefix == "" && i == 2 {
				continue // the buffer itself, which PyTorch changed again before the result was saved
			}
			want := tensorOf(t, file, fmt.Sprintf("%sout%d", prefix, i))
			if d := interp.Compare(v, want); !d.Within(tolerance(f, want.Type)) {
				t.Errorf("%s %sout%d (%s): %s", path, prefix, i, f.Nodes[f.Values[f.Returns[i]].Node].Loc, d)
			}
		}
		for i, p := range f.Params {
			if name := fmt.Sprintf("after%d", i); f.Values[p].Mut {
				if d := interp.Compare(inputs[i], tensorOf(t, file, name)); !d.Within(1e-5) {
					t.Errorf("%s %s: %s", path, name, d)
				}
			}
		}
		for _, e := range env.IndexErrors {
			t.Errorf("%s: %v", path, e)
		}
	}
}

// widened converts integers to the dtype of a parameter.
func widened(v *interp.Tensor, dt dtype.DType) *interp.Tensor {
	if v.Type == dt {
		return v
	}
	out, err := interp.FromInt64s(dt, v.Shape, v.Int64s())
	if err != nil {
		panic(err)
	}
	return out
}

// tolerance is the tolerance for a result. It is larger if the result is f16 or bf16, or a value of the function is
// bf16, because PyTorch then rounds other values.
func tolerance(f *ir.Func, dt dtype.DType) float64 {
	rounded := slices.ContainsFunc(f.Values, func(v ir.ValueInfo) bool { return v.Type.DType == dtype.BF16 })
	switch {
	case dt == dtype.BF16:
		return 2e-2
	case dt == dtype.F16, rounded:
		return 5e-3
	}
	return 1e-5
}
