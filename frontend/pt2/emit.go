package pt2

import (
	"fmt"
	"runtime"
	"strings"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// A refusal is the panic of a rule that cannot import its node. [try] makes an error of it.
type refusal struct{ err error }

// try calls f and returns its refusal. Rules rely on the ranks that PyTorch gives operands. An archive that PyTorch
// did not write may break them; the access out of range that follows is a refusal too.
func try(f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case refusal:
			err = r.err
		case runtime.Error:
			err = fmt.Errorf("the operands do not have the axes that the op takes: %w", r)
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// An emitter adds nodes to the function. A node that the builder refuses is a refusal.
type emitter struct {
	fb   *ir.FuncBuilder
	syms *symbols
}

func (e *emitter) refuse(format string, args ...any) {
	panic(refusal{fmt.Errorf(format, args...)})
}

func (e *emitter) op(name string, args []ir.Value, attrs ...ir.Attr) ir.Value {
	return e.ops(name, args, attrs...)[0]
}

// ops adds a node with any number of results.
func (e *emitter) ops(name string, args []ir.Value, attrs ...ir.Attr) []ir.Value {
	r := e.fb.Op(name, args, attrs...)
	if len(r) > 0 && r[0] == ir.NoValue {
		types := make([]string, len(args))
		for i, a := range args {
			types[i] = e.fb.Type(a).String()
			if e.fb.Func().Values[a].Kind == ir.LiteralValue {
				types[i] = "a literal"
			}
		}
		e.refuse("%s of the IR does not take %s", name, strings.Join(types, ", "))
	}
	return r
}

func (e *emitter) un(name string, x ir.Value) ir.Value { return e.op(name, []ir.Value{x}) }

func (e *emitter) bin(name string, a, b ir.Value) ir.Value { return e.op(name, []ir.Value{a, b}) }

func (e *emitter) compare(dir string, a, b ir.Value) ir.Value {
	return e.op("compare", []ir.Value{a, b}, ir.EnumAttr("dir", dir))
}

func (e *emitter) where(cond, a, b ir.Value) ir.Value { return e.op("where", []ir.Value{cond, a, b}) }

func (e *emitter) f(x float64) ir.Value { return e.fb.Float(x) }

func (e *emitter) i(x int64) ir.Value { return e.fb.Int(x) }

func (e *emitter) shape(v ir.Value) []dim.Dim { return e.fb.Type(v).Shape }

func (e *emitter) dtype(v ir.Value) dtype.DType { return e.fb.Type(v).DType }

func (e *emitter) rank(v ir.Value) int { return e.fb.Type(v).Rank() }

// cast converts a value to a dtype, unless it has the dtype.
func (e *emitter) cast(v ir.Value, dt dtype.DType) ir.Value {
	if e.dtype(v) == dt {
		return v
	}
	return e.op("cast", []ir.Value{v}, ir.DTypeAttr(dt))
}

func (e *emitter) reshape(v ir.Value, shape ...dim.Dim) ir.Value {
	if sameShape(e.shape(v), shape) {
		return v
	}
	return e.op("reshape", []ir.Value{v}, ir.DimsAttr("shape", shape...))
}

func sameShape(a, b []dim.Dim) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].Equal(b[i]) {
			return false
		}
	}
	return true
}

func (e *emitter) expand(v ir.Value, shape ...dim.Dim) ir.Value {
	if sameShape(e.shape(v), shape) {
		return v
	}
	return e.op("broadcast_to", []ir.Value{v}, ir.DimsAttr("shape", shape...))
}

func (e *emitter) transpose(v ir.Value, perm ...int) ir.Value {
	same := true
	at := make([]int64, len(perm))
	for i, p := range perm {
		at[i] = int64(p)
		same = same && p == i
	}
	if same {
		return v
	}
	return e.op("transpose", []ir.Value{v}, ir.IntsAttr("perm", at...))
}

// moved returns the permutation that moves axis from[i] to place to[i]. The other axes keep their order.
func moved(rank int, from, to []int) []int {
	perm := make([]int, rank)
	taken, placed := make([]bool, rank), make([]bool, rank)
	for i, f := range from {
		perm[to[i]] = f
		taken[f], placed[to[i]] = true, true
	}
	next := 0
	for i := range perm {
		if placed[i] {
			continue
		}
		for taken[next] {
			next++
		}
		perm[i] = next
		next++
	}
	return perm
}

func (e *emitter) slice(v ir.Value, axis int, start, end dim.Dim, step int64) ir.Value {
	if n, ok := start.Const(); ok && n == 0 && step == 1 && end.Equal(e.shape(v)[axis]) {
		return v
	}
	attrs := []ir.Attr{ir.IntAttr("axis", int64(axis)), ir.DimAttr("start", start), ir.DimAttr("end", end)}
	if step != 1 {
		attrs = append(attrs, ir.IntAttr("step", step))
	}
	return e.op("slice", []ir.Value{v}, attrs...)
}

// at returns index i of an axis, without the axis.
func (e *emitter) at(v ir.Value, axis int, i dim.Dim) ir.Value {
	part := e.slice(v, axis, i, i.Add(dim.Const(1)), 1)
	return e.squeeze(part, axis)
}

func (e *emitter) squeeze(v ir.Value, axis int) ir.Value {
	return e.reshape(v, without(e.shape(v), axis)...)
}

func (e *emitter) unsqueeze(v ir.Value, axis int) ir.Value {
	return e.reshape(v, with(e.shape(v), axis, dim.Const(1))...)
}

func without(s []dim.Dim, axis int) []dim.Dim {
	return append(append([]dim.Dim{}, s[:axis]...), s[axis+1:]...)
}

func with(s []dim.Dim, axis int, d dim.Dim) []dim.Dim {
	return append(append(append([]dim.Dim{}, s[:axis]...), d), s[axis:]...)
}

// replaced returns the shape with other sizes in place of one.
func replaced(s []dim.Dim, axis int, d ...dim.Dim) []dim.Dim {
	return append(append(append([]dim.Dim{}, s[:axis]...), d...), s[axis+1:]...)
}

func product(s []dim.Dim) dim.Dim {
	n := dim.Const(1)
	for _, d := range s {
		n = n.Mul(d)
	}
	return n
}

func (e *emitter) concat(axis int, parts ...ir.Value) ir.Value {
	if len(parts) == 1 {
		return parts[0]
	}
	return e.op("concat", parts, ir.IntAttr("axis", int64(axis)))
}

func (e *emitter) reduce(name string, v ir.Value, axes []int, keep bool) ir.Value {
	at := make([]int64, len(axes))
	for i, a := range axes {
		at[i] = int64(a)
	}
	return e.op(name, []ir.Value{v}, ir.IntsAttr("axes", at...), ir.BoolAttr("keepdims", keep))
}

func (e *emitter) gather(v, index ir.Value, axis int) ir.Value {
	return e.op("gather", []ir.Value{v, index}, ir.IntAttr("axis", int64(axis)))
}

func (e *emitter) iota(dt dtype.DType, n ...dim.Dim) ir.Value {
	return e.op("iota", nil, ir.DimsAttr("shape", n...), ir.DTypeAttr(dt))
}

// along returns the indices 0 … n-1 of an axis, as a tensor of the given rank in which all other axes have size 1, so
// that it broadcasts.
func (e *emitter) along(dt dtype.DType, rank, axis int, n dim.Dim) ir.Value {
	shape := make([]dim.Dim, rank)
	for i := range shape {
		shape[i] = dim.Const(1)
	}
	shape[axis] = n
	return e.op("iota", nil, ir.DimsAttr("shape", shape...), ir.DTypeAttr(dt), ir.IntAttr("axis", int64(axis)))
}

func (e *emitter) full(value ir.Value, dt dtype.DType, shape ...dim.Dim) ir.Value {
	return e.op("full", []ir.Value{value}, ir.DimsAttr("shape", shape...), ir.DTypeAttr(dt))
}

// number returns a literal for operands of a dtype.
func (e *emitter) number(x float64, dt dtype.DType) ir.Value {
	if dt.Float() {
		return e.f(x)
	}
	return e.i(int64(x))
}

// dimValue returns a size as an operand: a literal, or a scalar tensor for a size that only a run knows. The tensor
// is the last element of an iota 0 … d. Fused into a slice, the iota takes no memory.
func (e *emitter) dimValue(d dim.Dim, dt dtype.DType) ir.Value {
	if n, ok := d.Const(); ok {
		if dt.Float() {
			return e.f(float64(n))
		}
		return e.i(n)
	}
	all := e.iota(dtype.I64, d.Add(dim.Const(1)))
	return e.cast(e.reshape(e.slice(all, 0, d, d.Add(dim.Const(1)), 1)), dt)
}

// scalar returns a size as a scalar tensor, also if it is constant.
func (e *emitter) scalar(d dim.Dim, dt dtype.DType) ir.Value {
	v := e.dimValue(d, dt)
	if _, ok := d.Const(); ok {
		return e.full(v, dt)
	}
	return v
}
