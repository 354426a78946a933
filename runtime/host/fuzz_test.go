package host

import (
	"bytes"
	"testing"

	"pwc/internal/testkit"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program/vec"
)

// FuzzKernel holds that a kernel from outside is refused, or does not write to the bytes
// behind its arguments. It does not run kernels of many elements.
func FuzzKernel(f *testing.F) {
	gather := &vec.Kernel{Args: 3, Loop: vec.Loop{
		Outer: []dim.Dim{dim.Sym("N")}, Inner: testkit.Consts(4), Regs: vec.RegCount{F: 2, I: 1, SF: 1, SI: 1},
		Access: []vec.Access{{Arg: 0, DType: dtype.I32, Outer: testkit.Consts(1), Inner: testkit.Consts(0)},
			{Arg: 1, DType: dtype.BF16, Outer: testkit.Consts(0), Inner: testkit.Consts(1), Index: &vec.Index{Scalar: true, Stride: dim.Const(4), Extent: dim.Const(8), Origin: 3}},
			{Arg: 2, DType: dtype.F32, Outer: testkit.Consts(4), Inner: testkit.Consts(1)}},
		Phases: []vec.Phase{
			{Scalar: []vec.Instr{{Op: vec.OpLoadI, X: 0}}, Body: []vec.Instr{{Op: vec.OpLoadF, X: 1}, {Op: vec.OpSum}}},
			{Pre: []vec.Instr{{Op: vec.OpSplatF, Dst: 1}}, Body: []vec.Instr{{Op: vec.OpLoadF, X: 1}, {Op: vec.OpDiv, Dst: 0, A: 0, B: 1}, {Op: vec.OpStoreF, X: 2}}},
		}}}
	for _, k := range []*vec.Kernel{gather, pointwiseF(7, vec.OpMul, 2), product(2, 3, 5, 9, dtype.F32, dtype.BF16, dtype.F16, false), product(1, 7, 4, 8, dtype.F16, dtype.F32, dtype.F32, true), selection(3, 9, 4, dtype.BF16), experts(3, 4, 5, 9, 2, dtype.F32, dtype.BF16)} {
		code, err := k.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(code)
	}
	d := Open(Options{Workers: 1})
	defer d.Close()
	env := func(string) (int64, bool) { return 3, true }
	f.Fuzz(func(t *testing.T, data []byte) {
		code, err := vec.Decode(data)
		if err != nil || code.Args > 8 {
			return
		}
		const size, guard = 1 << 10, 64
		x := &Executable{dev: d, faults: map[int32]*fault{}}
		x.addFaults(code)
		memory := alignedBytes(int64(code.Args) * (size + guard))
		args := make([][]byte, code.Args)
		for i := range args {
			at := i * (size + guard)
			args[i] = memory[at:][:size:size]
			for j := range args[i] {
				args[i][j] = byte(i + j*5)
			}
		}
		k, err := newKernel(x, code, env, args)
		if err != nil || k.rows > 1000 || k.cols > 1000 || k.mat != nil && k.mat.k > 5000 {
			return
		}
		l := lane{stop: &interrupt{}}
		runHere(k, k.parts, &l)
		for i := range args {
			if g := memory[i*(size+guard)+size:][:guard]; !bytes.Equal(g, make([]byte, guard)) {
				t.Fatalf("the kernel wrote behind argument %d\n%s", i, code)
			}
		}
	})
}

// TestWalk walks along four axes, which do not merge, from every column on.
func TestWalk(t *testing.T) {
	axes := merge(nil, []int64{2, 3, 1, 4, 2}, []int64{100, -7, 9, 1000, 3})
	if len(axes) != 4 {
		t.Fatalf("axes %v, want four", axes)
	}
	const all = 2 * 3 * 4 * 2
	for first := range int64(all) {
		for step := int64(1); step <= 2; step++ {
			var w walk
			w.start(axes, first)
			for c := first; c < all; {
				if want := addr(axes, c); w.addr != want {
					t.Fatalf("from %d: column %d is at %d, want %d", first, c, w.addr, want)
				}
				n := min(step, w.left)
				w.skip(n)
				c += n
			}
		}
	}
	// addr agrees with the definition.
	for c, pos := range coords([]int64{2, 3, 4, 2}) {
		want := 100*pos[0] - 7*pos[1] + 1000*pos[2] + 3*pos[3]
		if got := addr(axes, int64(c)); got != want {
			t.Fatalf("column %d is at %d, want %d", c, got, want)
		}
	}
	if got := merge(nil, []int64{4, 5, 1, 6}, []int64{30, 6, 99, 1}); len(got) != 1 || got[0] != (axis{120, 1}) {
		t.Errorf("a contiguous tensor has axes %v, want one", got)
	}
	if got := merge(nil, []int64{4, 5}, []int64{0, 0}); len(got) != 1 || got[0] != (axis{20, 0}) {
		t.Errorf("a repeated element has axes %v, want one", got)
	}
}
