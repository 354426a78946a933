package host

import (
	"strings"
	"testing"

	"pwc/compile/loop"
	"pwc/internal/oracle"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// TestOps: the instruction selection has an instruction for every op on elements of the op
// table, and for every dtype that the op takes.
func TestOps(t *testing.T) {
	for _, k := range oracle.ElementKernels() {
		if _, err := New().Lower(k.Kernel); err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
	}
}

// kernel makes a kernel of one phase that loads n f32 columns, applies body and stores the value that
// body returns.
func kernel(n int64, body func(k *loop.Kernel, x loop.Value) loop.Value) *loop.Kernel {
	one := []dim.Dim{dim.Const(1)}
	k := &loop.Kernel{Name: "k", Cols: []dim.Dim{dim.Const(n)}, Args: []loop.Arg{{DType: dtype.F32}, {DType: dtype.F32, Write: true}},
		Values: []loop.ValueInfo{{DType: dtype.F32}}, Phases: make([]loop.Phase, 1)}
	k.Phases[0].Body = []loop.Instr{{Op: loop.Load, Dst: 0, Access: &loop.Access{Arg: 0, Cols: one}}}
	v := body(k, 0)
	k.Phases[0].Body = append(k.Phases[0].Body, loop.Instr{Op: loop.Store, Dst: loop.NoValue, Args: []loop.Value{v}, Access: &loop.Access{Arg: 1, Cols: one}})
	return k
}

func add(k *loop.Kernel, op loop.Op, dt dtype.DType, args ...loop.Value) loop.Value {
	v := loop.Value(len(k.Values))
	k.Values = append(k.Values, loop.ValueInfo{DType: dt})
	k.Phases[0].Body = append(k.Phases[0].Body, loop.Instr{Op: op, Dst: v, Args: args})
	return v
}

// TestRegisters: a kernel has as many registers as it has values that are live at the same time.
func TestRegisters(t *testing.T) {
	for _, c := range []struct {
		name string
		want uint16
		body func(k *loop.Kernel, x loop.Value) loop.Value
	}{
		{"chain", 1, func(k *loop.Kernel, x loop.Value) loop.Value {
			for range 100 {
				x = add(k, loop.Exp, dtype.F32, x)
			}
			return x
		}},
		{"one more alive", 2, func(k *loop.Kernel, x loop.Value) loop.Value {
			y := x
			for range 100 {
				y = add(k, loop.Add, dtype.F32, y, x)
			}
			return y
		}},
		{"tree of eight", 9, func(k *loop.Kernel, x loop.Value) loop.Value {
			var list []loop.Value
			for range 8 {
				list = append(list, add(k, loop.Sin, dtype.F32, x))
			}
			y := x
			for _, v := range list {
				y = add(k, loop.Mul, dtype.F32, v, y)
			}
			return y
		}},
	} {
		v, err := Kernel(kernel(64, c.body))
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Validate(); err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, v)
		}
		if v.Loop.Regs.F != c.want {
			t.Errorf("%s: %d registers, want %d\n%s", c.name, v.Loop.Regs.F, c.want, v)
		}
	}
}

// TestRounding pins where narrow values are rounded: after arithmetic, and not
// where the result is a number of the dtype already.
func TestRounding(t *testing.T) {
	for _, c := range []struct {
		op    loop.Op
		round int
	}{{loop.Add, 1}, {loop.Exp, 1}, {loop.Neg, 0}, {loop.Maximum, 0}, {loop.Floor, 0}} {
		k := kernel(8, func(k *loop.Kernel, x loop.Value) loop.Value {
			h := add(k, loop.Cast, dtype.BF16, x)
			if c.op == loop.Add || c.op == loop.Maximum {
				return add(k, c.op, dtype.BF16, h, h)
			}
			return add(k, c.op, dtype.BF16, h)
		})
		v, err := Kernel(k)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(v.String(), "round.bf16"); n != 1+c.round {
			t.Errorf("%s: %d roundings, want the cast's and %d\n%s", c.op, n, c.round, v)
		}
	}
}

// TestWrap pins that integer arithmetic is wrapped to its dtype. In i64 it needs no instruction to wrap.
func TestWrap(t *testing.T) {
	for dt, want := range map[dtype.DType]int{dtype.I8: 2, dtype.U8: 2, dtype.I32: 2, dtype.I64: 0} {
		k := kernel(8, func(k *loop.Kernel, x loop.Value) loop.Value {
			i := add(k, loop.Cast, dt, x)
			i = add(k, loop.Mul, dt, add(k, loop.Add, dt, i, i), i)
			return add(k, loop.Cast, dtype.F32, add(k, loop.And, dt, i, i))
		})
		v, err := Kernel(k)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(v.String(), "wrap"); n != want {
			t.Errorf("%s: %d wraps, want %d\n%s", dt, n, want, v)
		}
	}
}

// TestIntegersToFloats pins which casts round to odd in f32: casts to bf16 of integers with
// more than 24 bits. A cast to f32 rounds to nearest, however its result is used.
func TestIntegersToFloats(t *testing.T) {
	for _, from := range []dtype.DType{dtype.Bool, dtype.I8, dtype.U8, dtype.I16, dtype.I32, dtype.I64} {
		for _, to := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
			k := kernel(8, func(k *loop.Kernel, x loop.Value) loop.Value {
				h := add(k, loop.Cast, to, add(k, loop.Cast, from, x))
				return add(k, loop.Cast, dtype.F32, add(k, loop.Cast, dtype.BF16, h))
			})
			v, err := Kernel(k)
			if err != nil {
				t.Fatal(err)
			}
			wide := from == dtype.I32 || from == dtype.I64
			if odd := strings.Contains(v.String(), "itof.odd"); odd != (wide && to == dtype.BF16) {
				t.Errorf("%s to %s rounds to odd: %v, want %v\n%s", from, to, odd, !odd, v)
			}
		}
	}
}

// TestNoInstruction: an op without an instruction is an error.
func TestNoInstruction(t *testing.T) {
	_, err := New().Lower(kernel(8, func(k *loop.Kernel, x loop.Value) loop.Value {
		return add(k, loop.And, dtype.F32, x, x)
	}))
	if err == nil || !strings.Contains(err.Error(), "no instruction for and of f32") {
		t.Errorf("error %v, want that it has no instruction", err)
	}
}
