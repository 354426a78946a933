package piecewise_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pwc/compile/host"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
)

// symbolic returns a module of one function.
func symbolic(params, results, body string) string {
	return `pwc 1
module "symbolic" {
  sym N in [1, 8] batch
  sym M in [1, 8] batch
  sym K in [1, 100]
  func @f(` + params + `) -> (` + results + `) {
    ` + strings.ReplaceAll(body, "; ", "\n    ") + `
  }
}
`
}

// bindRun runs the function with generated inputs for values of the symbols, and returns its
// results and those of the interpreter.
func bindRun(t *testing.T, b *piecewise.Backend, text string, values map[string]int64) (got, want []*interp.Tensor) {
	t.Helper()
	m := testkit.Parse(t, text)
	f, fn := b.Func("f"), m.Func("f")
	lookup := func(name string) (int64, bool) { v, ok := values[name]; return v, ok }
	rows := int64(1)
	symbols := f.Symbols()
	if len(symbols) > 0 && m.Symbol(symbols[0]).Kind == ir.Batch {
		rows = values[symbols[0]]
	}
	in, err := f.Inputs(rows)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if err := in.SetSymbol(s, values[s]); err != nil {
			t.Fatal(err)
		}
	}
	var args []*interp.Tensor
	for i, p := range fn.Params {
		info := fn.Values[p]
		shape := make([]int64, info.Type.Rank())
		n := int64(1)
		for axis, d := range info.Type.Shape {
			if shape[axis], err = d.Eval(lookup); err != nil {
				t.Fatal(err)
			}
			n *= shape[axis]
		}
		x := make([]float32, n)
		for j := range x {
			x[j] = float32((i+2)*j%7) - 2
		}
		a, err := interp.FromF32(shape, x)
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, a)
		dst, err := in.Float32s(info.Name)
		if err != nil {
			t.Fatal(err)
		}
		if len(dst) != len(x) {
			t.Fatalf("%%%s at %v has %d elements, want %d", info.Name, values, len(dst), len(x))
		}
		copy(dst, x)
	}
	r, err := f.Run(context.Background(), in, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Len() {
		shape, err := r.At(i).Shape()
		if err != nil {
			t.Fatal(err)
		}
		n, err := r.At(i).Size()
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, n)
		if err := r.At(i).CopyTo(data); err != nil {
			t.Fatal(err)
		}
		x, err := interp.FromBytes(r.At(i).DType(), shape, data)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, x)
	}
	if want, err = interp.Run(context.Background(), m, fn, &interp.Env{Symbols: values}, args); err != nil {
		t.Fatal(err)
	}
	return got, want
}

// A run uses its values of the symbols in any extent: the sizes of inputs and results follow from
// their types, and means are over the valid elements.
func TestSymbolsOfRuns(t *testing.T) {
	none, plain := "", "a plain symbol is bound at each run"
	for _, c := range []struct {
		name, params, results, body string
		symbols                     []string
		skipped                     string
		unpadded                    bool // runs of no capture size may be eager
	}{
		{"two batch symbols", "%x: f32[N, 4], %y: f32[M, 4]", "f32[N, 4]", "%m = mean(%y, axes=[0], keepdims=true); %b = broadcast_to(%m, shape=[N, 4]); %z = add(%x, %b); return %z", []string{"N", "M"}, plain, false},
		{"both are results", "%x: f32[N, 4], %y: f32[M, 4]", "f32[N, 4], f32[M, 4]", "%a = neg(%x); %b = neg(%y); return %a, %b", []string{"N", "M"}, none, false},
		{"a plain symbol", "%x: f32[N, K]", "f32[N, 1]", "%m = mean(%x, axes=[1], keepdims=true); return %m", []string{"N", "K"}, plain, false},
		{"plain symbols alone", "%x: f32[K, 3]", "f32[3]", "%m = mean(%x, axes=[0]); return %m", []string{"K"}, plain, false},
		{"of an attribute", "%x: f32[N, 1]", "f32[N, K]", "%b = broadcast_to(%x, shape=[N, K]); return %b", []string{"N", "K"}, plain, false},
		{"rows on two axes", "%x: f32[N, 2, N]", "f32[N, 2, N]", "%v = neg(%x); return %v", []string{"N"}, none, true},
		{"rows on the second axis", "%x: f32[2, N]", "f32[2, N]", "%v = neg(%x); return %v", []string{"N"}, none, true},
		{"two elements for each row", "%x: f32[2*N, 3]", "f32[2*N, 3]", "%v = neg(%x); return %v", []string{"N"}, none, false},
		{"one row more", "%x: f32[N + 1, 3]", "f32[N + 1, 3]", "%v = neg(%x); return %v", []string{"N"}, none, true},
		{"no symbol", "%x: f32[5, 3]", "f32[5, 3]", "%v = neg(%x); return %v", nil, none, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := symbolic(c.params, c.results, c.body)
			for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full, piecewise.FullAndPiecewise, piecewise.FullDecodeOnly} {
				b := start(t, text, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode}, Debug: piecewise.DebugOptions{Poison: true}})
				if got := b.Func("f").Symbols(); !slices.Equal(got, c.symbols) {
					t.Fatalf("symbols %v, want %v", got, c.symbols)
				}
				for _, v := range []map[string]int64{{"N": 8, "M": 8, "K": 100}, {"N": 3, "M": 5, "K": 7}, {"N": 5, "M": 2, "K": 1}, {"N": 1, "M": 1, "K": 64}} {
					got, want := bindRun(t, b, text, v)
					for i := range want {
						if d := interp.Compare(got[i], want[i]); !d.Within(1e-6) {
							t.Errorf("mode %s, %v, result %d: %s", mode, v, i, d)
						}
					}
				}
				s := b.Stats()
				switch {
				case mode == piecewise.None || mode == piecewise.FullDecodeOnly && c.skipped == none && c.symbols != nil:
				case c.skipped != none:
					if s.Skipped[c.skipped] != 4 || s.GraphsCaptured != 0 || len(b.Plan().Uncaptured) != 1 || !strings.Contains(b.Plan().Uncaptured[0].Why, "bound at each run") {
						t.Errorf("mode %s: %+v, %v", mode, s, b.Plan().Uncaptured)
					}
				case s.EagerRuns > 0 && !c.unpadded || s.GraphsCaptured == 0 || s.Replays+s.FullReplays == 0:
					t.Errorf("mode %s: %+v", mode, s)
				}
				if c.symbols == nil && mode != piecewise.None && (s.EagerRuns > 0 || s.GraphsCaptured != 1) {
					t.Errorf("mode %s: a static function has %d graphs and ran eagerly %d times, want 1 and 0", mode, s.GraphsCaptured, s.EagerRuns)
				}
			}
		})
	}
}

// It is an error if a run gives a symbol no value, a value outside its range, or two values. With
// Frozen, New refuses a function that no graph would serve, unless the mode is none.
func TestSymbolErrors(t *testing.T) {
	ctx := context.Background()
	text := symbolic("%x: f32[N, K], %y: f32[K]", "f32[N, K]", "%r = reshape(%y, shape=[1, K]); %s = add(%x, %r); return %s")
	o := piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"K": 50}}, Compile: piecewise.CompileOptions{Store: pieces.NewMemoryStore()}}
	b := start(t, text, o)
	f := b.Func("f")
	in, err := f.Inputs(2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Bytes("x"); !errors.Is(err, piecewise.ErrSize) || !strings.Contains(err.Error(), "symbol K of @f in [1, 50] has no value") {
		t.Errorf("%v", err)
	}
	for _, bad := range []int64{0, 51, -1} {
		if err := in.SetSymbol("K", bad); !errors.Is(err, piecewise.ErrSize) {
			t.Errorf("K = %d: %v", bad, err)
		}
	}
	for name, n := range map[string]int64{"N": 3, "Q": 1} {
		if err := in.SetSymbol(name, n); !errors.Is(err, piecewise.ErrSize) {
			t.Errorf("%s = %d: %v", name, n, err)
		}
	}
	if _, err := in.BytesOf("y", 3); err != nil { // gives K its value
		t.Fatal(err)
	}
	if x, err := in.Bytes("x"); err != nil || len(x) != 4*2*3 {
		t.Fatalf("%d bytes, %v", len(x), err)
	}
	if err := in.SetSymbol("K", 4); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Run(ctx, in, nil); !errors.Is(err, piecewise.ErrSize) || !strings.Contains(err.Error(), "filled with 24 bytes, and needs 32") {
		t.Errorf("%v", err)
	}
	for _, name := range []string{"x", "y"} {
		if _, err := in.Bytes(name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Run(ctx, in, nil); err != nil {
		t.Error(err)
	}
	o.Frozen = true
	o.Device, o.Compile.Compiler = openHost(t), pieces.Pipeline{Backend: host.New()}
	if _, err := piecewise.New(ctx, testkit.Parse(t, text), o); !errors.Is(err, piecewise.ErrFrozen) || !strings.Contains(err.Error(), "graphs of @f: @f: symbol K is bound at each run") {
		t.Errorf("frozen: %v", err)
	}
	o.Capture.Mode = piecewise.None
	create(t, text, o)
}

// An input is kept only if it had the same shape in the previous run; equal bytes are not enough.
func TestKeepOfOtherShape(t *testing.T) {
	text := symbolic("%x: f32[N, K]", "f32[N, K]", "%y = neg(%x); return %y")
	f := start(t, text, piecewise.Options{}).Func("f")
	for i, c := range []struct {
		n, k int64
		kept bool
	}{{2, 6, false}, {2, 6, true}, {3, 4, false}, {3, 4, true}, {4, 4, false}} {
		in, err := f.Inputs(c.n)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.SetSymbol("K", c.k); err != nil {
			t.Fatal(err)
		}
		kept, err := in.Keep("x")
		if err != nil || kept != c.kept {
			t.Errorf("run %d, %d rows of %d: kept %t, %v", i, c.n, c.k, kept, err)
		}
		if !kept {
			if _, err := in.Bytes("x"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.Run(context.Background(), in, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// A tensor on the device sets symbols to its extents.
func TestSetGivesSymbolsValues(t *testing.T) {
	text := symbolic("%x: f32[N, K], %y: f32[K]", "f32[N, K]", "%r = reshape(%y, shape=[1, K]); %s = add(%x, %r); return %s")
	dev := openHost(t)
	b := start(t, text, piecewise.Options{Device: dev})
	in, err := b.Func("f").Inputs(2)
	if err != nil {
		t.Fatal(err)
	}
	onDevice(t, dev, in, "y", []float32{1, 2, 3})
	x, err := in.Float32s("x")
	if err != nil {
		t.Fatal(err)
	}
	copy(x, []float32{10, 20, 30, 40, 50, 60})
	r, err := b.Func("f").Run(context.Background(), in, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantF32(t, read(t, r.At(0)), []float32{11, 22, 33, 41, 52, 63})
	in, err = b.Func("f").Inputs(2)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Set("x", device.Tensor{DType: r.At(0).DType(), Shape: []int64{3, 3}}); !errors.Is(err, piecewise.ErrSize) {
		t.Errorf("3 rows for 2: %v", err)
	}
}

// Sizes of the options that have no effect are errors, or are listed in Plan.Unused with the
// reason; a frozen backend refuses these, too. New and Check have the same errors and lists.
func TestSizesWithoutUse(t *testing.T) {
	store := pieces.NewMemoryStore()
	target := pieces.Pipeline{Backend: host.New()}
	mixing := symbolic("%x: f32[N]", "f32[N]", "%c = cumsum(%x); return %c")
	rowwise := symbolic("%x: f32[N]", "f32[N]", "%c = neg(%x); return %c")
	for _, c := range []struct {
		name, text string
		o          piecewise.Options
		err        []string
		unused     []string
	}{
		{"a capture size above the maximum", rowwise, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1, 8}}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": 7}}}, []string{`capture size 8 is above Options.Memory.Max["N"] = 7`}, nil},
		{"a compile size above the maximum", rowwise, piecewise.Options{Compile: piecewise.CompileOptions{Sizes: []int64{8}}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": 7}}}, []string{`compile size 8 is above Options.Memory.Max["N"] = 7`}, nil},
		{"a range above the maximum", rowwise, piecewise.Options{Compile: piecewise.CompileOptions{Endpoints: []int64{4, 6}}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": 5}}}, []string{`range endpoint 6 is above Options.Memory.Max["N"] = 5`}, nil},
		{"all of them", rowwise, piecewise.Options{Compile: piecewise.CompileOptions{Endpoints: []int64{4, 6}, Sizes: []int64{9}}, Capture: piecewise.CaptureOptions{Sizes: []int64{7}}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": 5}}}, []string{"endpoint 6", "compile size 9 is outside", "capture size 7"}, nil},
		{"endpoints that do not rise", rowwise, piecewise.Options{Compile: piecewise.CompileOptions{Endpoints: []int64{4, 4}}}, []string{"Options.Compile.Endpoints: range endpoints must rise, 4 follows 4"}, nil},
		{"mode none", rowwise, piecewise.Options{Capture: piecewise.CaptureOptions{Sizes: []int64{4, 2, 4}}}, nil, []string{"capture size 2: mode none captures nothing", "capture size 4: mode none captures nothing"}},
		{"a compile size that padding hides", rowwise, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{4, 6}}, Compile: piecewise.CompileOptions{Sizes: []int64{3, 4, 7}}}, nil, []string{"compile size 3: runs of so many rows are padded to a captured size; capture it too"}},
		{"and that nothing hides", mixing, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{4, 6}}, Compile: piecewise.CompileOptions{Sizes: []int64{3, 4, 7}}}, nil, nil},
		{"a range that padding hides", rowwise, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2, 6}}, Compile: piecewise.CompileOptions{Endpoints: []int64{2, 5}}}, nil, []string{"range [3, 5]: runs of so many rows are padded to a captured size above it"}},
		{"a range of compile sizes", mixing, piecewise.Options{Compile: piecewise.CompileOptions{Endpoints: []int64{2, 4, 5}, Sizes: []int64{3, 4, 5, 6, 7}}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": 7}}}, nil, []string{"range [3, 4]: each size in it that runs is a compile size", "range [6, 8]: each size in it that runs is a compile size"}},
		{"a range whose captured size is a compile size", rowwise, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2, 4, 8}}, Compile: piecewise.CompileOptions{Endpoints: []int64{2, 4}, Sizes: []int64{4}}}, nil, []string{"range [3, 4]: each size in it that runs is a compile size"}},
		{"an endpoint at the end", rowwise, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}, Compile: piecewise.CompileOptions{Endpoints: []int64{8}}}, nil, []string{"range endpoint 8: it is the largest size, and no range begins above it"}},
		{"an endpoint at the maximum", rowwise, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}, Compile: piecewise.CompileOptions{Endpoints: []int64{6}}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": 6}}}, nil, nil},
		{"no decode step", rowwise, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullDecodeOnly, Sizes: []int64{2, 4, 8}, DecodeRows: 3}}, nil, []string{"capture size 8: mode full-decode-only, and no uniform batch of at most 3 rows is padded to it"}},
		{"pieces of it", rowwise, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{2, 4, 8}, DecodeRows: 3}}, nil, nil},
		{"a function that is not captured", symbolic("%x: f32[N, K]", "f32[N, K]", "%v = neg(%x); return %v"), piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}}, nil, []string{"capture size 2: the functions of this size are not captured"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Compile.Compiler, c.o.Compile.Store = target, store
			m := testkit.Parse(t, c.text)
			b, err := piecewise.New(context.Background(), m, c.o)
			_, plan, checked := piecewise.Check(m, c.o)
			if fmt.Sprint(err) != fmt.Sprint(checked) {
				t.Errorf("New: %v; Check: %v", err, checked)
			}
			if len(c.err) > 0 {
				for _, w := range c.err {
					if !errors.Is(err, piecewise.ErrSize) || !strings.Contains(err.Error(), w) {
						t.Errorf("%v; want %q", err, w)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, u := range b.Plan().Unused {
				got = append(got, u.String())
			}
			if !slices.Equal(got, c.unused) || !slices.Equal(plan.Unused, b.Plan().Unused) {
				t.Errorf("unused: %q, Check %v, want %q", got, plan.Unused, c.unused)
			}
			c.o.Frozen = true
			_, err = piecewise.New(context.Background(), m, c.o)
			if errors.Is(err, piecewise.ErrFrozen) != (len(c.unused) > 0) {
				t.Errorf("frozen: %v", err)
			}
			if _, _, checked := piecewise.Check(m, c.o); fmt.Sprint(err) != fmt.Sprint(checked) {
				t.Errorf("frozen, New: %v; Check: %v", err, checked)
			}
		})
	}
}

// Full graphs are captured in mode full for every size, and in the decode modes for the sizes that
// a uniform batch can have. Choose says before Load what Run does after Capture, for every batch.
func TestChooseBeforeLoad(t *testing.T) {
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full, piecewise.FullDecodeOnly, piecewise.FullAndPiecewise} {
		o := piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{1, 2, 4, 8, 16}, DecodeRows: 3}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": 20}}, Ops: []device.Op{&sum3{capture: true}}, Device: openHost(t), Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}}
		if mode == piecewise.FullDecodeOnly {
			o.Capture.Sizes = []int64{1, 2, 4}
		}
		b := create(t, nineteen, o)
		f := b.Func("forward")
		before := map[string]piecewise.Choice{}
		for rows := int64(-1); rows < 22; rows++ {
			for _, uniform := range []bool{false, true} {
				before[fmt.Sprint(rows, uniform)] = f.Choose(rows, uniform)
			}
		}
		graphs := b.Plan().Graphs
		if err := errors.Join(b.Load(context.Background(), nil, nil), b.Capture(context.Background()), b.Seal()); err != nil {
			t.Fatal(err)
		}
		if got := b.Stats().GraphsCaptured; got != graphs {
			t.Errorf("mode %s: %d graphs, planned %d", mode, got, graphs)
		}
		whole := map[piecewise.Mode]int64{piecewise.Full: 5, piecewise.FullDecodeOnly: 3, piecewise.FullAndPiecewise: 3 + 5*3, piecewise.Piecewise: 5 * 3}[mode]
		if graphs != whole {
			t.Errorf("mode %s: %d graphs, want %d", mode, graphs, whole)
		}
		for rows := int64(-1); rows < 22; rows++ {
			for _, uniform := range []bool{false, true} {
				c := f.Choose(rows, uniform)
				if was := before[fmt.Sprint(rows, uniform)]; fmt.Sprint(was) != fmt.Sprint(c) {
					t.Errorf("mode %s, %d rows, uniform %t: %+v before Load, %+v now", mode, rows, uniform, was, c)
				}
				in, err := f.Inputs(rows)
				if (err != nil) != (c.Err != nil) {
					t.Errorf("mode %s, %d rows: %v, %+v", mode, rows, err, c)
				}
				if err != nil {
					continue
				}
				in.SetUniform(uniform)
				if _, err := in.Bytes("x"); err != nil {
					t.Fatal(err)
				}
				s := b.Stats()
				if _, err := f.Run(context.Background(), in, nil); err != nil {
					t.Fatal(err)
				}
				n := b.Stats()
				ran := map[piecewise.RunMode]int64{piecewise.RunEager: n.EagerRuns - s.EagerRuns, piecewise.RunPiecewise: n.Replays - s.Replays, piecewise.RunFull: n.FullReplays - s.FullReplays}
				if ran[c.Mode] != 1 || n.PaddedRows-s.PaddedRows != c.Size-rows {
					t.Errorf("mode %s, %d rows, uniform %t: chosen %+v, ran %v", mode, rows, uniform, c, ran)
				}
			}
		}
	}
}

// A warm-up binds every program that a run can use: of captured sizes, of ranges and exact sizes
// without a captured size, of functions without rows, and in mode none.
func TestWarmupRunsEveryProgram(t *testing.T) {
	text := symbolic("%x: f32[N]", "f32[N]", "%v = neg(%x); return %v")
	static := symbolic("%x: f32[5]", "f32[5]", "%v = neg(%x); return %v")
	for _, c := range []struct {
		text string
		o    piecewise.Options
		want int
	}{
		{text, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}, Compile: piecewise.CompileOptions{Endpoints: []int64{2, 5}, Sizes: []int64{7}}}, 4},
		{text, piecewise.Options{Compile: piecewise.CompileOptions{Endpoints: []int64{5}, Sizes: []int64{1, 6, 7}}}, 5}, // ranges that begin with compile sizes
		{text, piecewise.Options{Compile: piecewise.CompileOptions{Endpoints: []int64{5}}}, 2},
		{text, piecewise.Options{Compile: piecewise.CompileOptions{Endpoints: []int64{5}}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": 5}}}, 1}, // no run reaches the other
		{static, piecewise.Options{}, 1},
		{static, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}, 1},
		{symbolic("%x: f32[K]", "f32[K]", "%v = neg(%x); return %v"), piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}, 1},
	} {
		dev := &launches{openHost(t), map[*program.Program]bool{}}
		c.o.Device, c.o.Compile.Compiler = dev, pieces.Pipeline{Backend: host.New()}
		b := create(t, c.text, c.o)
		ctx := context.Background()
		if err := errors.Join(b.Load(ctx, nil, nil), b.Warmup(ctx)); err != nil {
			t.Fatal(err)
		}
		if len(dev.bound) != c.want {
			t.Errorf("%+v: %d programs were bound, want %d", c.o, len(dev.bound), c.want)
		}
	}
}

// launches is a device that records which programs are bound.
type launches struct {
	device.Device
	bound map[*program.Program]bool
}

func (d *launches) Load(p *program.Program, ops device.OpSet) (device.Executable, error) {
	x, err := d.Device.Load(p, ops)
	return noted{x, d}, err
}

func (d *launches) TakeFaults(s device.Stream, list ...device.Executable) ([]device.IndexError, error) {
	return d.Device.TakeFaults(s, inner(list)...)
}

func (d *launches) WatchFaults(of ...device.Executable) (device.FaultWatch, error) {
	return d.Device.WatchFaults(inner(of)...)
}

// inner returns the executables of the device below.
func inner(list []device.Executable) []device.Executable {
	out := make([]device.Executable, len(list))
	for i, x := range list {
		out[i] = x.(noted).Executable
	}
	return out
}

type noted struct {
	device.Executable
	d *launches
}

func (x noted) Bind(symbols []int64, args device.Args) (device.BoundLaunch, error) {
	x.d.bound[x.Program()] = true
	return x.Executable.Bind(symbols, args)
}

// OpCall.RealExtent follows from the types of operands. With 3 rows padded to 4, f32[4] has 4
// elements on its first axis, although 4 is the capture size, and f32[2*N, 3] has 6.
func TestRowsOfOperands(t *testing.T) {
	text := `pwc 1
module "operands" {
  sym N in [1, 16] batch
  op "my::note"(tensor, tensor, tensor, mut tensor) split
  func @f(%x: f32[N], %p: f32[4], %two: f32[2*N, 3]) -> (f32[N], f32[4]) {
    %y = neg(%x)
    %e = empty_like(%p)
    call "my::note"(%y, %p, %two, %e)
    return %y, %e
  }
}
`
	var got []int64
	note := &noteOp{mut: []bool{false, false, false, true}, launch: func(c *device.OpCall) error {
		got = nil
		for i := range c.Args {
			got = append(got, c.RealExtent(i))
		}
		return nil
	}}
	b := start(t, text, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{4}}, Ops: []device.Op{note}})
	in, err := b.Func("f").Inputs(3)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"x", "p", "two"} {
		if _, err := in.Bytes(name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Func("f").Run(context.Background(), in, nil); err != nil {
		t.Fatal(err)
	}
	if want := []int64{3, 4, 6, 4}; !slices.Equal(got, want) || b.Stats().PaddedRows != 1 {
		t.Errorf("real extents %v, want %v; %d rows of padding", got, want, b.Stats().PaddedRows)
	}
}

// noteOp is an extern op without results.
type noteOp struct {
	mut     []bool
	capture bool
	launch  func(c *device.OpCall) error
}

func (o *noteOp) Signature() device.Signature {
	return device.Signature{Name: "my::note", Mut: o.mut, Capture: o.capture}
}
func (o *noteOp) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }
func (o *noteOp) Launch(c *device.OpCall) error                               { return o.launch(c) }

// New and Check refuse an op that cannot be captured, by its declaration or by its implementation,
// in every mode that would capture it. The error has the position of the call and the reason. With
// an empty list of capture sizes Check accepts it.
func TestUncapturableOpsAreRefused(t *testing.T) {
	module := func(flags string) string {
		return `pwc 1
module "uncapturable" {
  sym N in [1, 16] batch
  op "my::note"(tensor, mut tensor) ` + flags + `
  func @f(%x: f32[N]) -> (f32[N]) {
    %e = empty_like(%x)
    call "my::note"(%x, %e)
    return %e
  }
}
`
	}
	for _, c := range []struct {
		flags   string
		capture bool // of the implementation
		refused []piecewise.Mode
		why     string
	}{
		{"split", true, nil, ""},
		{"split", false, []piecewise.Mode{piecewise.Full, piecewise.FullDecodeOnly, piecewise.FullAndPiecewise}, "whose implementation cannot be captured; mode piecewise runs it between graphs"},
		{"split host", true, []piecewise.Mode{piecewise.Full, piecewise.FullDecodeOnly, piecewise.FullAndPiecewise}, "which is declared host"},
		{"capture", true, nil, ""},
		{"capture", false, []piecewise.Mode{piecewise.Piecewise, piecewise.Full, piecewise.FullDecodeOnly, piecewise.FullAndPiecewise}, "whose implementation cannot be captured; split at it"},
		{"", true, []piecewise.Mode{piecewise.Piecewise, piecewise.Full, piecewise.FullDecodeOnly, piecewise.FullAndPiecewise}, "declared neither split nor capture"},
		{"capture host", true, []piecewise.Mode{piecewise.Piecewise, piecewise.Full, piecewise.FullDecodeOnly, piecewise.FullAndPiecewise}, "declared host"},
	} {
		for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full, piecewise.FullDecodeOnly, piecewise.FullAndPiecewise} {
			m := testkit.Parse(t, module(c.flags))
			o := piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode}, Device: openHost(t), Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Ops: []device.Op{&noteOp{mut: []bool{false, true}, capture: c.capture, launch: func(*device.OpCall) error { return nil }}}}
			b, err := piecewise.New(context.Background(), m, o)
			if err == nil {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}
			_, _, checked := piecewise.Check(m, o)
			if fmt.Sprint(err) != fmt.Sprint(checked) {
				t.Errorf("New: %v; Check: %v", err, checked)
			}
			if !slices.Contains(c.refused, mode) {
				if err != nil {
					t.Errorf("%q, mode %s: %v", c.flags, mode, err)
				}
				continue
			}
			var at *ir.Error
			if !errors.Is(err, piecewise.ErrOp) || !errors.As(err, &at) || at.Pos.Line != 7 || !strings.Contains(err.Error(), c.why) {
				t.Errorf("%q, mode %s: %v; want line 7 and %q", c.flags, mode, err, c.why)
			}
			if full := strings.Contains(err.Error(), "in mode piecewise") || strings.Contains(err.Error(), "mode piecewise runs it"); full != (mode != piecewise.Piecewise) {
				t.Errorf("%q, mode %s: %v; only a mode with full graphs must be changed", c.flags, mode, err)
			}
			o.Capture.Sizes = []int64{}
			if _, _, err := piecewise.Check(m, o); err != nil {
				t.Errorf("%q, mode %s, nothing is captured: %v", c.flags, mode, err)
			}
		}
	}
}

// Bytes of inputs and results follow from types: with random extents over three symbols, on up to
// three axes, a run has the results of the interpreter.
func TestExtentsOfRuns(t *testing.T) {
	dev := openHost(t)
	store := pieces.NewMemoryStore()
	rapid.Check(t, func(rt *rapid.T) {
		extent := rapid.SampledFrom([]string{"N", "M", "K", "2*N", "3", "N + 1", "N*M", "1", "2*M"})
		draw := func(name string) string {
			return "f32[" + strings.Join(rapid.SliceOfN(extent, 1, 3).Draw(rt, name), ", ") + "]"
		}
		x, y := draw("x"), draw("y")
		text := symbolic("%x: "+x+", %y: "+y, y+", "+x, "%a = neg(%x); %b = mul(%y, 2.0); return %b, %a")
		mode := rapid.SampledFrom([]piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full}).Draw(rt, "mode")
		o := piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode}, Device: dev, Compile: piecewise.CompileOptions{Store: store, Compiler: pieces.Pipeline{Backend: host.New()}}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"K": 9}}, Debug: piecewise.DebugOptions{Poison: true}}
		b := create(t, text, o)
		defer func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}()
		ctx := context.Background()
		if err := errors.Join(b.Load(ctx, nil, nil), b.Capture(ctx), b.Seal()); err != nil {
			t.Fatal(err)
		}
		small := rapid.Int64Range(1, 8)
		for i := range 3 {
			v := map[string]int64{"N": small.Draw(rt, fmt.Sprint("N", i)), "M": small.Draw(rt, fmt.Sprint("M", i)), "K": small.Draw(rt, fmt.Sprint("K", i))}
			got, want := bindRun(t, b, text, v)
			for j := range want {
				if d := interp.Compare(got[j], want[j]); !d.Within(0) {
					rt.Fatalf("mode %s, %v, result %d: %s\n%s", mode, v, j, d, text)
				}
			}
		}
	})
}
