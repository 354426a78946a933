package pt2

import (
	"errors"
	"math"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// createRules are the ops that create tensors, convert them, or check sizes and types.
var createRules = map[string]opRule{
	"aten.zeros": filled(0), "aten.ones": filled(1), "aten.zeros_like": filled(0), "aten.ones_like": filled(1), "aten.new_zeros": filled(0), "aten.new_ones": filled(1),
	"aten.empty": filled(0), "aten.empty_like": filled(0), "aten.new_empty": filled(0), "aten.empty_strided": filled(0), "aten.new_empty_strided": filled(0), "aten.empty_permuted": filled(0),
	"aten.full": fill, "aten.full_like": fill, "aten.new_full": fill, "aten.scalar_tensor": fill,
	"aten.zero": filled(0), "aten.fill": fill,
	"aten.arange": arange, "aten.linspace": linspace, "aten.tril_indices": triangleIndices, "aten.triu_indices": triangleIndices, "aten.eye": eye,
	"aten.clone": copied, "aten.lift_fresh_copy": copied, "aten._to_copy": copied, "aten.detach_copy": copied, "aten.alias_copy": copied,
	"aten.copy": func(c *call) []ir.Value {
		t := c.out(0)
		return one(c.expand(c.cast(c.tensor("src"), t.DType), t.Shape...))
	},
	"aten._assert_tensor_metadata": nothing, "aten.sym_constrain_range": nothing, "aten.sym_constrain_range_for_size": nothing,
	"aten._assert_scalar": assertScalar,
	"aten.sym_size":       nothing, "aten.sym_numel": nothing, "aten.sym_stride": nothing, "aten.sym_storage_offset": nothing,
}

// nothing is the rule of ops whose results are sizes, which the archive has as expressions, of range constraints,
// which the archive lists, and of type checks: the import compares the type of every value that is read with the
// archive.
func nothing(*call) []ir.Value { return nil }

// assertScalar checks that the ranges of the dimensions imply a relation of sizes, or that a constant is true.
func assertScalar(c *call) []ir.Value {
	var v symBool
	switch a := c.in["self"]; {
	case a == nil:
	case a.Bool != nil:
		v.Bool = a.Bool
	case a.SymBool != nil && a.SymBool.Name != nil:
		v = c.graph.SymBoolValues[*a.SymBool.Name]
	case a.SymBool != nil:
		v.Bool = a.SymBool.Bool
	}
	switch {
	case v.Expr != nil:
		if err := c.syms.holds(v.Expr.Expr); err != nil {
			c.fail("%v", err)
		}
	case v.Bool == nil:
		c.fail("it asserts something other than a relation of sizes")
	case !*v.Bool:
		c.fail("it asserts a condition that is false")
	}
	return nil
}

func filled(x float64) opRule {
	return func(c *call) []ir.Value {
		t := c.out(0)
		return one(c.full(c.number(x, t.DType), t.DType, t.Shape...))
	}
}

// fill makes a tensor of the result's type from a number, a size or a scalar tensor.
func fill(c *call) []ir.Value {
	t := c.out(0)
	for _, name := range []string{"fill_value", "value", "s"} {
		switch a := c.in[name]; {
		case a == nil:
		case a.Tensor != nil || a.SymInt != nil:
			v := c.operand(name, t.DType)
			if a.SymInt != nil {
				v = c.scalar(c.dim(name, dim.Const(0)), t.DType)
			}
			return one(c.expand(v, t.Shape...))
		default:
			return one(c.full(c.operand(name, t.DType), t.DType, t.Shape...))
		}
	}
	panic(refusal{errors.New("it has no value")})
}

func copied(c *call) []ir.Value { return one(c.cast(c.tensor("self"), c.out(0).DType)) }

// arange is start, start+step, …; the shape of the result has the number of elements.
func arange(c *call) []ir.Value {
	t := c.out(0)
	if t.Rank() != 1 {
		c.fail("its result has %d axes", t.Rank())
	}
	v := c.iota(dtype.I64, t.Shape[0])
	dt := t.DType
	if dt.Float() {
		v = c.cast(v, dtype.F32)
		dt = dtype.F32
	}
	if step := c.float("step", 1); step != 1 {
		v = c.bin("mul", v, c.number(step, dt))
	}
	if c.has("start") {
		if d := c.in["start"]; d.SymInt != nil || c.float("start", 0) != 0 {
			v = c.bin("add", v, c.operand("start", dt))
		}
	}
	return one(c.cast(v, t.DType))
}

func linspace(c *call) []ir.Value {
	t := c.out(0)
	n, ok := c.dim("steps", dim.Const(1)).Const()
	if !ok || n < 1 || n > 1<<16 {
		c.fail("steps must be a constant from 1 to %d", 1<<16)
	}
	start, end := c.float("start", 0), c.float("end", 1)
	values := make([]float64, n)
	for i := range values {
		values[i] = start
		if n > 1 {
			values[i] = start + (end-start)*float64(i)/float64(n-1)
		}
		if !t.DType.Float() {
			values[i] = math.Trunc(values[i])
		}
	}
	return one(c.constants(t.DType, values))
}

// triangleIndices is tril_indices or triu_indices: rows and columns of the elements of a triangle, in row-major
// order.
func triangleIndices(c *call) []ir.Value {
	t := c.out(0)
	rows, cols, offset := c.int("row", 0), c.int("col", 0), c.int("offset", 0)
	if rows < 0 || cols < 0 || rows > 1<<10 || cols > 1<<10 {
		c.fail("it takes at most %d rows and columns", 1<<10)
	}
	var row, col []float64
	for i := range rows {
		for j := range cols {
			if lower := c.base == "aten.tril_indices"; lower && j <= i+offset || !lower && j >= i+offset {
				row, col = append(row, float64(i)), append(col, float64(j))
			}
		}
	}
	if len(row) == 0 {
		return one(c.full(c.i(0), t.DType, t.Shape...))
	}
	return one(c.concat(0, c.unsqueeze(c.constants(t.DType, row), 0), c.unsqueeze(c.constants(t.DType, col), 0)))
}

func (e *emitter) constants(dt dtype.DType, values []float64) ir.Value {
	return e.op("const", nil, ir.FloatsAttr("values", values...), ir.DTypeAttr(dt))
}

func eye(c *call) []ir.Value {
	t := c.out(0)
	same := c.compare("eq", c.along(dtype.I64, 2, 0, t.Shape[0]), c.along(dtype.I64, 2, 1, t.Shape[1]))
	return one(c.cast(same, t.DType))
}
