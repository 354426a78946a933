package compile

import (
	"math"
	"strings"

	"pwc/ir"
	"pwc/ir/dtype"
)

// fold replaces pointwise nodes over constants, and reshapes and broadcasts of uniform
// tensors, by constants: a full, or a const vector of at most maxFold elements. It computes
// as the interpreter does, floats in float64 with one rounding, and only ops whose results
// IEEE 754 or two's complement defines, so that every machine folds to the same bits.
func fold(m *ir.Module, fn *ir.Func) (*ir.Func, error) {
	written := writtenStorages(fn)
	known := make([]*constants, len(fn.Values))
	return ir.RewriteUnverified(m, fn, func(rw *ir.Rewriter, _ int, n *ir.Node) {
		c := evaluate(fn, n, known, written)
		if c == nil {
			rw.Keep(n)
			return
		}
		r := n.Results[0]
		known[r] = c
		t := fn.Type(r)
		switch {
		case n.Op.Class == ir.Creation:
			rw.Keep(n)
		case c.uniform:
			rw.Replace(r, rw.Op1("full", []ir.Value{rw.Literal(c.literal(0))}, ir.DimsAttr("shape", t.Shape...), ir.DTypeAttr(t.DType)))
		default:
			v := rw.Op1("const", nil, ir.FloatsAttr("values", c.floats()...), ir.DTypeAttr(t.DType))
			if t.Rank() != 1 {
				v = rw.Op1("reshape", []ir.Value{v}, ir.DimsAttr("shape", t.Shape...))
			}
			rw.Replace(r, v)
		}
	})
}

const maxFold = 256

// constants has the elements of a value, or, if uniform, one element that all are equal to.
type constants struct {
	dt      dtype.DType
	uniform bool
	f       []float64 // of float dtypes
	i       []int64   // of others
}

func (c *constants) len() int { return max(len(c.f), len(c.i)) }

func (c *constants) literal(k int) ir.Literal {
	if c.dt.Float() {
		return ir.Literal{Float: c.f[k]}
	}
	return ir.Literal{IsInt: true, Int: c.i[k]}
}

func (c *constants) floats() []float64 {
	if c.dt.Float() {
		return c.f
	}
	out := make([]float64, len(c.i))
	for k, x := range c.i {
		out[k] = float64(x)
	}
	return out
}

// evaluate returns the contents of the node's result if they are known.
func evaluate(fn *ir.Func, n *ir.Node, known []*constants, written map[ir.Value]int) *constants {
	if len(n.Results) != 1 || written[n.Results[0]] > 0 {
		return nil
	}
	t := fn.Type(n.Results[0])
	if !t.DType.Computes() {
		return nil
	}
	switch n.Op.ID {
	case ir.OpFull:
		return splat(t.DType, fn.Values[n.Args[0]].Literal, true)
	case ir.OpConst:
		a, _ := n.Attr("values")
		c := &constants{dt: t.DType}
		for _, x := range a.Floats {
			c.push(t.DType.Round(x), int64(x))
		}
		if c.len() == 0 || c.len() > maxFold {
			return nil
		}
		return c
	case ir.OpReshape, ir.OpBroadcastTo:
		if c := known[n.Args[0]]; c != nil && c.uniform {
			return c
		}
		return nil
	}
	if n.Op.Class != ir.Pointwise {
		return nil
	}
	args := make([]*constants, len(n.Args))
	size := 1
	for j, a := range n.Args {
		info := &fn.Values[a]
		if info.Kind == ir.LiteralValue {
			args[j] = splat(info.Type.DType, info.Literal, false)
		} else if args[j] = known[a]; args[j] == nil {
			return nil
		} else if !args[j].uniform {
			// Only elements of one shape: broadcasting is left to the kernels.
			if !fn.Type(a).Equal(ir.Type{DType: args[j].dt, Shape: t.Shape}) || size != 1 && size != args[j].len() {
				return nil
			}
			size = args[j].len()
		}
	}
	c := &constants{dt: t.DType, uniform: true}
	for _, a := range args {
		c.uniform = c.uniform && a.uniform
	}
	for k := range size {
		if !c.apply(n, args, k) {
			return nil
		}
	}
	for _, x := range c.i { // const holds float64s; 2^63 converts to different integers on different machines
		if f := float64(x); !c.uniform && (f == 1<<63 || int64(f) != x) {
			return nil
		}
	}
	return c
}

// splat returns constants of one number. A literal operand is not rounded.
func splat(dt dtype.DType, l ir.Literal, round bool) *constants {
	c := &constants{dt: dt, uniform: true}
	x := l.Float64()
	if round {
		x = dt.Round(x)
	}
	c.push(x, l.Int)
	return c
}

func (c *constants) push(f float64, i int64) {
	if c.dt.Float() {
		c.f = append(c.f, f)
	} else {
		c.i = append(c.i, i)
	}
}

// apply computes element k. It returns false for ops that do not fold.
func (c *constants) apply(n *ir.Node, args []*constants, k int) bool {
	at := func(j int) (float64, int64) {
		a := args[j]
		e := k
		if a.uniform {
			e = 0
		}
		if a.dt.Float() {
			return a.f[e], 0
		}
		return 0, a.i[e]
	}
	x, xi := at(0)
	y, yi := x, xi
	z, zi := x, xi
	if len(args) > 1 {
		y, yi = at(1)
	}
	if len(args) > 2 {
		z, zi = at(2)
	}
	switch n.Op.ID {
	case ir.OpWhere:
		if xi == 0 {
			y, yi = z, zi
		}
		c.push(c.dt.Round(y), yi)
		return true
	case ir.OpCompare:
		dir, _ := n.Attr("dir")
		holds := relation(dir.Str, x, y)
		if !args[0].dt.Float() {
			holds = relation(dir.Str, xi, yi)
		}
		c.i = append(c.i, int64(boolByte(holds)))
		return true
	case ir.OpCast:
		return c.cast(args[0].dt, x, xi)
	case ir.OpClamp:
		x, xi = max(x, y), max(xi, yi)
		c.push(c.dt.Round(min(x, z)), min(xi, zi))
		return true
	}
	if c.dt.Float() {
		r, ok := foldFloat(n.Op.ID, x, y)
		c.f = append(c.f, c.dt.Round(r))
		return ok
	}
	r, ok := foldInt(n.Op.ID, xi, yi, c.dt == dtype.Bool)
	c.i = append(c.i, c.dt.Wrap(r))
	return ok
}

func relation[T float64 | int64](dir string, a, b T) bool {
	return strings.Contains(dir, "eq") && a == b || dir == "ne" && a != b || dir == "lt" && a < b ||
		dir == "le" && a <= b || dir == "gt" && a > b || dir == "ge" && a >= b
}

// cast folds conversions that need no rule besides rounding and wrapping: floats to
// floats, integers to integers, small integers to floats, any number to bool, and floats that
// are integers of the dtype, of magnitude below 2^31.
func (c *constants) cast(from dtype.DType, f float64, i int64) bool {
	switch {
	case from.Float() && c.dt.Float():
		c.push(c.dt.Round(f), 0)
	case !from.Float() && !c.dt.Float():
		c.push(0, c.dt.Wrap(i))
	case c.dt.Float() && i > -1<<24 && i < 1<<24:
		c.push(c.dt.Round(float64(i)), 0)
	case c.dt == dtype.Bool:
		c.push(0, int64(boolByte(f != 0)))
	case !c.dt.Float() && f == math.Trunc(f) && math.Abs(f) < 1<<31 && c.dt.Wrap(int64(f)) == int64(f):
		c.push(0, int64(f))
	default:
		return false
	}
	return true
}

// foldFloat computes ops that are exact or correctly rounded in float64.
func foldFloat(op ir.OpID, x, y float64) (float64, bool) {
	switch op {
	case ir.OpNeg:
		return -x, true
	case ir.OpAbs:
		return math.Abs(x), true
	case ir.OpSqrt:
		return math.Sqrt(x), true
	case ir.OpReciprocal:
		return 1 / x, true
	case ir.OpRelu:
		return max(x, 0), true
	case ir.OpFloor:
		return math.Floor(x), true
	case ir.OpCeil:
		return math.Ceil(x), true
	case ir.OpRound:
		return math.RoundToEven(x), true
	case ir.OpAdd:
		return x + y, true
	case ir.OpSub:
		return x - y, true
	case ir.OpMul:
		return x * y, true
	case ir.OpDiv:
		return x / y, true
	case ir.OpMaximum:
		return max(x, y), true
	case ir.OpMinimum:
		return min(x, y), true
	}
	return 0, false
}

func foldInt(op ir.OpID, x, y int64, isBool bool) (int64, bool) {
	switch op {
	case ir.OpNeg:
		return -x, true
	case ir.OpAbs:
		return max(x, -x), true
	case ir.OpRelu:
		return max(x, 0), true
	case ir.OpNot:
		if isBool {
			return 1 - x, true
		}
		return ^x, true
	case ir.OpAdd:
		return x + y, true
	case ir.OpSub:
		return x - y, true
	case ir.OpMul:
		return x * y, true
	case ir.OpDiv:
		if y == 0 {
			return 0, true
		}
		return x / y, true
	case ir.OpRem:
		if y == 0 {
			return 0, true
		}
		return x % y, true
	case ir.OpMaximum:
		return max(x, y), true
	case ir.OpMinimum:
		return min(x, y), true
	case ir.OpAnd:
		return x & y, true
	case ir.OpOr:
		return x | y, true
	case ir.OpXor:
		return x ^ y, true
	}
	return 0, false
}
