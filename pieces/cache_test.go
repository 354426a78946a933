package pieces_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pwc/cache"
	"pwc/compile"
	"pwc/compile/host"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/pieces"
	"pwc/program"
	"pwc/split"
)

const twoPieces = `pwc 1
module "two" {
  sym N in [1, 64] batch
  op "silly::attention"(tensor, tensor, tensor, mut tensor) split
  func @forward(%x: f32[N]) -> (f32[N]) {
    %a = add(%x, 1.0) : f32[N] loc("before")
    %o = empty_like(%a) : f32[N]
    call "silly::attention"(%a, %a, %a, %o)
    %e = mul(%o, 2.0) : f32[N] loc("after")
    return %e
  }
}
`

// TestDiskCache: a second build, with the disk cache opened again, compiles nothing (C9). The
// error of a frozen build that lacks an artifact names the factor that differs (C10).
func TestDiskCache(t *testing.T) {
	m, err := ir.Parse("two.ir", []byte(twoPieces))
	if err != nil {
		t.Fatal(err)
	}
	p, err := split.Split(m, m.Funcs[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	made := func(o pieces.Options) (*pieces.Result, error) {
		o.Store = cache.New(cache.Options{Dir: dir})
		if o.Compiler == nil {
			o.Compiler = pieces.Pipeline{Backend: host.New()}
		}
		return pieces.Build(context.Background(), []*split.Plan{p}, o)
	}
	var miss *pieces.MissError
	if _, err := made(pieces.Options{Frozen: true}); !errors.As(err, &miss) || !strings.Contains(err.Error(), "the cache has no readable entry") {
		t.Fatalf("a frozen build on an empty cache: %v", err)
	}
	cold, err := made(pieces.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if cold.Counters.Compiled != 2 || cold.Counters.Loaded != 0 {
		t.Fatalf("cold: compiled %d, loaded %d; want 2 and 0", cold.Counters.Compiled, cold.Counters.Loaded)
	}
	warm, err := made(pieces.Options{Frozen: true})
	if err != nil {
		t.Fatal(err)
	}
	if warm.Counters.Compiled != 0 || warm.Counters.Loaded != 2 {
		t.Fatalf("warm: compiled %d, loaded %d; want 0 and 2", warm.Counters.Compiled, warm.Counters.Loaded)
	}
	for i, a := range cold.Artifacts {
		if a.Program.String() != warm.Artifacts[i].Program.String() {
			t.Errorf("artifact %d is another program when loaded", i)
		}
	}
	// The store has a record of the module with its entries, and its graph can be parsed.
	store := cache.New(cache.Options{Dir: dir})
	info, err := store.Show(context.Background(), "two")
	if err != nil {
		t.Fatal(err)
	}
	if len(info.Keys) != 2 || info.Missing != 0 || info.Target != "host" {
		t.Errorf("the module has %d entries, %d missing, for %s; want 2, 0, host", len(info.Keys), info.Missing, info.Target)
	}
	again, err := ir.Parse("computation_graph.ir", info.Graph)
	if err != nil {
		t.Fatalf("%v in\n%s", err, info.Graph)
	}
	if again.Hash() != m.Hash() {
		t.Error("the graph is of another module")
	}
	for _, want := range []string{"// item 0, piece", "// item 1, splitting\n", "// item 2, piece", `loc("after")`} {
		if !strings.Contains(string(info.Graph), want) {
			t.Errorf("no %q in the graph\n%s", want, info.Graph)
		}
	}
	// Extras are entries of the module; a build with Unrecorded adds no record.
	extra := pieces.Extra{Key: cache.Key{Piece: [32]byte{1}, Target: "host", Pipeline: "kernel 1", Format: program.FormatVersion}, Origin: "kernel k",
		Compile: func(context.Context) (*program.Program, error) { return &program.Program{Target: "host"}, nil }}
	for _, unrecorded := range []bool{true, false} {
		if _, err := made(pieces.Options{Extras: []pieces.Extra{extra}, Unrecorded: unrecorded}); err != nil {
			t.Fatal(err)
		}
		list, err := store.Modules(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if most := slices.MaxFunc(list, func(a, b cache.ModuleInfo) int { return a.Entries - b.Entries }); unrecorded && len(list) != 1 || !unrecorded && most.Entries != 3 {
			t.Errorf("unrecorded %v: modules %+v", unrecorded, list)
		}
	}
	_, err = made(pieces.Options{Frozen: true, Shapes: map[string]pieces.Shapes{"N": {Sizes: []int64{8}}}})
	if !errors.As(err, &miss) || !strings.Contains(err.Error(), `shape: "s0=[1, 64]" → "s0=8"`) {
		t.Errorf("a frozen build for another size: %v; want the shape, old and new", err)
	}
	other := pieces.Pipeline{Backend: host.New(), Options: compile.Options{Disable: []string{"cse"}}}
	_, err = made(pieces.Options{Frozen: true, Compiler: other})
	if !errors.As(err, &miss) || !strings.Contains(err.Error(), "pipeline:") || strings.Contains(err.Error(), "shape: ") {
		t.Errorf("a frozen build with a pass switched off: %v; want the pipeline, old and new", err)
	}
}

// TestFrozenMissOfDamage: if the store's entries are damaged, the error of a frozen build says
// what is wrong with each, and not that the store is empty.
func TestFrozenMissOfDamage(t *testing.T) {
	m, err := ir.Parse("two.ir", []byte(twoPieces))
	if err != nil {
		t.Fatal(err)
	}
	p, err := split.Split(m, m.Funcs[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	keys := func(dir string) []cache.Key {
		r, err := pieces.Build(t.Context(), []*split.Plan{p}, pieces.Options{Compiler: pieces.Pipeline{Backend: host.New()}, Store: cache.New(cache.Options{Dir: dir})})
		if err != nil {
			t.Fatal(err)
		}
		return []cache.Key{r.Artifacts[0].Key, r.Artifacts[1].Key}
	}
	for name, c := range map[string]struct {
		damage func(dir string) error
		want   string
	}{
		"manifests": {func(dir string) error {
			files, err := filepath.Glob(filepath.Join(dir, "v1", "keys", "*", "*"))
			for _, f := range files {
				err = errors.Join(err, os.WriteFile(f, []byte("junk"), 0o666))
			}
			return err
		}, "does not begin with"},
		"no programs": {func(dir string) error {
			list := keys(dir)
			s := cache.New(cache.Options{Dir: dir})
			err := s.Clear(t.Context())
			for _, k := range list {
				err = errors.Join(err, s.Put(t.Context(), k, []byte("no program"), cache.Provenance{}))
			}
			return err
		}, "not a program"},
	} {
		dir := t.TempDir()
		keys(dir)
		if err := c.damage(dir); err != nil {
			t.Fatal(err)
		}
		_, err := pieces.Build(t.Context(), []*split.Plan{p}, pieces.Options{Compiler: pieces.Pipeline{Backend: host.New()}, Store: cache.New(cache.Options{Dir: dir}), Frozen: true})
		var miss *pieces.MissError
		if !errors.As(err, &miss) || miss.Err == nil || strings.Count(err.Error(), c.want) != 2 || strings.Contains(err.Error(), "empty") {
			t.Errorf("%s: %v; want %q of each", name, err, c.want)
		}
	}
}

// scanned is a store that counts how often it is asked for reasons.
type scanned struct {
	*cache.Store
	scans int
}

func (s *scanned) Explain(ctx context.Context, keys ...cache.Key) ([]cache.Explanation, error) {
	s.scans++
	return s.Store.Explain(ctx, keys...)
}

// TestMissesAreExplainedTogether: a build asks the store once to explain all misses, because the store
// reads all its entries to find the nearest ones.
func TestMissesAreExplainedTogether(t *testing.T) {
	m, err := ir.Parse("test.ir", []byte(twoPieces))
	if err != nil {
		t.Fatal(err)
	}
	p, err := split.Split(m, m.Funcs[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &scanned{Store: cache.New(cache.Options{Dir: t.TempDir()})}
	told := 0
	_, err = pieces.Build(context.Background(), []*split.Plan{p}, pieces.Options{
		Compiler: pieces.Pipeline{Backend: host.New()}, Store: s, Frozen: true,
		Observer: func(e pieces.Event) {
			var miss *pieces.MissError
			if e.Kind == pieces.Failed && errors.As(e.Err, &miss) && miss.Why != nil {
				told++
			}
		},
	})
	if err == nil || s.scans != 1 || told != 2 {
		t.Errorf("%d misses told with their reasons, %d scans of the store, error %v; want 2 and 1", told, s.scans, err)
	}
}

// gpuCompiler is the host's compiler under the target of a GPU, for which programs count as
// machine code.
type gpuCompiler struct{ pieces.Pipeline }

func (gpuCompiler) Target() string { return "cuda:sm_90" }

func (c gpuCompiler) Compile(ctx context.Context, piece *ir.Module, ranges map[string]dim.Interval) (*program.Program, error) {
	p, err := c.Pipeline.Compile(ctx, piece, ranges)
	if err == nil {
		p.Target = "cuda:sm_90"
	}
	return p, err
}

// TestUntrustedMachineCode: machine code in a layer that everybody can write is not used but
// compiled, without warnings; a frozen build fails, and its error has the command that trusts the
// layer.
func TestUntrustedMachineCode(t *testing.T) {
	m, err := ir.Parse("two.ir", []byte(twoPieces))
	if err != nil {
		t.Fatal(err)
	}
	p, err := split.Split(m, m.Funcs[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(t.TempDir(), "layer")
	made := func(c pieces.Compiler, frozen bool, o cache.Options) (*pieces.Result, error) {
		return pieces.Build(t.Context(), []*split.Plan{p}, pieces.Options{Compiler: c, Frozen: frozen, Store: cache.New(o)})
	}
	gpu, cpu := gpuCompiler{pieces.Pipeline{Backend: host.New()}}, pieces.Pipeline{Backend: host.New()}
	for _, c := range []pieces.Compiler{gpu, cpu} {
		if _, err := made(c, false, cache.Options{Dir: layer}); err != nil {
			t.Fatal(err)
		}
	}
	err = filepath.WalkDir(layer, func(name string, e fs.DirEntry, err error) error { // whatever umask the test runs under
		if err == nil {
			info, _ := e.Info()
			err = os.Chmod(name, info.Mode().Perm()&^0o022)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := made(gpu, true, cache.Options{Layers: []string{layer}}); err != nil || r.Counters.Loaded != 2 {
		t.Fatalf("a layer of the user's own: %v", err)
	}
	if err := os.Chmod(layer, 0o777); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no file modes that a cache could check")
	}
	_, err = made(gpu, true, cache.Options{Layers: []string{layer}})
	var miss *pieces.MissError
	var untrusted *cache.UntrustedError
	if !errors.As(err, &miss) || !errors.As(err, &untrusted) || !strings.Contains(err.Error(), "run: pwc cache trust add --dir "+layer) || strings.Contains(err.Error(), "empty") {
		t.Errorf("frozen: %v", err)
	}
	r, err := made(gpu, false, cache.Options{Dir: t.TempDir(), Layers: []string{layer}})
	if err != nil || r.Counters.Compiled != 2 || len(r.Warnings) != 0 {
		t.Errorf("not frozen: %v, %+v", err, r)
	}
	trust := &cache.Trust{Dirs: []string{layer}}
	if r, err := made(gpu, true, cache.Options{Layers: []string{layer}, Trust: trust}); err != nil || r.Counters.Loaded != 2 {
		t.Errorf("trusted: %v", err)
	}
	if r, err := made(cpu, true, cache.Options{Layers: []string{layer}}); err != nil || r.Counters.Loaded != 2 {
		t.Errorf("for the host: %v", err)
	}
}
