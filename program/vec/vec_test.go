package vec_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program/vec"
)

var update = flag.Bool("update", false, "rewrite golden files")

func consts(ns ...int64) []dim.Dim {
	out := make([]dim.Dim, len(ns))
	for i, n := range ns {
		out[i] = dim.Const(n)
	}
	return out
}

var n = dim.Sym("N")

// loopExample gathers rows of a table, normalises them and stores them, and
// uses every field of a loop.
func loopExample() *vec.Kernel {
	return &vec.Kernel{Args: 3, Loop: vec.Loop{
		Outer: []dim.Dim{n, dim.Const(2)}, Inner: consts(128),
		Access: []vec.Access{
			{Arg: 0, DType: dtype.I32, Outer: consts(1, 0), Inner: consts(0)},
			{Arg: 1, DType: dtype.BF16, Offset: dim.Const(3), Outer: consts(0, 128), Inner: consts(1), Index: &vec.Index{Reg: 0, Scalar: true, Stride: dim.Const(256), Extent: dim.Sym("V"), Origin: 7}},
			{Arg: 2, DType: dtype.BF16, Outer: consts(256, 128), Inner: consts(1)},
			{Arg: -1, Outer: consts(0, 0), Inner: consts(1)},
		},
		Dims: []dim.Dim{n.Mul(dim.Const(2))},
		Regs: vec.RegCount{F: 3, I: 2, SF: 2, SI: 1},
		Phases: []vec.Phase{
			{
				Scalar: []vec.Instr{{Op: vec.OpLoadI, Dst: 0, X: 0}},
				Body:   []vec.Instr{{Op: vec.OpLoadF, Dst: 0, X: 1}, {Op: vec.OpMul, Dst: 1, A: 0, B: 0}, {Op: vec.OpSum, Dst: 0, A: 1}},
			},
			{
				Scalar: []vec.Instr{{Op: vec.OpConstF, Dst: 1, F: 1e-5}, {Op: vec.OpAdd, Dst: 0, A: 0, B: 1}, {Op: vec.OpRsqrt, Dst: 0, A: 0}},
				Pre:    []vec.Instr{{Op: vec.OpSplatF, Dst: 2, A: 0}, {Op: vec.OpDim, Dst: 1, X: 0}},
				Body: []vec.Instr{{Op: vec.OpLoadF, Dst: 0, X: 1}, {Op: vec.OpMul, Dst: 0, A: 0, B: 2}, {Op: vec.OpLoadI, Dst: 0, X: 3},
					{Op: vec.OpLtI, Dst: 0, A: 0, B: 1}, {Op: vec.OpSelectF, Dst: 0, A: 0, B: 2, C: 0}, {Op: vec.OpFtoI, Dst: 0, A: 0, X: int32(dtype.I8)}, {Op: vec.OpRMaxI, Dst: 0, A: 0, I: -128},
					{Op: vec.OpStoreF, A: 0, X: 2}},
			},
		},
		Serial: true,
	}}
}

func productExample() *vec.Kernel {
	return &vec.Kernel{Args: 3,
		MatMul: &vec.MatMul{K: dim.Const(64),
			A: vec.MatAccess{Arg: 0, DType: dtype.F32, Batch: consts(0), Row: dim.Const(64), Col: dim.Const(1)},
			B: vec.MatAccess{Arg: 1, DType: dtype.BF16, Offset: n, Batch: consts(2048), Row: dim.Const(64), Col: dim.Const(1)}},
		Loop: vec.Loop{Outer: []dim.Dim{dim.Const(3), n}, Inner: consts(32), Regs: vec.RegCount{F: 1},
			Access: []vec.Access{{Arg: 2, DType: dtype.F16, Outer: []dim.Dim{n.Mul(dim.Const(32)), dim.Const(32)}, Inner: consts(1)}},
			Phases: []vec.Phase{{Body: []vec.Instr{{Op: vec.OpAcc}, {Op: vec.OpStoreF}}}}}}
}

func selectionExample() *vec.Kernel {
	a := func(arg int32, dt dtype.DType, row int64) vec.Access {
		return vec.Access{Arg: arg, DType: dt, Outer: consts(row), Inner: consts(1)}
	}
	return &vec.Kernel{Args: 3, Loop: vec.Loop{Outer: []dim.Dim{n}},
		TopK: &vec.TopK{N: dim.Const(1000), K: 8, In: a(0, dtype.F32, 1000), Values: a(1, dtype.F32, 8), Index: a(2, dtype.I32, 8)}}
}

// expertsExample is the GEMM with a B selected for each row.
func expertsExample() *vec.Kernel {
	k := productExample()
	k.Args = 4
	k.MatMul.B.Batch = consts(0)
	k.MatMul.Select = &vec.MatSelect{Arg: 3, DType: dtype.I32, Offset: dim.Const(1), Outer: []dim.Dim{n, dim.Const(1)}, Stride: dim.Const(2048), Extent: dim.Sym("E"), Origin: 5}
	return k
}

// attentionExample is the gradient of causal attention of four heads over two.
func attentionExample() *vec.Kernel {
	arg := int32(0)
	next := func(dt dtype.DType, strides ...int64) vec.Access {
		arg++
		return vec.Access{Arg: arg - 1, DType: dt, Outer: consts(4096), Inner: consts(strides...)}
	}
	return &vec.Kernel{Args: 9, Loop: vec.Loop{Outer: consts(3)}, Attention: &vec.Attention{Queries: n, Keys: n, Heads: 4, Groups: 2, Size: 8, Scale: 0.25, Causal: true,
		Q: next(dtype.BF16, 32, 8, 1), K: next(dtype.BF16, 16, 8, 1), V: next(dtype.BF16, 16, 8, 1), Out: next(dtype.BF16, 32, 8, 1), LSE: next(dtype.F32, 4, 1),
		Grad: &vec.AttentionGrad{Delta: next(dtype.F32, 4, 1), DQ: next(dtype.BF16, 32, 8, 1), DK: next(dtype.BF16, 16, 8, 1), DV: next(dtype.BF16, 16, 8, 1)}}}
}

func examples() map[string]*vec.Kernel {
	return map[string]*vec.Kernel{"attention": attentionExample(), "loop": loopExample(), "product": productExample(), "selection": selectionExample(), "experts": expertsExample()}
}

var sameDims = cmp.Comparer(func(a, b dim.Dim) bool { return a.Equal(b) })

// TestEncoding holds the round trip, and the bytes and text against goldens. If
// the bytes were meant to change, raise Version and run with -update.
func TestEncoding(t *testing.T) {
	for name, k := range examples() {
		b, err := k.Encode()
		if err != nil {
			t.Fatal(err)
		}
		d, err := vec.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(k, d, sameDims); diff != "" {
			t.Errorf("%s: decoded differs:\n%s", name, diff)
		}
		for path, got := range map[string][]byte{fmt.Sprintf("testdata/%s.v%d.bin", name, vec.Version): b, "testdata/" + name + ".txt": []byte(k.String())} {
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs\n%s", path, cmp.Diff(string(want), string(got)))
			}
		}
		for i := range b {
			if _, err := vec.Decode(b[:i]); !errors.Is(err, vec.ErrCorrupt) {
				t.Fatalf("%s cut at %d: %v", name, i, err)
			}
		}
	}
	// Fields that an op does not use are not part of the bytes.
	clean, err := productExample().Encode()
	if err != nil {
		t.Fatal(err)
	}
	k := productExample()
	k.Loop.Phases[0].Body[0] = vec.Instr{Op: vec.OpAcc, A: 9, B: 9, C: 9, X: 9, F: 9, I: 9}
	if junk, err := k.Encode(); err != nil || !bytes.Equal(junk, clean) {
		t.Errorf("unused fields are encoded (%v)", err)
	}
}

// TestShortAccesses decodes accesses with the shortest fields. They would be refused as truncated if the decoder
// expected more bytes for an access than these have.
func TestShortAccesses(t *testing.T) {
	k := &vec.Kernel{Args: 1, Loop: vec.Loop{Access: slices.Repeat([]vec.Access{{DType: dtype.F32, Offset: n}}, 100)}}
	b, err := k.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if d, err := vec.Decode(b); err != nil || cmp.Diff(k, d, sameDims) != "" {
		t.Errorf("%v, %v", d, err)
	}
}

func TestStores(t *testing.T) {
	for name, want := range map[string]string{"attention": "[6 7 8]", "loop": "[2]", "product": "[2]", "selection": "[1 2]", "experts": "[2]"} {
		if got := text(examples()[name].Stores()); got != want {
			t.Errorf("%s: stores %v, want %v", name, got, want)
		}
	}
}

func TestLoads(t *testing.T) {
	for name, want := range map[string]string{"attention": "[0 1 2 3 4 5]", "loop": "[0 1]", "product": "[0 1]", "selection": "[0]", "experts": "[0 1 3]"} {
		if got := text(examples()[name].Loads()); got != want {
			t.Errorf("%s: loads %v, want %v", name, got, want)
		}
	}
}

// TestEachDim sets every dim of the examples to a symbol of its own, and checks that
// EachDim visits all of them.
func TestEachDim(t *testing.T) {
	for name, k := range examples() {
		want := map[string]bool{}
		fresh := func(ds ...*dim.Dim) {
			for _, d := range ds {
				s := fmt.Sprintf("S%d", len(want))
				want[s], *d = true, dim.Sym(s)
			}
		}
		all := func(ds []dim.Dim) {
			for i := range ds {
				fresh(&ds[i])
			}
		}
		access := func(a *vec.Access) {
			fresh(&a.Offset)
			all(a.Outer)
			all(a.Inner)
			if a.Index != nil {
				fresh(&a.Index.Stride, &a.Index.Extent)
			}
		}
		all(k.Loop.Outer)
		all(k.Loop.Inner)
		all(k.Loop.Dims)
		for i := range k.Loop.Access {
			access(&k.Loop.Access[i])
		}
		if m := k.MatMul; m != nil {
			fresh(&m.K)
			for _, a := range []*vec.MatAccess{&m.A, &m.B} {
				fresh(&a.Offset, &a.Row, &a.Col)
				all(a.Batch)
			}
			if x := m.Select; x != nil {
				fresh(&x.Offset, &x.Stride, &x.Extent)
				all(x.Outer)
			}
		}
		if x := k.TopK; x != nil {
			fresh(&x.N)
			access(&x.In)
			access(&x.Values)
			access(&x.Index)
		}
		if x := k.Attention; x != nil {
			fresh(&x.Queries, &x.Keys)
			for _, a := range []*vec.Access{&x.Q, &x.K, &x.V, &x.Out, &x.LSE, &x.Grad.Delta, &x.Grad.DQ, &x.Grad.DK, &x.Grad.DV} {
				access(a)
			}
		}
		got := map[string]bool{}
		k.EachDim(func(d dim.Dim) {
			for _, s := range d.Symbols() {
				got[s] = true
			}
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: the dims differ:\n%s", name, diff)
		}
	}
}

// TestDecodeRefuses pins the errors of Decode for bytes that are not of a kernel.
func TestDecodeRefuses(t *testing.T) {
	whole, err := productExample().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(b []byte){
		"not a vector kernel": func(b []byte) { b[1] = 'x' },
		"version 2, want 1":   func(b []byte) { b[3] = 2 },
		"unknown form 9":      func(b []byte) { b[8] = 9 },
	} {
		b := bytes.Clone(whole)
		change(b)
		if _, err := vec.Decode(b); !errors.Is(err, vec.ErrCorrupt) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func text(args []int32) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, a := range args {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteByte(byte('0' + a))
	}
	b.WriteByte(']')
	return b.String()
}

// TestOps: the table describes every op, and names are unique.
func TestOps(t *testing.T) {
	names := map[string]bool{}
	for _, op := range vec.Ops() {
		info, ok := op.Info()
		if !ok || info.Name == "" || info.Place == 0 || names[info.Name] {
			t.Errorf("op %d: %+v", op, info)
		}
		names[info.Name] = true
	}
	if _, ok := vec.OpInvalid.Info(); ok {
		t.Error("OpInvalid is described")
	}
	if _, ok := vec.Op(255).Info(); ok {
		t.Error("op 255 is described")
	}
}

// TestValidate checks kernels that are valid, and an example that was changed for each error.
func TestValidate(t *testing.T) {
	for name, k := range examples() {
		if err := k.Validate(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	body := func(k *vec.Kernel, phase int, in ...vec.Instr) {
		p := &k.Loop.Phases[phase]
		p.Body = append(p.Body, in...)
	}
	// Kernels at the limits.
	for name, k := range map[string]*vec.Kernel{
		"no arguments":     {Loop: vec.Loop{Regs: vec.RegCount{I: vec.MaxRegs}, Phases: []vec.Phase{{Body: []vec.Instr{{Op: vec.OpConstI, Dst: vec.MaxRegs - 1}}}}}},
		"16 axes":          {Loop: vec.Loop{Outer: consts(make([]int64, 9)...), Inner: consts(make([]int64, 7)...)}},
		"nothing is taken": {Args: 3, Loop: vec.Loop{Outer: consts(1)}, TopK: &vec.TopK{N: n, In: selectionExample().TopK.In, Values: selectionExample().TopK.Values, Index: selectionExample().TopK.Index}},
		"all are taken":    {Args: 3, Loop: vec.Loop{Outer: consts(1)}, TopK: &vec.TopK{N: n, K: vec.MaxTopK, In: selectionExample().TopK.In, Values: selectionExample().TopK.Values, Index: selectionExample().TopK.Index}},
		// An access without memory has an integer value for any dtype.
		"an address": {Loop: vec.Loop{Regs: vec.RegCount{I: 1}, Access: []vec.Access{{Arg: -1, DType: dtype.F32}}, Phases: []vec.Phase{{Body: []vec.Instr{{Op: vec.OpLoadI}}}}}},
		// The Bodies of two phases read a register that Pre assigns.
		"a row's register": {Loop: vec.Loop{Regs: vec.RegCount{F: 2, SF: 1}, Phases: []vec.Phase{
			{Scalar: []vec.Instr{{Op: vec.OpConstF}}, Pre: []vec.Instr{{Op: vec.OpSplatF}}, Body: []vec.Instr{{Op: vec.OpNeg, Dst: 1}}},
			{Body: []vec.Instr{{Op: vec.OpNeg, Dst: 1}}}}}},
		// A Body may assign a register that only Pre has read.
		"a Pre of its own": {Loop: vec.Loop{Regs: vec.RegCount{F: 2}, Phases: []vec.Phase{{Pre: []vec.Instr{{Op: vec.OpConstF}, {Op: vec.OpNeg, Dst: 1}}, Body: []vec.Instr{{Op: vec.OpConstF}}}}}},
		// A Body may assign a register that only the Body of an earlier phase has read.
		"a register of Pre, assigned later": {Loop: vec.Loop{Regs: vec.RegCount{F: 2}, Phases: []vec.Phase{
			{Pre: []vec.Instr{{Op: vec.OpConstF}}, Body: []vec.Instr{{Op: vec.OpNeg, Dst: 1}}}, {Body: []vec.Instr{{Op: vec.OpConstF}}}}}},
		"a product with scalars": {Args: 3, MatMul: productExample().MatMul, Loop: vec.Loop{Outer: []dim.Dim{dim.Const(3), n}, Inner: consts(32), Regs: vec.RegCount{F: 1, SF: 1},
			Access: productExample().Loop.Access, Phases: []vec.Phase{{Scalar: []vec.Instr{{Op: vec.OpConstF}}}}}},
		"a product without batches": {Args: 2, Loop: vec.Loop{Outer: consts(2), Inner: consts(3), Phases: []vec.Phase{{}}},
			MatMul: &vec.MatMul{A: vec.MatAccess{DType: dtype.F32}, B: vec.MatAccess{Arg: 1, DType: dtype.F32}}},
		"a scalar store": {Args: 1, Loop: vec.Loop{Regs: vec.RegCount{SF: 1}, Access: []vec.Access{{DType: dtype.F32}},
			Phases: []vec.Phase{{Scalar: []vec.Instr{{Op: vec.OpConstF}, {Op: vec.OpStoreF}}}}}},
	} {
		if err := k.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	overflow := dim.Const(1 << 62).Mul(dim.Const(8))
	type K = vec.Kernel
	for _, c := range []struct {
		from   func() *vec.Kernel
		want   string
		change func(k *K)
	}{
		{loopExample, "-1 arguments", func(k *K) { k.Args = -1 }},
		{loopExample, "17 axes", func(k *K) { k.Loop.Outer = consts(make([]int64, 16)...) }},
		{loopExample, "more than 4096 registers", func(k *K) { k.Loop.Regs.F = 4097 }},
		{loopExample, "access 0: argument 3, want one below 3", func(k *K) { k.Loop.Access[0].Arg = 3 }},
		{loopExample, "access 0: argument -2, want one below 3", func(k *K) { k.Loop.Access[0].Arg = -2 }},
		{loopExample, "access 2: dtype f8e4m3", func(k *K) { k.Loop.Access[2].DType = dtype.F8E4M3 }},
		{loopExample, "access 3: dtype f8e4m3", func(k *K) { k.Loop.Access[3].DType = dtype.F8E4M3 }},
		{loopExample, "extent: dim: overflows", func(k *K) { k.Loop.Outer[1] = overflow }},
		{loopExample, "extent: dim: overflows", func(k *K) { k.Loop.Inner[0] = overflow }},
		{loopExample, "access 2: offset: dim: overflows", func(k *K) { k.Loop.Access[2].Offset = overflow }},
		{loopExample, "access 2: stride: dim: overflows", func(k *K) { k.Loop.Access[2].Outer[0] = overflow }},
		{loopExample, "access 2: stride: dim: overflows", func(k *K) { k.Loop.Access[2].Inner[0] = overflow }},
		{loopExample, "access 1: index: dim: overflows", func(k *K) { k.Loop.Access[1].Index.Extent = overflow }},
		{loopExample, "access 1: index: dim: overflows", func(k *K) { k.Loop.Access[1].Index.Stride = overflow }},
		{loopExample, "access 1: index register 2, want one below 2", func(k *K) { k.Loop.Access[1].Index.Reg, k.Loop.Access[1].Index.Scalar = 2, false }},
		{loopExample, "(load): register 1 is read before", func(k *K) {
			k.Loop.Access[1].Index.Reg, k.Loop.Access[1].Index.Scalar = 1, false
		}},
		{loopExample, "phase 1 body 4 (select): register 5, want one below 2", func(k *K) { k.Loop.Phases[1].Body[4].C = 5 }},
		{loopExample, "(dim): dim -1, want one below 1", func(k *K) { body(k, 1, vec.Instr{Op: vec.OpDim, X: -1}) }},
		{loopExample, "(wrap): dtype -249, want", func(k *K) { body(k, 1, vec.Instr{Op: vec.OpWrap, X: int32(dtype.I32) - 256}) }},
		{loopExample, "(wrap): dtype 263, want", func(k *K) { body(k, 1, vec.Instr{Op: vec.OpWrap, X: int32(dtype.I32) + 256}) }},
		{loopExample, "access 3: an index without memory", func(k *K) { k.Loop.Access[3].Index = &vec.Index{} }},
		{loopExample, "access 2: 1 and 1 strides for 2 and 1 axes", func(k *K) { k.Loop.Access[2].Outer = consts(1) }},
		{loopExample, "access 2: 2 and 2 strides for 2 and 1 axes", func(k *K) { k.Loop.Access[2].Inner = consts(1, 1) }},
		{loopExample, "access 1: index register 1, want one below 1", func(k *K) { k.Loop.Access[1].Index.Reg = 1 }},
		{loopExample, "dim: dim: overflows", func(k *K) { k.Loop.Dims[0] = dim.Const(1 << 62).Mul(dim.Const(8)) }},
		{loopExample, "phase 0 scalar 0 (loadi): access 4, want one below 4", func(k *K) { k.Loop.Phases[0].Scalar[0].X = 4 }},
		{loopExample, "phase 0 scalar 0 (loadi): access -1, want one below 4", func(k *K) { k.Loop.Phases[0].Scalar[0].X = -1 }},
		{loopExample, "phase 0 scalar 0 (loadi): scalar register 1, want one below 1", func(k *K) { k.Loop.Phases[0].Scalar[0].Dst = 1 }},
		{loopExample, "phase 0 body 0 (load): scalar register 0 is read before", func(k *K) { k.Loop.Phases[0].Scalar = nil }},
		{loopExample, "phase 0 body 0 (load): register 3, want one below 3", func(k *K) { k.Loop.Phases[0].Body[0].Dst = 3 }},
		{loopExample, "phase 0 body 1 (mul): register 2 is read before", func(k *K) { k.Loop.Phases[0].Body[1].B = 2 }},
		{loopExample, "phase 0 body 1 (mul): register 9, want one below 3", func(k *K) { k.Loop.Phases[0].Body[1].B = 9 }},
		{loopExample, "phase 0 body 1 (mul): register 3, want one below 3", func(k *K) { k.Loop.Phases[0].Body[1].B = 3 }},
		{loopExample, "phase 1 pre 2 (splat): scalar register 2, want one below 2", func(k *K) {
			k.Loop.Phases[1].Pre = append(k.Loop.Phases[1].Pre, vec.Instr{Op: vec.OpSplatF, A: 2})
		}},
		{loopExample, "phase 1 pre 2 (const): register 3, want one below 3", func(k *K) {
			k.Loop.Phases[1].Pre = append(k.Loop.Phases[1].Pre, vec.Instr{Op: vec.OpConstF, Dst: 3})
		}},
		{loopExample, "phase 0 body 2 (sum): scalar register 2, want one below 2", func(k *K) { k.Loop.Phases[0].Body[2].Dst = 2 }},
		{loopExample, "phase 0 body 3 (rmax): scalar register 0 gets two", func(k *K) { body(k, 0, vec.Instr{Op: vec.OpRMax, A: 0}) }},
		{loopExample, "phase 0 body 3 (splat): is not allowed in this list", func(k *K) { body(k, 0, vec.Instr{Op: vec.OpSplatF}) }},
		{loopExample, "phase 0 body 3 (acc): is not allowed in this list", func(k *K) { body(k, 0, vec.Instr{Op: vec.OpAcc}) }},
		{loopExample, "phase 0 body 3 (op0): unknown op", func(k *K) { body(k, 0, vec.Instr{}) }},
		{loopExample, "phase 0 body 3 (op250): unknown op", func(k *K) { body(k, 0, vec.Instr{Op: 250}) }},
		{loopExample, "(storei): it stores bf16, want an integer", func(k *K) {
			body(k, 1, vec.Instr{Op: vec.OpStoreI, X: 2})
		}},
		{loopExample, "(store): it stores i32, want a float", func(k *K) { body(k, 1, vec.Instr{Op: vec.OpStoreF, X: 0}) }},
		{loopExample, "(loadi): it loads bf16, want an integer", func(k *K) { body(k, 1, vec.Instr{Op: vec.OpLoadI, X: 2}) }},
		{loopExample, "(storei): it stores to an access without memory", func(k *K) { body(k, 1, vec.Instr{Op: vec.OpStoreI, X: 3}) }},
		{loopExample, "(wrap): dtype 1, want", func(k *K) { body(k, 1, vec.Instr{Op: vec.OpWrap, X: int32(dtype.F32)}) }},
		{loopExample, "(ftoi): dtype 99, want", func(k *K) { body(k, 1, vec.Instr{Op: vec.OpFtoI, X: 99}) }},
		{loopExample, "(dim): dim 1, want one below 1", func(k *K) { body(k, 1, vec.Instr{Op: vec.OpDim, X: 1}) }},
		{loopExample, "phase 1 body 2 (load): register 2 is assigned after", func(k *K) {
			k.Loop.Phases[1].Body = []vec.Instr{{Op: vec.OpLoadF, Dst: 1, X: 1}, {Op: vec.OpAdd, Dst: 1, A: 1, B: 2}, {Op: vec.OpLoadF, Dst: 2, X: 1}}
		}},
		{loopExample, "phase 1 body 0 (neg): register 1 is read before", func(k *K) { // phase 0's Body assigned it
			k.Loop.Phases[1].Body = []vec.Instr{{Op: vec.OpNeg, Dst: 0, A: 1}}
		}},
		{loopExample, "phase 0 scalar 1 (neg): scalar register 0 is read before", func(k *K) { // the Body reduces it later
			k.Loop.Phases[0].Scalar = append(k.Loop.Phases[0].Scalar, vec.Instr{Op: vec.OpNeg, Dst: 1, A: 0})
		}},
		{loopExample, "(load): index in a vector register", func(k *K) {
			k.Loop.Access[1].Index.Scalar = false
			k.Loop.Phases[0].Scalar = append(k.Loop.Phases[0].Scalar, vec.Instr{Op: vec.OpLoadF, Dst: 1, X: 1})
		}},
		{loopExample, "phase 1 pre 2 (store): is not allowed in this list", func(k *K) {
			k.Loop.Phases[1].Pre = append(k.Loop.Phases[1].Pre, vec.Instr{Op: vec.OpStoreF, A: 2, X: 2})
		}},
		{productExample, "more than one of a GEMM, a top-k and attention", func(k *K) { k.TopK = selectionExample().TopK }},
		{selectionExample, "more than one of a GEMM, a top-k and attention", func(k *K) { k.Attention = attentionExample().Attention }},
		{productExample, "a GEMM over 0 outer", func(k *K) { k.Loop.Outer = nil; k.Loop.Access[0].Outer = nil }},
		{productExample, "a GEMM over 2 outer and 2 inner", func(k *K) { k.Loop.Inner = consts(4, 8); k.Loop.Access[0].Inner = consts(8, 1) }},
		{productExample, "K: dim: overflows", func(k *K) { k.MatMul.K = overflow }},
		{productExample, "operand A: stride: dim: overflows", func(k *K) { k.MatMul.A.Offset = overflow }},
		{productExample, "operand B: stride: dim: overflows", func(k *K) { k.MatMul.B.Row = overflow }},
		{productExample, "operand B: stride: dim: overflows", func(k *K) { k.MatMul.B.Batch[0] = overflow }},
		{productExample, "a GEMM with 2 phases", func(k *K) { k.Loop.Phases = append(k.Loop.Phases, vec.Phase{}) }},
		{productExample, "a serial GEMM", func(k *K) { k.Loop.Serial = true }},
		{productExample, "operand A: argument 5, want one below 3", func(k *K) { k.MatMul.A.Arg = 5 }},
		{productExample, "operand B: a GEMM of i8", func(k *K) { k.MatMul.B.DType = dtype.I8 }},
		{productExample, "operand B: 0 strides for 1 batch axes", func(k *K) { k.MatMul.B.Batch = nil }},
		{productExample, "(sum): is not allowed in this list", func(k *K) { body(k, 0, vec.Instr{Op: vec.OpSum}) }},
		{productExample, "a GEMM stores only in Body", func(k *K) {
			k.Loop.Regs.SF = 1
			k.Loop.Phases[0].Scalar = []vec.Instr{{Op: vec.OpConstF}, {Op: vec.OpStoreF}}
		}},
		{expertsExample, "select: argument 4, want one below 4", func(k *K) { k.MatMul.Select.Arg = 4 }},
		{expertsExample, "select: indices of f32", func(k *K) { k.MatMul.Select.DType = dtype.F32 }},
		{expertsExample, "select: indices of bool", func(k *K) { k.MatMul.Select.DType = dtype.Bool }},
		{expertsExample, "select: indices of i4", func(k *K) { k.MatMul.Select.DType = dtype.I4 }},
		{expertsExample, "select: 1 strides for 2 axes", func(k *K) { k.MatMul.Select.Outer = consts(1) }},
		{expertsExample, "select: stride: dim: overflows", func(k *K) { k.MatMul.Select.Stride = dim.Const(1 << 62).Mul(dim.Const(8)) }},
		{attentionExample, "attention with a loop", func(k *K) { k.Loop.Inner = consts(2) }},
		{attentionExample, "length: dim: overflows", func(k *K) { k.Attention.Keys = overflow }},
		{attentionExample, "attention of 3 heads over 2, each of 8 elements", func(k *K) { k.Attention.Heads = 3 }},
		{attentionExample, "attention of 4 heads over 0, each of 8 elements", func(k *K) { k.Attention.Groups = 0 }},
		{attentionExample, "attention of 4 heads over 2, each of 257 elements", func(k *K) { k.Attention.Size = 257 }},
		{attentionExample, "causal attention of N queries and 2 keys", func(k *K) { k.Attention.Keys = dim.Const(2) }},
		{attentionExample, "q: dtype i32, want a float", func(k *K) { k.Attention.Q.DType = dtype.I32 }},
		{attentionExample, "v: dtype f32, want bf16", func(k *K) { k.Attention.V.DType = dtype.F32 }},
		{attentionExample, "delta: dtype bf16, want f32", func(k *K) { k.Attention.Grad.Delta.DType = dtype.BF16 }},
		{attentionExample, "lse: 1 and 3 strides for 1 and 2 axes", func(k *K) { k.Attention.LSE.Inner = consts(1, 1, 1) }},
		{attentionExample, "dv: argument 9, want one below 9", func(k *K) { k.Attention.Grad.DV.Arg = 9 }},
		{attentionExample, "dq: want plain memory", func(k *K) { k.Attention.Grad.DQ.Index = &vec.Index{} }},
		{selectionExample, "a top-k with a loop", func(k *K) { k.Loop.Serial = true }},
		{selectionExample, "a top-k with a loop", func(k *K) { k.Loop.Inner = consts(2) }},
		{selectionExample, "a top-k with a loop", func(k *K) { k.Loop.Access = []vec.Access{{Arg: -1, Outer: consts(0)}} }},
		{selectionExample, "a top-k with a loop", func(k *K) { k.Loop.Dims = consts(2) }},
		{selectionExample, "a top-k with a loop", func(k *K) { k.Loop.Phases = make([]vec.Phase, 1) }},
		{selectionExample, "a top-k with a loop", func(k *K) { k.Loop.Regs.I = 1 }},
		{selectionExample, "N: dim: overflows", func(k *K) { k.TopK.N = overflow }},
		{selectionExample, "input: want plain memory", func(k *K) { k.TopK.In.Arg = -1 }},
		{selectionExample, "k = -1", func(k *K) { k.TopK.K = -1 }},
		{selectionExample, "k = 2000000", func(k *K) { k.TopK.K = 2e6 }},
		{selectionExample, "indices: argument 3, want one below 3", func(k *K) { k.TopK.Index.Arg = 3 }},
		{selectionExample, "input: want plain memory", func(k *K) { k.TopK.In.Index = &vec.Index{} }},
		{selectionExample, "a top-k from f32 into bf16 and i32", func(k *K) { k.TopK.Values.DType = dtype.BF16 }},
		{selectionExample, "a top-k from f32 into f32 and i64", func(k *K) { k.TopK.Index.DType = dtype.I64 }},
	} {
		k := c.from()
		c.change(k)
		err := k.Validate()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
		if _, err := k.Encode(); err == nil {
			t.Errorf("%q: an invalid kernel was encoded", c.want)
		}
	}
}

// FuzzDecode: any bytes give an error, or a valid kernel with the same encoding.
func FuzzDecode(f *testing.F) {
	for _, k := range examples() {
		b, err := k.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := vec.Decode(data)
		if err != nil {
			return
		}
		if err := k.Validate(); err != nil {
			t.Fatalf("a decoded kernel is invalid: %v", err)
		}
		if again, err := k.Encode(); err != nil || !bytes.Equal(again, data) {
			t.Fatalf("the decoded kernel is encoded as other bytes (%v)", err)
		}
		_ = k.String()
		k.Stores()
	})
}
