package host

import (
	"errors"
	"math"
	"strings"
	"testing"

	"pwc/internal/testkit"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/program/vec"
	"pwc/runtime/device"
)

// TestOutOfBounds: Bind refuses accesses with addresses outside their buffers, for every part
// of an address.
func TestOutOfBounds(t *testing.T) {
	d := openDevice(t, 1)
	big := int64(math.MaxInt64)
	for name, change := range map[string]func(k *vec.Kernel){
		"offset":          func(k *vec.Kernel) { k.Loop.Access[0].Offset = dim.Const(1) },
		"offset below":    func(k *vec.Kernel) { k.Loop.Access[0].Offset = dim.Const(-1) },
		"inner stride":    func(k *vec.Kernel) { k.Loop.Access[0].Inner = testkit.Consts(2) },
		"negative stride": func(k *vec.Kernel) { k.Loop.Access[0].Inner = testkit.Consts(-1) },
		"outer stride":    func(k *vec.Kernel) { k.Loop.Access[0].Outer = testkit.Consts(5) },
		"extent":          func(k *vec.Kernel) { k.Loop.Inner = testkit.Consts(5) },
		"rows":            func(k *vec.Kernel) { k.Loop.Outer = testkit.Consts(3) },
		"store":           func(k *vec.Kernel) { k.Loop.Access[1].Offset = dim.Const(1) },
		"wider dtype":     func(k *vec.Kernel) { k.Loop.Access[0].DType = dtype.I64 },
		"index":           func(k *vec.Kernel) { k.Loop.Access[0].Index = &vec.Index{Stride: dim.Const(1), Extent: dim.Const(2)} },
		"overflowing stride": func(k *vec.Kernel) {
			k.Loop.Access[0].Outer = testkit.Consts(big)
		},
		"least stride": func(k *vec.Kernel) { k.Loop.Access[0].Outer = testkit.Consts(math.MinInt64) },
		"strides cancel": func(k *vec.Kernel) {
			k.Loop.Access[0].Outer, k.Loop.Access[0].Inner = testkit.Consts(big), testkit.Consts(-big)
		},
		"huge space": func(k *vec.Kernel) { k.Loop.Outer, k.Loop.Inner = testkit.Consts(1<<40), testkit.Consts(1<<40) },
		"negative extent": func(k *vec.Kernel) {
			k.Loop.Outer = testkit.Consts(-1)
		},
	} {
		for _, phases := range []int{1, 2} { // collapsed and by rows
			k := &vec.Kernel{Args: 2, Loop: vec.Loop{
				Outer: testkit.Consts(2), Inner: testkit.Consts(4), Regs: vec.RegCount{F: 1, I: 1},
				Access: []vec.Access{{Arg: 0, DType: dtype.F32, Outer: testkit.Consts(4), Inner: testkit.Consts(1)}, {Arg: 1, DType: dtype.F32, Outer: testkit.Consts(4), Inner: testkit.Consts(1)}}}}
			body := vec.Phase{Body: []vec.Instr{{Op: vec.OpConstI}, {Op: vec.OpLoadF, X: 0}, {Op: vec.OpStoreF, X: 1}}}
			for range phases {
				k.Loop.Phases = append(k.Loop.Phases, body)
			}
			args := []tensor{zeros(dtype.F32, 8), zeros(dtype.F32, 8)}
			if _, err := tryLoad(t, d, k, args...); err != nil {
				t.Fatalf("without a change: %v", err)
			}
			change(k)
			if _, err := tryLoad(t, d, k, args...); err == nil {
				t.Errorf("%s, %d phases: Bind accepts it\n%s", name, phases, k)
			}
		}
	}
}

func TestOutOfBoundsProducts(t *testing.T) {
	d := openDevice(t, 1)
	for name, change := range map[string]func(k *vec.Kernel){
		"K":       func(k *vec.Kernel) { k.MatMul.K = dim.Const(5) },
		"-K":      func(k *vec.Kernel) { k.MatMul.K = dim.Const(-1) },
		"row":     func(k *vec.Kernel) { k.MatMul.A.Row = dim.Const(5) },
		"B row":   func(k *vec.Kernel) { k.MatMul.B.Row = dim.Const(-4) },
		"column":  func(k *vec.Kernel) { k.MatMul.B.Col = dim.Const(2) },
		"batch":   func(k *vec.Kernel) { k.MatMul.A.Batch = testkit.Consts(math.MaxInt64) },
		"offset":  func(k *vec.Kernel) { k.MatMul.B.Offset = dim.Const(1) },
		"dtype":   func(k *vec.Kernel) { k.MatMul.B.DType = dtype.F32 },
		"rows":    func(k *vec.Kernel) { k.Loop.Outer = testkit.Consts(2, 4) },
		"batches": func(k *vec.Kernel) { k.Loop.Outer = testkit.Consts(3, 3) },
		"columns": func(k *vec.Kernel) { k.Loop.Inner = testkit.Consts(6) },
	} {
		k := product(2, 3, 5, 4, dtype.F32, dtype.BF16, dtype.F32, false)
		k.Loop.Access[0].Inner, k.Loop.Access[0].Outer = testkit.Consts(0), testkit.Consts(0, 0) // leave the operands to be checked
		args := []tensor{zeros(dtype.F32, 24), zeros(dtype.BF16, 40), zeros(dtype.F32, 30)}
		if _, err := tryLoad(t, d, k, args...); err != nil {
			t.Fatalf("without a change: %v", err)
		}
		change(k)
		if _, err := tryLoad(t, d, k, args...); err == nil {
			t.Errorf("%s: Bind accepts it\n%s", name, k)
		}
	}
	for name, change := range map[string]func(k *vec.TopK){
		"N":         func(k *vec.TopK) { k.N = dim.Const(5) },
		"K above N": func(k *vec.TopK) { k.K = 5 },
		"input":     func(k *vec.TopK) { k.In.Offset = dim.Const(1) },
		"values":    func(k *vec.TopK) { k.Values.Outer = testkit.Consts(4) },
		"indices":   func(k *vec.TopK) { k.Index.Inner = testkit.Consts(2) },
	} {
		k := selection(3, 4, 2, dtype.F32)
		args := []tensor{zeros(dtype.F32, 12), zeros(dtype.F32, 6), zeros(dtype.I32, 6)}
		if _, err := tryLoad(t, d, k, args...); err != nil {
			t.Fatalf("without a change: %v", err)
		}
		change(k.TopK)
		if _, err := tryLoad(t, d, k, args...); err == nil {
			t.Errorf("%s: Bind accepts it\n%s", name, k)
		}
	}
	for name, change := range map[string]func(k *vec.Attention){
		"queries":   func(k *vec.Attention) { k.Queries, k.Keys = dim.Const(6), dim.Const(6) },
		"-queries":  func(k *vec.Attention) { k.Queries, k.Keys = dim.Const(-5), dim.Const(-5) },
		"heads":     func(k *vec.Attention) { k.Heads = 8 },
		"groups":    func(k *vec.Attention) { k.Heads, k.Groups = 6, 6 },
		"elements":  func(k *vec.Attention) { k.Size = 4 },
		"offset":    func(k *vec.Attention) { k.V.Offset = dim.Const(1) },
		"batch":     func(k *vec.Attention) { k.K.Outer = testkit.Consts(math.MaxInt64) },
		"sequence":  func(k *vec.Attention) { k.Grad.DK.Inner = testkit.Consts(-6, 3, 1) },
		"gradients": func(k *vec.Attention) { k.Grad.DQ.Inner = testkit.Consts(12, 3, 2) },
		"rows":      func(k *vec.Attention) { k.Grad.Delta.Inner = testkit.Consts(4, 2) },
	} {
		k := attentionKernel(2, 5, 4, 2, 3, dtype.BF16, true)
		var args []tensor
		for _, n := range []int{120, 60, 60, 120, 0, 0, 120, 60, 60} {
			if n == 0 {
				args = append(args, zeros(dtype.F32, 40))
			} else {
				args = append(args, zeros(dtype.BF16, n))
			}
		}
		if _, err := tryLoad(t, d, k, args...); err != nil {
			t.Fatalf("without a change: %v", err)
		}
		change(k.Attention)
		if _, err := tryLoad(t, d, k, args...); err == nil {
			t.Errorf("%s: Bind accepts it\n%s", name, k)
		}
	}
}

// TestZeroExtents runs loops without columns, and GEMMs without rows, columns or depth.
func TestZeroExtents(t *testing.T) {
	d := openDevice(t, 2)
	sum := &vec.Kernel{Args: 2, Loop: vec.Loop{
		Outer: testkit.Consts(3), Inner: testkit.Consts(0), Regs: vec.RegCount{F: 1, SF: 4, SI: 3, I: 1},
		Access: []vec.Access{{Arg: 0, DType: dtype.F32, Outer: testkit.Consts(0), Inner: testkit.Consts(1)}, {Arg: 1, DType: dtype.F32, Outer: testkit.Consts(4), Inner: testkit.Consts(0)},
			{Arg: 1, DType: dtype.F32, Offset: dim.Const(1), Outer: testkit.Consts(4), Inner: testkit.Consts(0)}, {Arg: 1, DType: dtype.F32, Offset: dim.Const(2), Outer: testkit.Consts(4), Inner: testkit.Consts(0)}, {Arg: 1, DType: dtype.F32, Offset: dim.Const(3), Outer: testkit.Consts(4), Inner: testkit.Consts(0)}},
		Phases: []vec.Phase{
			{Body: []vec.Instr{{Op: vec.OpLoadF, X: 0}, {Op: vec.OpSum, Dst: 0}, {Op: vec.OpRMax, Dst: 1}, {Op: vec.OpRMin, Dst: 2}, {Op: vec.OpProd, Dst: 3}}},
			{Scalar: []vec.Instr{{Op: vec.OpStoreF, A: 0, X: 1}, {Op: vec.OpStoreF, A: 1, X: 2}, {Op: vec.OpStoreF, A: 2, X: 3}, {Op: vec.OpStoreF, A: 3, X: 4}}},
		}}}
	got := load(t, d, sum, zeros(dtype.F32, 0), empty(dtype.F32, 12)).run(t, 1).values()
	for i, v := range got {
		if want := []float64{0, -inf, inf, 1}[i%4]; !same(v, want) {
			t.Errorf("reduction %d of nothing = %v, want %v", i%4, v, want)
		}
	}
	none := pointwiseF(0, vec.OpAdd, 2)
	load(t, d, none, zeros(dtype.F32, 0), zeros(dtype.F32, 0), zeros(dtype.F32, 0)).run(t, 2)
	const many = 1 << 50 // rows without columns: to visit each would take days
	scan := &vec.Kernel{Args: 2, Loop: vec.Loop{
		Outer: testkit.Consts(many), Inner: testkit.Consts(0), Regs: vec.RegCount{F: 2},
		Access: []vec.Access{{Arg: 0, DType: dtype.F32, Outer: testkit.Consts(0), Inner: testkit.Consts(1)}, {Arg: 1, DType: dtype.F32, Outer: testkit.Consts(0), Inner: testkit.Consts(1)}},
		Phases: []vec.Phase{{Body: []vec.Instr{{Op: vec.OpLoadF, X: 0}, {Op: vec.OpCumSum, Dst: 1}, {Op: vec.OpStoreF, A: 1, X: 1}}}}}}
	load(t, d, scan, zeros(dtype.F32, 0), zeros(dtype.F32, 0)).run(t, 1)
	for _, s := range [][3]int64{{0, 4, 4}, {4, 0, 4}, {4, 4, 0}} {
		out := load(t, d, product(1, s[0], s[1], s[2], dtype.F32, dtype.F32, dtype.F32, false), zeros(dtype.F32, int(s[0]*s[2])), zeros(dtype.F32, int(s[1]*s[2])), empty(dtype.F32, int(s[0]*s[1]))).run(t, 2)
		for _, v := range out.values() {
			if v != 0 {
				t.Errorf("%v: an empty sum is %v, want 0", s, v)
			}
		}
	}
}

// TestFaults holds C12 by hand: indices out of range read zero, write nothing
// and are reported once, with their node.
func TestFaults(t *testing.T) {
	d := openDevice(t, 1)
	// out[i] = table[index[i]]; copy[index[i]] = i as f32
	k := &vec.Kernel{Args: 4, Loop: vec.Loop{
		Inner: testkit.Consts(5), Regs: vec.RegCount{F: 2, I: 2}, Serial: true,
		Access: []vec.Access{
			flat(0, dtype.I32),
			{Arg: 1, DType: dtype.F32, Inner: testkit.Consts(0), Index: &vec.Index{Reg: 0, Stride: dim.Const(1), Extent: dim.Const(3), Origin: 7}},
			flat(2, dtype.F32),
			{Arg: 3, DType: dtype.F32, Inner: testkit.Consts(0), Index: &vec.Index{Reg: 0, Stride: dim.Const(1), Extent: dim.Const(3), Origin: 9}},
			{Arg: -1, Inner: testkit.Consts(1)},
		},
		Phases: []vec.Phase{{Body: []vec.Instr{
			{Op: vec.OpLoadI, Dst: 0, X: 0}, {Op: vec.OpLoadF, Dst: 0, X: 1}, {Op: vec.OpStoreF, A: 0, X: 2},
			{Op: vec.OpLoadF, Dst: 1, X: 4}, {Op: vec.OpStoreF, A: 1, X: 3}}}}}}
	l := load(t, d, k, integers(dtype.I32, 2, -1, 3, 2, math.MinInt32), floats(dtype.F32, 10, 20, 30), empty(dtype.F32, 5), floats(dtype.F32, -1, -1, -1))
	if got, want := show(l.run(t, 2)), "[30 0 0 30 0]"; got != want {
		t.Errorf("gathered %s, want %s", got, want)
	}
	if got, want := show(l.read(t, 3)), "[-1 -1 3]"; got != want {
		t.Errorf("scattered %s, want %s", got, want)
	}
	faults, err := d.TakeFaults(l.stream)
	if err != nil || len(faults) != 2 || faults[0].Origin != 7 || faults[1].Origin != 9 || faults[0].Executable != l.exec {
		t.Errorf("faults %v, %v, want nodes 7 and 9", faults, err)
	}
	if faults, err := d.TakeFaults(l.stream); err != nil || len(faults) != 0 {
		t.Errorf("faults %v, %v after they were taken, want none", faults, err)
	}

	// -1 reads zero with a fault, and stores nothing without one.
	l = load(t, d, k, integers(dtype.I32, 2, -1, 1, 2, -1), floats(dtype.F32, 10, 20, 30), empty(dtype.F32, 5), floats(dtype.F32, -1, -1, -1))
	if got, want := show(l.run(t, 2)), "[30 0 20 30 0]"; got != want {
		t.Errorf("gathered %s, want %s", got, want)
	}
	if got, want := show(l.read(t, 3)), "[-1 2 3]"; got != want {
		t.Errorf("scattered %s, want %s", got, want)
	}
	if faults, err := d.TakeFaults(l.stream); err != nil || len(faults) != 1 || faults[0].Origin != 7 {
		t.Errorf("faults %v, %v, want node 7 alone", faults, err)
	}
}

// TestBindErrors pins the errors of Bind for symbols and memory that do not fit.
func TestBindErrors(t *testing.T) {
	d := openDevice(t, 1)
	other := openDevice(t, 1)
	k := pointwiseF(4, vec.OpNeg, 1)
	p := wrapKernel(t, k, zeros(dtype.F32, 4), zeros(dtype.F32, 4))
	p.Symbols = []string{"N"}
	p.Guards = []program.Guard{{Expr: dim.Sym("N"), Lo: 1, Hi: 8}}
	x, err := d.Load(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	alloc := func(d *Device, n int64) device.Buffer {
		m, err := d.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		return device.Buffer{Memory: m, Size: n}
	}
	good := alloc(d, 64)
	freed := alloc(d, 16)
	if err := freed.Memory.Free(); err != nil {
		t.Fatal(err)
	}
	params := func(a, b device.Buffer) device.Args { return device.Args{Params: []device.Buffer{a, b}} }
	for _, c := range []struct {
		name    string
		symbols []int64
		args    device.Args
		want    error
		text    string
	}{
		{"no symbols", nil, params(good, good), nil, "symbols"},
		{"guard", []int64{9}, params(good, good), device.ErrGuard, "N = 9 is outside [1, 8]"},
		{"short", []int64{1}, params(good, good.Slice(0, 12)), nil, "parameter 1: 12 bytes"},
		{"none", []int64{1}, params(good, device.Buffer{}), nil, "parameter 1"},
		{"few", []int64{1}, device.Args{Params: []device.Buffer{good}}, nil, "1 parameters"},
		{"unaligned", []int64{1}, params(good, good.Slice(2, 32)), errUnaligned, "multiple of 4"},
		{"foreign", []int64{1}, params(good, alloc(other, 16)), device.ErrForeignBuffer, ""},
		{"freed", []int64{1}, params(good, freed), device.ErrFreed, ""},
		{"beyond", []int64{1}, params(good, device.Buffer{Memory: good.Memory, Offset: 56, Size: 16}), nil, "segment of 64"},
	} {
		_, err := x.Bind(c.symbols, c.args)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v %q", c.name, err, c.want, c.text)
		}
	}
	if _, err := x.Bind([]int64{8}, params(good.Slice(0, 16), good.Slice(16, 16))); err != nil {
		t.Error(err)
	}
}

// TestWrappedSpans: Bind refuses an access whose addresses overflow int64, also if they are within the
// buffer modulo 2^64, and a negative extent next to an extent of 0.
func TestWrappedSpans(t *testing.T) {
	d := openDevice(t, 1)
	const half = 1 << 62
	for name, c := range map[string]struct {
		extents, strides []int64
		offset           int64
	}{
		"one axis":        {[]int64{5}, []int64{half}, 0},
		"one axis down":   {[]int64{5}, []int64{-half}, 0},
		"the least":       {[]int64{3}, []int64{math.MinInt64}, 0},
		"several axes":    {[]int64{2, 2, 2, 2}, []int64{half, half, half, half}, 0},
		"down below":      {[]int64{2, 2, 2}, []int64{-half, -half, -half}, 0},
		"from an offset":  {[]int64{2}, []int64{math.MaxInt64}, 1},
		"below an offset": {[]int64{2}, []int64{math.MinInt64 + 1}, -2},
		"negative, none":  {[]int64{-1, 0}, []int64{1, 1}, 0},
	} {
		k := &vec.Kernel{Args: 1, Loop: vec.Loop{Outer: testkit.Consts(c.extents...), Regs: vec.RegCount{F: 1},
			Access: []vec.Access{{Arg: 0, DType: dtype.F32, Offset: dim.Const(c.offset), Outer: testkit.Consts(c.strides...)}},
			Phases: []vec.Phase{{Body: []vec.Instr{{Op: vec.OpConstF}, {Op: vec.OpStoreF}}}}}}
		if _, err := tryLoad(t, d, k, zeros(dtype.F32, 8)); err == nil {
			t.Errorf("%s: Bind accepts it\n%s", name, k)
		}
	}
	if got := merge(nil, []int64{2, 3}, []int64{7, 2}); len(got) != 2 {
		t.Errorf("rows that are 7 apart and columns that take 6 are axes %v, want two", got)
	}
}

// TestBindOfOddSizes pins the errors of Bind for sizes and memory that a valid program cannot be
// bound to.
func TestBindOfOddSizes(t *testing.T) {
	d := openDevice(t, 1)
	n := dim.Sym("N")
	memory := func(bytes int64) device.Buffer {
		m, err := d.Alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}
		return device.Buffer{Memory: m, Size: bytes}
	}
	bind := func(p *program.Program, symbol int64, params ...device.Buffer) error {
		t.Helper()
		p.Target, p.Symbols = Target, []string{"N"}
		for i, b := range params {
			p.Params = append(p.Params, program.Param{Mut: true, DType: dtype.U8, Shape: testkit.Consts(b.Size)})
			if len(p.Buffers) < len(params) {
				p.Buffers = append(p.Buffers, program.Buffer{Kind: program.BufferParam, Index: int32(i), DType: dtype.U8, Shape: testkit.Consts(b.Size)})
			}
		}
		x, err := d.Load(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = x.Bind([]int64{symbol}, device.Args{Params: params})
		return err
	}
	expect := func(what string, err error, want string) {
		t.Helper()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	a := memory(64)
	store := func(offset dim.Dim) *program.Program {
		k := &vec.Kernel{Args: 1, Loop: vec.Loop{Regs: vec.RegCount{F: 1}, Access: []vec.Access{{DType: dtype.F32, Offset: offset}},
			Phases: []vec.Phase{{Body: []vec.Instr{{Op: vec.OpConstF}, {Op: vec.OpStoreF}}}}}}
		code, err := k.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return &program.Program{Kernels: []program.Kernel{{Name: "store", Code: code}}, Steps: []program.Step{{Args: []int32{0}, Origin: -1}}}
	}
	expect("an offset", bind(store(n), 15, a), "")
	expect("an offset behind", bind(store(n), 16, a), "elements 16 to 16 of 16")
	expect("an offset that overflows", bind(store(n.Mul(n)), 1<<40, a), "overflow")
	expect("floats at an odd byte", bind(store(n), 0, a.Slice(1, 32)), errUnaligned.Error())

	p := store(n)
	p.Buffers = []program.Buffer{{Kind: program.BufferScratch, DType: dtype.U8, Shape: []dim.Dim{n}}}
	expect("scratch of a negative size", bind(p, -1), "negative")
}

// TestHostMemory pins the results and errors of AllocHost.
func TestHostMemory(t *testing.T) {
	d := openDevice(t, 1)
	for _, n := range []int64{0, 5} {
		m, err := d.AllocHost(n)
		if err != nil || int64(len(m.Bytes())) != n {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if err := m.Free(); err != nil || m.Bytes() != nil {
			t.Errorf("Free: %v, and %d bytes are left", err, len(m.Bytes()))
		}
		if err := m.Free(); !errors.Is(err, device.ErrFreed) {
			t.Errorf("a second Free: %v, want ErrFreed", err)
		}
	}
	for _, n := range []int64{maxAlloc + 1, math.MaxInt64} {
		if _, err := d.AllocHost(n); !errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("AllocHost of %d bytes: %v, want ErrOutOfMemory", n, err)
		}
	}
	if _, err := d.AllocHost(-1); err == nil {
		t.Error("AllocHost accepts -1 bytes")
	}
}

// TestBindOfClosed holds that a program that was closed is not bound.
func TestBindOfClosed(t *testing.T) {
	d := openDevice(t, 1)
	x, err := d.Load(&program.Program{Target: Target}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Bind(nil, device.Args{}); err != nil {
		t.Error(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Bind(nil, device.Args{}); !errors.Is(err, device.ErrClosed) {
		t.Errorf("Bind of a closed program: %v, want ErrClosed", err)
	}
}
