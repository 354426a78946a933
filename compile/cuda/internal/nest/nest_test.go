package nest

import (
	"testing"

	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// copies returns a kernel that copies N rows of cols columns from argument 0, from an offset on, to
// argument 1, which has another dtype.
func copies(cols int64, from, to dtype.DType, offset int64) *loop.Kernel {
	one := []dim.Dim{dim.Const(1)}
	row := []dim.Dim{dim.Const(cols)}
	return &loop.Kernel{
		Name: "copy", Rows: []dim.Dim{dim.Sym("N")}, Cols: []dim.Dim{dim.Const(cols)}, Args: []loop.Arg{{DType: from}, {DType: to, Write: true}},
		Values: []loop.ValueInfo{{DType: from}, {DType: to}},
		Phases: []loop.Phase{{Body: []loop.Instr{
			{Op: loop.Load, Dst: 0, Access: &loop.Access{Arg: 0, Offset: dim.Const(offset), Rows: row, Cols: one}},
			{Op: loop.Cast, Dst: 1, Args: []loop.Value{0}},
			{Op: loop.Store, Dst: loop.NoValue, Args: []loop.Value{1}, Access: &loop.Access{Arg: 1, Rows: row, Cols: one}},
		}}},
		Ranges: map[string]dim.Interval{"N": {Lo: 1, Hi: 8192}},
	}
}

// TestVectorWidth: the width is 16 bytes of the narrowest argument, at most 8 columns, or less if rows
// or offsets are not aligned to it.
func TestVectorWidth(t *testing.T) {
	for _, c := range []struct {
		cols     int64
		from, to dtype.DType
		offset   int64
		want     int
	}{
		{64, dtype.F32, dtype.F32, 0, 4}, {64, dtype.BF16, dtype.F32, 0, 8}, {64, dtype.U8, dtype.U8, 0, 8},
		{36, dtype.BF16, dtype.BF16, 0, 4}, {64, dtype.BF16, dtype.BF16, 2, 2}, {64, dtype.BF16, dtype.BF16, 3, 1}, {33, dtype.F32, dtype.F32, 0, 1},
	} {
		if got := VectorWidth(copies(c.cols, c.from, c.to, c.offset)); got != c.want {
			t.Errorf("%+v: %d columns at once, want %d", c, got, c.want)
		}
	}
}

// TestOnlyStore: OnlyStore returns nil unless a kernel has one store, which is in the body of the last
// phase and at no index from memory.
func TestOnlyStore(t *testing.T) {
	k := copies(64, dtype.F32, dtype.F32, 0)
	if s := OnlyStore(k); s == nil || s != &k.Phases[0].Body[2] {
		t.Errorf("the store is %v, want the last instruction", s)
	}
	body := k.Phases[0].Body
	for name, change := range map[string]func(k *loop.Kernel){
		"no phase":          func(k *loop.Kernel) { k.Phases = nil },
		"two":               func(k *loop.Kernel) { k.Phases = []loop.Phase{{Body: append(body[:3:3], body[2])}} },
		"per row":           func(k *loop.Kernel) { k.Phases = []loop.Phase{{Row: body}} },
		"in phase 0 of two": func(k *loop.Kernel) { k.Phases = []loop.Phase{{Body: body}, {Body: body[:2]}} },
		"none":              func(k *loop.Kernel) { k.Phases = []loop.Phase{{Body: body[:2]}} },
		"at an index": func(k *loop.Kernel) {
			in := body[2]
			in.Access = &loop.Access{Arg: 1, Cols: in.Access.Cols, Index: &loop.Index{At: 0}}
			k.Phases = []loop.Phase{{Body: []loop.Instr{body[0], body[1], in}}}
		},
	} {
		k := copies(64, dtype.F32, dtype.F32, 0)
		change(k)
		if s := OnlyStore(k); s != nil {
			t.Errorf("%s: the store is %v, want nil", name, s)
		}
	}
}

// TestIndicesFit: rows times columns decide, with room for the threads of the last block.
func TestIndicesFit(t *testing.T) {
	for hi, want := range map[int64]bool{8192: true, 1 << 25: false, MaxIndex/64 - 1: true, MaxIndex/64 + 1: false} {
		k := copies(64, dtype.F32, dtype.F32, 0)
		k.Ranges["N"] = dim.Interval{Lo: 1, Hi: hi}
		if got := IndicesFit(k); got != want {
			t.Errorf("up to %d rows: indices fit: %v, want %v", hi, got, want)
		}
	}
	k := copies(64, dtype.F32, dtype.F32, 0)
	k.Ranges = nil
	if IndicesFit(k) {
		t.Error("rows without a range fit")
	}
}
