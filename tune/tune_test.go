package tune

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"pwc/cache"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/cublaslt"
	"pwc/runtime/device"
)

// kernel is a kernel for any GPU. It does nothing.
const kernel = `.version 7.0
.target sm_50
.address_size 64
.visible .entry own(.param .u64 a, .param .u64 b, .param .u64 c) { ret; }
`

// gemmProgram returns a program with two GEMMs of depth 256: one has 512 columns and one
// 128. Its own kernel does nothing, so it is faster than the library.
func gemmProgram(t testing.TB, target string) *program.Program {
	t.Helper()
	own, err := program.CUDAKernel("own", nil, []byte(kernel))
	if err != nil {
		t.Fatal(err)
	}
	n := dim.Sym("N")
	c := func(v int64) dim.Dim { return dim.Const(v) }
	bf16 := func(d ...dim.Dim) program.Param {
		return program.Param{Kind: program.ParamWeight, DType: dtype.BF16, Shape: d}
	}
	p := &program.Program{Target: target, Symbols: []string{"N"},
		Params:  []program.Param{bf16(n, c(256)), bf16(c(512), c(256)), bf16(c(128), c(256))},
		Results: []program.Result{{DType: dtype.BF16, Shape: []dim.Dim{n, c(512)}, Alias: -1, Same: -1}},
		Kernels: []program.Kernel{own},
	}
	for i, x := range p.Params {
		p.Buffers = append(p.Buffers, program.Buffer{Kind: program.BufferParam, Index: int32(i), DType: x.DType, Shape: x.Shape, Align: 64})
	}
	p.Buffers = append(p.Buffers, program.Buffer{Kind: program.BufferResult, DType: dtype.BF16, Shape: p.Results[0].Shape, Align: 64},
		program.Buffer{Kind: program.BufferScratch, DType: dtype.BF16, Shape: []dim.Dim{n, c(128)}, Align: 64, First: 1, Last: 1})
	for i, cols := range []int64{512, 128} {
		dims := func(name string, ds ...dim.Dim) program.Attr {
			return program.Attr{Name: name, Kind: program.AttrDims, Dims: ds}
		}
		args := []int32{0, int32(i) + 1, int32(i) + 3}
		call := program.Step{Kind: program.StepLibrary, Extern: cublaslt.MatmulName, Args: args, Attrs: []program.Attr{
			dims(cublaslt.AttrSize, n, c(cols), c(256), c(1)), dims(cublaslt.AttrX, c(0), c(256), c(0)), dims(cublaslt.AttrW, c(0), c(256), c(0)), dims(cublaslt.AttrY, c(0), c(cols), c(0))}}
		own := program.Step{Args: args, Launch: program.Launch{Grid: [3]dim.Dim{c(1), c(1), c(1)}, Block: [3]int32{32, 1, 1}}}
		p.Steps = append(p.Steps, program.Step{Kind: program.StepChoice, Variants: []program.Variant{
			{Guard: program.Guard{Expr: n, Lo: 2, Hi: 512}, Steps: []program.Step{call}}, {Steps: []program.Step{own}}}})
	}
	return p
}

// TestAlone: a program of one variant of a step is valid, has memory only for that step, and
// the original program does not change.
func TestAlone(t *testing.T) {
	p := gemmProgram(t, "cuda:sm_90")
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	for step, want := range []string{"[8 256] [512 256] [0] [8 512] scratch 0", "[8 256] [0] [128 256] [0] scratch 2048"} {
		for v := range 2 {
			q := alone(p, p.Steps[step].Variants[v].Steps)
			if err := q.Validate(); err != nil {
				t.Fatal(err)
			}
			env, err := device.Env(q, []int64{8}, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			shapes := [][]dim.Dim{q.Params[0].Shape, q.Params[1].Shape, q.Params[2].Shape, q.Results[0].Shape}
			for _, s := range shapes {
				var ns []int64
				for _, d := range s {
					n, err := d.Eval(env)
					if err != nil {
						t.Fatal(err)
					}
					ns = append(ns, n)
				}
				got = append(got, fmt.Sprint(ns))
			}
			_, scratch, err := q.ScratchLayout(env)
			if err != nil {
				t.Fatal(err)
			}
			if text := fmt.Sprintf("%s scratch %d", strings.Join(got, " "), scratch); text != want {
				t.Errorf("step %d, variant %d: %s, want %s", step, v, text, want)
			}
		}
	}
	if p.Buffers[4].First != 1 || p.Params[1].Shape[0].String() != "512" {
		t.Error("the program itself was changed")
	}
}

// TestRecords stores choices and looks them up.
func TestRecords(t *testing.T) {
	s := cache.New(cache.Options{Dir: t.TempDir()})
	key := cublaslt.Key{GPU: "NVIDIA H200", Version: 130100, GEMM: "32 x 64 x 128"}
	o := Options{Store: s}
	for _, want := range []cublaslt.Choice{{Algorithm: [8]uint64{1, 2, 3}}, {Own: true}} {
		if err := o.keep(context.Background(), &Result{Key: key, Choice: want, Own: 5, Best: 6, Heuristic: 7}); err != nil {
			t.Fatal(err)
		}
		if got, ok := Records(s).Lookup(key); !ok || got != want {
			t.Errorf("%+v, %v, want %+v", got, ok, want)
		}
	}
	if r, _ := s.Tuning(keyOf(key)); r.Time != 5 || r.Before != 7 || r.Library != "cublaslt 130100" {
		t.Errorf("%+v", r)
	}
	other := key
	other.Version++
	if _, ok := Records(s).Lookup(other); ok {
		t.Error("a record of another version of the library")
	}
	if err := s.PutTuning(context.Background(), cache.Tuning{TuningKey: keyOf(other), Choice: "fast"}); err != nil {
		t.Fatal(err)
	}
	if _, ok := Records(s).Lookup(other); ok {
		t.Error("a record whose choice is not JSON")
	}
}

// TestRunOnGPU measures GEMMs on a GPU. The program's own kernel, which does nothing, is
// chosen for all of them.
func TestRunOnGPU(t *testing.T) {
	skip := t.Skip
	if os.Getenv("PWC_REQUIRE_GPU") == "1" {
		skip = t.Fatal
	}
	dev, err := cuda.Open(cuda.Options{})
	if err != nil {
		skip(err)
	}
	defer func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	lib, err := cublaslt.Open(dev, cublaslt.Options{})
	if err != nil {
		skip(err)
	}
	p := gemmProgram(t, dev.Info().Target)
	store := cache.New(cache.Options{Dir: t.TempDir()})
	var jobs []piecewise.Sized
	for _, n := range []int64{1, 8, 64, 64} {
		jobs = append(jobs, piecewise.Sized{Program: p, Symbols: []int64{n}})
	}
	var told []string
	o := Options{Device: dev, Library: lib, Store: store, Memory: 256 << 20, Candidates: 4, Progress: func(done, of int, gemm string) { told = append(told, fmt.Sprint(done, " of ", of)) }}
	found, err := Run(context.Background(), jobs, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 4 || strings.Join(told, ", ") != "0 of 4, 1 of 4, 2 of 4, 3 of 4" {
		t.Errorf("%d GEMMs, progress %q", len(found), told)
	}
	for _, r := range found {
		if !r.Choice.Own || r.Own <= 0 || r.Heuristic <= r.Own || r.Best > r.Heuristic || r.Tried < 1 || r.Kernel != "own" {
			t.Errorf("%+v", r)
		}
	}
	records, err := store.Tunings(context.Background())
	if err != nil || len(records) != 4 {
		t.Errorf("%d records, %v", len(records), err)
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(canceled, jobs, o); err == nil {
		t.Error("Run with a canceled context returned no error")
	}
}
