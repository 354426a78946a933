package cuda_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/rogpeppe/go-internal/txtar"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/frontend/hf"
	"pwc/internal/irgen"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/split"
)

// recorder is a backend that records sources. Its compiler does not compile them.
type recorder struct {
	*cuda.Backend
	order []string // the sources in the order of the programs' kernels
	names map[string]string
}

func newRecorder(t testing.TB, target string) *recorder {
	t.Helper()
	return recorderOf(t, target, &fakeCompiler{})
}

func recorderOf(t testing.TB, target string, c *fakeCompiler) *recorder {
	t.Helper()
	b, err := cuda.New(target, c)
	if err != nil {
		t.Fatal(err)
	}
	return &recorder{Backend: b, names: make(map[string]string)}
}

// record compiles a module down to sources and validates the program.
func (r *recorder) record(m *ir.Module, s compile.Shape) error {
	p, err := compile.Compile(context.Background(), m, s, r, compile.Options{})
	if err != nil {
		return err
	}
	for _, k := range p.Kernels {
		text := string(k.Code)
		if _, ok := r.names[text]; !ok {
			r.names[text] = k.Name
			r.order = append(r.order, text)
		}
	}
	return p.Validate()
}

// few is the largest number of sources that compileAll compiles, spread over all of them, unless
// PWC_NVRTC_ALL=1 is set.
const few = 8

// compileAll compiles the recorded sources, or few of them.
func (r *recorder) compileAll(t *testing.T, l *library, arch string) {
	t.Helper()
	step := 1
	if os.Getenv("PWC_NVRTC_ALL") != "1" {
		step = (len(r.order) + few - 1) / few
	}
	var g errgroup.Group
	g.SetLimit(4)
	count := 0
	for i := 0; i < len(r.order); i += step {
		text := r.order[i]
		count++
		g.Go(func() error {
			cubin, ptx, err := l.Compile(context.Background(), text, r.names[text]+".cu", arch)
			if entry := []byte(".entry " + r.names[text] + "("); err == nil && (!bytes.HasPrefix(cubin, []byte("\x7fELF")) || !bytes.Contains(ptx, entry)) {
				err = fmt.Errorf("no code for\n%s", text)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%s: %d of %d sources", arch, count, len(r.order))
}

var archs = []string{"sm_80", "sm_90"}

// number returns the value of an environment variable, or otherwise if it is not set.
func number(t testing.TB, name string, otherwise int) int {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestCompileModules compiles some kernels of the modules in compile's testdata, or all with
// PWC_NVRTC_ALL=1.
func TestCompileModules(t *testing.T) {
	files, err := filepath.Glob("../testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no modules", err)
	}
	l := open(t)
	for _, arch := range archs {
		r := newRecorder(t, "cuda:"+arch)
		for _, name := range files {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			m, err := ir.Parse(name, txtar.Parse(data).Files[0].Data)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.record(m, compile.Shape{}); err != nil {
				t.Fatal(err)
			}
		}
		r.compileAll(t, l, arch)
	}
}

// TestCompileRandomModules compiles some kernels of random modules, or all with PWC_NVRTC_ALL=1.
// PWC_RANDOM_MODULES is the number of modules for each architecture, PWC_RANDOM_SEED the first seed.
func TestCompileRandomModules(t *testing.T) {
	l := open(t)
	first := number(t, "PWC_RANDOM_SEED", 0)
	for n, arch := range archs {
		r := newRecorder(t, "cuda:"+arch)
		for i := range number(t, "PWC_RANDOM_MODULES", 2) {
			rnd := rand.New(rand.NewSource(int64(first + 2*i + n)))
			m := irgen.Generate(rnd, irgen.Options{MixRows: true, Load: rnd.Intn(2) == 0, Odd: rnd.Intn(8) == 0, MaxOps: 1 + rnd.Intn(60)})
			if err := r.record(m, compile.Shape{}); err != nil {
				t.Fatalf("%v\n%s", err, ir.Print(m))
			}
		}
		r.compileAll(t, l, arch)
	}
}

// pieces returns the distinct pieces of a model with the given config.
func pieces(t testing.TB, config string) []*ir.Module {
	t.Helper()
	m, err := hf.Builtin().Import([]byte(config), hf.Options{Context: 8192})
	if err != nil {
		t.Fatal(err)
	}
	var out []*ir.Module
	seen := make(map[[32]byte]bool)
	for _, f := range m.Module.Funcs {
		p, err := split.Split(m.Module, f, []string{hf.AttentionOp})
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range p.Units {
			if u.Piece != nil && !seen[u.Piece.Hash] {
				seen[u.Piece.Hash] = true
				out = append(out, u.Piece.Module)
			}
		}
	}
	return out
}

// shape8B is the config of Llama-3.1-8B with three layers: the first, one in
// the middle and the last.
const shape8B = `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":3,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"rms_norm_eps":1e-5,"rope_theta":500000.0,"max_position_embeddings":8192,"torch_dtype":"bfloat16","hidden_act":"silu","tie_word_embeddings":false,"head_dim":128}`

// shape1B is the config of Llama-3.2-1B with three layers.
const shape1B = `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":3,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"rms_norm_eps":1e-5,"rope_theta":500000.0,"max_position_embeddings":8192,"torch_dtype":"bfloat16","hidden_act":"silu","tie_word_embeddings":false,"head_dim":64}`

// shapeToy is the config of a very small model.
const shapeToy = `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":256,"intermediate_size":512,"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":4,"vocab_size":1024,"rms_norm_eps":1e-5,"rope_theta":500000.0,"max_position_embeddings":8192,"torch_dtype":"bfloat16","hidden_act":"silu","tie_word_embeddings":false}`

// TestCompile8B compiles some kernels of Llama-3.1-8B, or all with PWC_NVRTC_ALL=1.
func TestCompile8B(t *testing.T) {
	l := open(t)
	r := newRecorder(t, "cuda:sm_90")
	for _, m := range pieces(t, shape8B) {
		if err := r.record(m, compile.Shape{}); err != nil {
			t.Fatal(err)
		}
	}
	r.compileAll(t, l, "sm_90")
}

// TestCompileCheckpoints compiles some kernels of the models in testdata/hf for 1 to 4 rows, or all with
// PWC_NVRTC_ALL=1.
func TestCompileCheckpoints(t *testing.T) {
	configs, err := filepath.Glob("../../testdata/hf/*/config.json")
	if err != nil || len(configs) == 0 {
		t.Fatal("no checkpoints", err)
	}
	l := open(t)
	r := newRecorder(t, "cuda:sm_80")
	for _, name := range configs {
		config, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pieces(t, string(config)) {
			s := compile.Shape{Ranges: make(map[string]dim.Interval)}
			for _, y := range m.Symbols {
				if y.Kind == ir.Batch {
					s.Ranges[y.Name] = dim.Interval{Lo: 1, Hi: 4}
				}
			}
			if err := r.record(m, s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	r.compileAll(t, l, "sm_80")
}

// TestCompileLongRows compiles kernels for rows that a cluster shares, and for the same rows on
// a GPU without clusters.
func TestCompileLongRows(t *testing.T) {
	lib := open(t)
	for _, target := range []string{"cuda:sm_80", "cuda:sm_90"} {
		b, err := cuda.New(target, lib)
		if err != nil {
			t.Fatal(err)
		}
		for _, columns := range []int64{17001, 128256} {
			if _, err := compile.Compile(context.Background(), longRows(t, columns), compile.Shape{}, b, compile.Options{}); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestTiledShareSources: tiled GEMMs have extents as parameters, so GEMMs that differ only in extents share a source.
// Kernels for few rows have extents as constants, which makes them faster.
func TestTiledShareSources(t *testing.T) {
	r := newRecorder(t, "cuda:sm_90")
	for _, m := range pieces(t, shape8B) {
		if err := r.record(m, compile.Shape{}); err != nil {
			t.Fatal(err)
		}
	}
	sources := make(map[string]int)
	for _, name := range r.names {
		sources[name]++
	}
	for name, want := range map[string]int{"k_linear_add_tile128x128": 1, "k_linear_add_tile128x64_rows128": 1, "k_linear_tile128x128": 1, "k_linear_add_rows8": 2} {
		if got := sources[name]; got != want {
			t.Errorf("%d sources of %s, want %d", got, name, want)
		}
	}
}
