package host

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"pwc/internal/testkit"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/program/vec"
	"pwc/runtime/device"
	"pwc/runtime/device/devicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for _, workers := range []int{1, 3} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			devicetest.Run(t, devicetest.Suite{
				Open:    func(t testing.TB) device.Device { return openDevice(t, workers) },
				Program: suiteProgram,
			})
		})
	}
}

// suiteProgram returns the suite's programs as vector programs.
func suiteProgram(t testing.TB, name string) *program.Program {
	t.Helper()
	n := testkit.Dims(t, "N")
	kernel := func(k *vec.Kernel) program.Kernel {
		code, err := k.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return program.Kernel{Name: name, Code: code}
	}
	x := program.Param{DType: dtype.F32, Shape: n}
	param := func(i int32) program.Buffer {
		return program.Buffer{Kind: program.BufferParam, Index: i, DType: dtype.F32, Shape: n}
	}
	p := &program.Program{
		Target: Target, Symbols: []string{"N"},
		Guards:  []program.Guard{{Expr: n[0], Lo: 1, Hi: devicetest.MaxN}},
		Params:  []program.Param{x},
		Results: []program.Result{{DType: dtype.F32, Shape: n, Alias: -1, Same: -1}},
	}
	result := program.Buffer{Kind: program.BufferResult, DType: dtype.F32, Shape: n}
	switch name {
	case devicetest.Add2:
		add := pointwiseF(1, vec.OpAdd, 2)
		add.Loop.Inner = n
		p.Params = append(p.Params, x)
		p.Kernels = []program.Kernel{kernel(add)}
		scratch := result
		scratch.Kind, scratch.Last = program.BufferScratch, 1
		p.Buffers = []program.Buffer{param(0), param(1), scratch, result}
		p.Steps = []program.Step{{Args: []int32{0, 1, 2}}, {Args: []int32{2, 1, 3}}}
	case devicetest.Gather:
		k := &vec.Kernel{Args: 3, Loop: vec.Loop{
			Inner: n, Regs: vec.RegCount{F: 1, I: 1},
			Access: []vec.Access{flat(1, dtype.I32),
				{Arg: 0, DType: dtype.F32, Inner: testkit.Consts(0), Index: &vec.Index{Stride: dim.Const(1), Extent: dim.Const(devicetest.TableLen), Origin: devicetest.GatherNode}},
				flat(2, dtype.F32)},
			Phases: []vec.Phase{{Body: []vec.Instr{{Op: vec.OpLoadI, X: 0}, {Op: vec.OpLoadF, X: 1}, {Op: vec.OpStoreF, X: 2}}}}}}
		p.Params[0].Shape = testkit.Consts(devicetest.TableLen)
		p.Params = append(p.Params, program.Param{DType: dtype.I32, Shape: n})
		p.Kernels = []program.Kernel{kernel(k)}
		table, index := param(0), param(1)
		table.Shape, index.DType = testkit.Consts(devicetest.TableLen), dtype.I32
		p.Buffers = []program.Buffer{table, index, result}
		p.Steps = []program.Step{{Args: []int32{0, 1, 2}, Origin: devicetest.GatherNode}}
	case devicetest.Extern:
		p.Buffers = []program.Buffer{param(0), result}
		p.Steps = []program.Step{{Kind: program.StepExtern, Extern: devicetest.ExternOp, Args: []int32{0, 1},
			Attrs: []program.Attr{{Name: "factor", Kind: program.AttrFloat, Float: 1}}}}
	default:
		t.Fatalf("no program %q", name)
	}
	return p
}

// TestNoAllocations holds that launches and replays allocate nothing, on one
// worker and on several, for each form of kernel: loops, GEMMs, top-k, attention and its gradient.
func TestNoAllocations(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, workers := range []int{1, 4} {
		d := openDevice(t, workers)
		const n = 1 << 16
		silu := pointwiseF(n, vec.OpSilu, 1)
		rows := &vec.Kernel{Args: 2, Loop: vec.Loop{
			Outer: testkit.Consts(256), Inner: testkit.Consts(256), Regs: vec.RegCount{F: 2, SF: 1},
			Access: []vec.Access{{Arg: 0, DType: dtype.BF16, Outer: testkit.Consts(256), Inner: testkit.Consts(1)}, {Arg: 1, DType: dtype.BF16, Outer: testkit.Consts(1), Inner: testkit.Consts(256)}},
			Phases: []vec.Phase{{Body: []vec.Instr{{Op: vec.OpLoadF, X: 0}, {Op: vec.OpSum, Dst: 0, A: 0}}},
				{Pre: []vec.Instr{{Op: vec.OpSplatF, Dst: 1, A: 0}}, Body: []vec.Instr{{Op: vec.OpLoadF, X: 0}, {Op: vec.OpMul, Dst: 0, A: 0, B: 1}, {Op: vec.OpStoreF, A: 0, X: 1}}}}}}
		for name, l := range map[string]*loaded{
			"pointwise": load(t, d, silu, zeros(dtype.F32, n), zeros(dtype.F32, n)),
			"rows":      load(t, d, rows, zeros(dtype.BF16, n), zeros(dtype.BF16, n)),
			"product":   load(t, d, product(1, 100, 300, 200, dtype.BF16, dtype.BF16, dtype.BF16, false), randoms(r, dtype.BF16, 100*200), randoms(r, dtype.BF16, 300*200), zeros(dtype.BF16, 100*300)),
			"gemv":      load(t, d, product(1, 1, 2048, 512, dtype.BF16, dtype.BF16, dtype.BF16, false), zeros(dtype.BF16, 512), zeros(dtype.BF16, 2048*512), zeros(dtype.BF16, 2048)),
			"selection": load(t, d, selection(64, 4096, 50, dtype.F32), zeros(dtype.F32, 64*4096), zeros(dtype.F32, 64*50), zeros(dtype.I32, 64*50)),
			"experts":   load(t, d, experts(64, 4, 32, 40, 2, dtype.F32, dtype.BF16), zeros(dtype.F32, 64*40), zeros(dtype.BF16, 4*32*40), zeros(dtype.F32, 128*32), zeros(dtype.I32, 128)),
			"attention": load(t, d, attentionKernel(1, 64, 2, 1, 16, dtype.BF16, false), zeros(dtype.BF16, 64*32), zeros(dtype.BF16, 64*16), zeros(dtype.BF16, 64*16), zeros(dtype.BF16, 64*32), zeros(dtype.F32, 64*2)),
			"gradient": load(t, d, attentionKernel(1, 64, 2, 1, 16, dtype.BF16, true), zeros(dtype.BF16, 64*32), zeros(dtype.BF16, 64*16), zeros(dtype.BF16, 64*16), zeros(dtype.BF16, 64*32), zeros(dtype.F32, 64*2),
				zeros(dtype.F32, 64*2), zeros(dtype.BF16, 64*32), zeros(dtype.BF16, 64*16), zeros(dtype.BF16, 64*16)),
		} {
			if err := l.stream.BeginCapture(device.CaptureThreadLocal); err != nil {
				t.Fatal(err)
			}
			if err := l.stream.Launch(l.launch); err != nil {
				t.Fatal(err)
			}
			g, err := l.stream.EndCapture()
			if err != nil {
				t.Fatal(err)
			}
			// Each helper makes room for a kernel the first time it takes part.
			for range 50 {
				l.run(t, 0)
			}
			if got := testing.AllocsPerRun(20, func() {
				if err := l.stream.Launch(l.launch); err != nil {
					t.Fatal(err)
				}
			}); got != 0 {
				t.Errorf("%s on %d workers: a launch allocates %v times", name, workers, got)
			}
			if got := testing.AllocsPerRun(20, func() {
				if err := l.stream.LaunchGraph(g); err != nil {
					t.Fatal(err)
				}
			}); got != 0 {
				t.Errorf("%s on %d workers: a replay allocates %v times", name, workers, got)
			}
		}
	}
}

// TestStreamsAtOnce launches on several streams of one device at the same time.
func TestStreamsAtOnce(t *testing.T) {
	d := openDevice(t, 3)
	const n = 1 << 16
	var wg sync.WaitGroup
	for i := range 4 {
		l := load(t, d, pointwiseF(n, vec.OpAdd, 2), floats(dtype.F32, repeat(n, float64(i))...), floats(dtype.F32, repeat(n, 1)...), zeros(dtype.F32, n))
		wg.Go(func() {
			for range 20 {
				if err := l.stream.Launch(l.launch); err != nil {
					t.Error(err)
				}
			}
			out := make([]byte, 4*n)
			if err := l.stream.CopyToHost(out, l.mem[2]); err != nil {
				t.Error(err)
			}
			for j, v := range (tensor{dtype.F32, out}).values() {
				if v != float64(i+1) {
					t.Errorf("stream %d: element %d is %v, want %d", i, j, v, i+1)
					return
				}
			}
		})
	}
	wg.Wait()
}

func repeat(n int, v float64) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// TestStepsOfPrograms runs kernels in order, variants and constants.
func TestStepsOfPrograms(t *testing.T) {
	d := openDevice(t, 1)
	code := func(op vec.Op) program.Kernel {
		k := pointwiseF(1, op, 1)
		k.Loop.Inner = testkit.Dims(t, "N")
		b, err := k.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return program.Kernel{Name: op.String(), Code: b}
	}
	n := testkit.Dims(t, "N")
	result := func(i int32) program.Buffer {
		return program.Buffer{Kind: program.BufferResult, Index: i, DType: dtype.F32, Shape: n}
	}
	p := &program.Program{
		Target: Target, Symbols: []string{"N"},
		Results: []program.Result{{DType: dtype.F32, Shape: n, Alias: -1, Same: -1}, {DType: dtype.F32, Shape: n, Alias: -1, Same: 0}, {DType: dtype.F32, Shape: n, Alias: -1, Same: -1}},
		Consts:  [][]byte{floats(dtype.F32, 1, -2).data},
		Buffers: []program.Buffer{result(0), result(2), {Kind: program.BufferConst, DType: dtype.F32, Shape: testkit.Consts(2)}, {Kind: program.BufferScratch, DType: dtype.F32, Shape: testkit.Consts(2), First: 1, Last: 2}},
		Kernels: []program.Kernel{code(vec.OpNeg), code(vec.OpAbs)},
		Steps: []program.Step{
			{Kernel: 1, Args: []int32{2, 0}},
			{Kernel: 1, Args: []int32{2, 3}},
			{Kind: program.StepChoice, Variants: []program.Variant{
				{Steps: []program.Step{{Kind: program.StepLibrary, Extern: "lib::neg", Args: []int32{3, 1}}}},
				{Guard: program.Guard{Expr: n[0], Lo: 1, Hi: 1}, Steps: []program.Step{{Kernel: 0, Args: []int32{3, 1}}, {Kernel: 1, Args: []int32{1, 1}}}},
				{Steps: []program.Step{{Kernel: 0, Args: []int32{3, 1}}}}}},
		},
	}
	x, err := d.Load(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int64]string{2: "[1 2] [-1 -2]", 1: "[1] [1]"} {
		scratch, err := x.ScratchBytes([]int64{n})
		if err != nil || scratch != 8 {
			t.Fatalf("scratch of %d bytes, %v, want 8", scratch, err)
		}
		m, err := d.Alloc(256)
		if err != nil {
			t.Fatal(err)
		}
		all := device.Buffer{Memory: m, Size: 256}
		l, err := x.Bind([]int64{n}, device.Args{Results: []device.Buffer{all.Slice(0, 4*n), {}, all.Slice(64, 4*n)}, Scratch: all.Slice(128, 8)})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Launch(l); err != nil {
			t.Fatal(err)
		}
		out := make([]byte, 256)
		if err := s.CopyToHost(out, all); err != nil {
			t.Fatal(err)
		}
		got := show(tensor{dtype.F32, out[:4*n]}) + " " + show(tensor{dtype.F32, out[64 : 64+4*n]})
		if got != want {
			t.Errorf("N=%d: %s, want %s", n, got, want)
		}
	}
}

// TestLoadOfAMissingCollective: Load refuses a program if a collective of a choice's last variant is missing.
func TestLoadOfAMissingCollective(t *testing.T) {
	d := openDevice(t, 1)
	const name = program.CollectivePrefix + "all_reduce"
	p := &program.Program{
		Target: Target,
		Steps:  []program.Step{{Kind: program.StepChoice, Variants: []program.Variant{{Steps: []program.Step{{Kind: program.StepLibrary, Extern: name}}}}}},
	}
	if _, err := d.Load(p, nil); err == nil || !strings.Contains(err.Error(), "step 0: the device has no library routine") {
		t.Errorf("%v, want that step 0 needs routine %s", err, name)
	}
}

// TestCalls holds that Go code runs when it is enqueued, or at every replay if it was captured, and that
// Parallel runs each part once.
func TestCalls(t *testing.T) {
	d := openDevice(t, 2)
	ds, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	s := ds.(*Stream)
	count := 0
	var fail error
	call := func() error { count++; return fail }
	if err := s.Call(call); err != nil || count != 1 {
		t.Fatalf("%d calls, %v, want one", count, err)
	}
	if err := s.BeginCapture(device.CaptureThreadLocal); err != nil {
		t.Fatal(err)
	}
	if err := s.Call(call); err != nil || count != 1 {
		t.Fatalf("%d calls, %v, want that the capture adds none", count, err)
	}
	g, err := s.EndCapture()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := s.LaunchGraph(g); err != nil {
			t.Fatal(err)
		}
	}
	if count != 4 {
		t.Errorf("%d calls after three replays, want 4", count)
	}
	fail = errors.New("sentinel")
	if err := s.LaunchGraph(g); !errors.Is(err, fail) {
		t.Errorf("%v, want the call's error", err)
	}
	var seen [100]int
	s.Parallel(len(seen), func(part int) { seen[part]++ })
	for part, n := range seen {
		if n != 1 {
			t.Errorf("part %d ran %d times, want once", part, n)
		}
	}
}

// TestMemoryLimit holds that the limit counts the bytes that are in use.
func TestMemoryLimit(t *testing.T) {
	d := Open(Options{Workers: 1, MemoryBytes: 1000})
	defer d.Close()
	if d.Info().MemoryBytes != 1000 {
		t.Errorf("Info has %d bytes, want 1000", d.Info().MemoryBytes)
	}
	a, err := d.Alloc(600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Alloc(401)
	var m *device.MemoryError
	if !errors.As(err, &m) || m.Asked != 401 || m.Active != 600 || m.Limit != 1000 {
		t.Errorf("401 bytes after 600 of 1000: %v, want a MemoryError", err)
	}
	if err := a.Free(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Alloc(1000); err != nil {
		t.Error(err)
	}
}

func BenchmarkLaunch(b *testing.B) {
	d := openDevice(b, 1)
	l := load(b, d, pointwiseF(1, vec.OpNeg, 1), zeros(dtype.F32, 1), zeros(dtype.F32, 1))
	b.ReportAllocs()
	for b.Loop() {
		if err := l.stream.Launch(l.launch); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBind(b *testing.B) {
	d := openDevice(b, 1)
	l := load(b, d, pointwiseF(1, vec.OpNeg, 1), zeros(dtype.F32, 1), zeros(dtype.F32, 1))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.exec.Bind(nil, device.Args{Params: l.mem}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPointwise(b *testing.B) {
	for _, op := range []vec.Op{vec.OpAdd, vec.OpExp, vec.OpSilu, vec.OpTanh, vec.OpGelu, vec.OpRoundBF16} {
		for _, n := range []int64{1 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", op, n), func(b *testing.B) {
				d := openDevice(b, 0)
				k := pointwiseF(n, op, 2)
				l := load(b, d, k, zeros(dtype.F32, int(n)), zeros(dtype.F32, int(n)), zeros(dtype.F32, int(n)))
				b.SetBytes(12 * n)
				for b.Loop() {
					if err := l.stream.Launch(l.launch); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
