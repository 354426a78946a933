package irgen

import (
	"math"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// op adds a node of the op, after nodes for operands that it needs, unless it finds no suitable operands.
func (g *generator) op(op ir.OpID) {
	switch op {
	case ir.OpNeg, ir.OpAbs, ir.OpRelu, ir.OpSign:
		g.sameSize(op)
	case ir.OpFloor, ir.OpCeil, ir.OpRound:
		if x := g.pick(both(float, exact)); x != nil {
			g.emit(op.String(), []ir.Value{x.v}, value{max: math.Ceil(x.max), exact: true, whole: true})
		}
	case ir.OpExp, ir.OpLog, ir.OpSqrt, ir.OpRsqrt, ir.OpReciprocal, ir.OpSin, ir.OpCos, ir.OpTanh, ir.OpErf, ir.OpSigmoid, ir.OpSilu, ir.OpGelu, ir.OpGeluTanh:
		g.series(op)
	case ir.OpNot:
		if x := g.pick(func(x *value) bool { return !float(x) }); x != nil {
			like := sum(x.t.DType, x.max+1, x)
			if !x.t.DType.Signed() {
				like.max = intMax(x.t.DType)
			}
			g.emit(op.String(), []ir.Value{x.v}, like)
		}
	case ir.OpAdd, ir.OpSub, ir.OpMul, ir.OpMaximum, ir.OpMinimum, ir.OpAnd, ir.OpOr, ir.OpXor, ir.OpDiv, ir.OpRem, ir.OpPow, ir.OpCompare:
		g.binary(op)
	case ir.OpWhere:
		g.where()
	case ir.OpClamp:
		if x := g.pick(number); x != nil {
			lo := float64(g.r.Intn(4)) - 3
			g.clamp(x, lo, lo+float64(g.r.Intn(6)), true)
		}
	case ir.OpCast:
		g.cast()
	case ir.OpSum, ir.OpMean, ir.OpMax, ir.OpMin, ir.OpProd, ir.OpCumSum, ir.OpArgMax, ir.OpTopK:
		g.reduce(op)
	case ir.OpSoftmax, ir.OpRMSNorm, ir.OpLayerNorm, ir.OpRope:
		g.composite(op)
	case ir.OpMatmul, ir.OpLinear:
		g.gemm(op)
	case ir.OpLinearSelect:
		g.linearSelect()
	case ir.OpAttention, ir.OpAttentionGrad:
		g.attention(op == ir.OpAttentionGrad)
	case ir.OpEmbedding, ir.OpGather, ir.OpScatter, ir.OpCopy, ir.OpEmpty, ir.OpEmptyLike, ir.OpCall:
		g.memory(op)
	case ir.OpReshape, ir.OpTranspose, ir.OpBroadcastTo, ir.OpSlice, ir.OpSplit, ir.OpConcat, ir.OpPad:
		g.layout(op)
	case ir.OpIota, ir.OpFull, ir.OpConst, ir.OpUniform:
		g.create(op)
	case ir.OpDropout:
		g.dropout()
	case ir.OpPhilox:
		g.philox()
	case ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpBroadcast:
		g.collective(op)
	}
}

// sameSize adds an op whose result is as exact as its operand.
func (g *generator) sameSize(op ir.OpID) {
	ok := number
	if op == ir.OpSign { // discontinuous at 0
		ok = both(number, exact)
	}
	x := g.pick(ok)
	if x == nil {
		return
	}
	like := value{max: x.max, exact: x.exact, whole: x.whole}
	switch {
	case op == ir.OpSign:
		like.max, like.whole = 1, true
	case !float(x):
		like.max = intMax(x.t.DType) // -(-128) wraps
	}
	g.emit(op.String(), []ir.Value{x.v}, like)
}

// series adds a float function whose last bits depend on the implementation.
func (g *generator) series(op ir.OpID) {
	x := g.pick(float)
	if x == nil {
		return
	}
	bound := x.max
	switch op {
	case ir.OpExp:
		x, bound = g.limited(x, 3), 21
	case ir.OpLog:
		x, bound = g.positive(x, 0.125, 8), 2.1
	case ir.OpSqrt:
		x, bound = g.positive(x, 0.125, 64), 8
	case ir.OpRsqrt:
		x, bound = g.positive(x, 0.125, 64), 2.9
	case ir.OpReciprocal:
		x, bound = g.positive(x, 0.25, 64), 4
	case ir.OpSin, ir.OpCos:
		x, bound = g.limited(x, 16), 1
	case ir.OpTanh, ir.OpErf, ir.OpSigmoid:
		bound = 1
	}
	if x != nil {
		g.emit(op.String(), []ir.Value{x.v}, result(bound))
	}
}

// partner returns a second operand for x that ok accepts, and the broadcast shape.
func (g *generator) partner(x *value, ok func(*value) bool) (*value, []dim.Dim) {
	y := g.pick(func(y *value) bool {
		if y.t.DType != x.t.DType || !ok(y) {
			return false
		}
		s, fits := broadcast(x.t.Shape, y.t.Shape)
		return fits && g.shapeOK(s)
	})
	if y == nil {
		return nil, nil
	}
	s, _ := broadcast(x.t.Shape, y.t.Shape)
	return y, s
}

// binaryOperand returns the condition for operands of a binary op.
func binaryOperand(op ir.OpID) func(x *value) bool {
	switch op {
	case ir.OpAnd, ir.OpOr, ir.OpXor:
		return func(x *value) bool { return !float(x) }
	case ir.OpPow:
		return float
	case ir.OpCompare:
		return exact
	case ir.OpRem:
		return func(x *value) bool { return number(x) && (!float(x) || x.small()) }
	}
	return number
}

func (g *generator) binary(op ir.OpID) {
	if op == ir.OpCompare && !g.has(dtype.Bool) {
		return
	}
	ok := binaryOperand(op)
	x := g.pick(ok)
	if x == nil {
		return
	}
	var y *value
	var arg ir.Value
	if g.chance(3) { // a literal
		lit := float64(1 + g.r.Intn(4))
		if x.t.DType == dtype.Bool {
			lit = float64(g.r.Intn(2))
		} else if x.t.DType.Signed() && op != ir.OpPow && g.chance(2) {
			lit = -lit
		}
		y = &value{max: math.Abs(lit), exact: true, whole: true}
		arg = g.scalar(x.t.DType, lit)
	} else {
		if y, _ = g.partner(x, ok); y == nil {
			return
		}
		switch op {
		case ir.OpDiv, ir.OpPow:
			if float(x) {
				y = g.positive(y, 0.5, 4)
			}
		case ir.OpRem:
			y = g.clamp(y, 1, 4, true)
		}
		if y == nil {
			return
		}
		arg = y.v
	}
	dt := x.t.DType
	like := value{exact: x.exact && y.exact, whole: x.whole && y.whole, max: max(x.max, y.max)}
	var attrs []ir.Attr
	switch op {
	case ir.OpAdd, ir.OpSub:
		if float(x) && x.max+y.max > capFloat {
			if x = g.limited(x, 16); x == nil || x.max+y.max > capFloat {
				return
			}
		}
		like = sum(dt, x.max+y.max, x, y)
		if op == ir.OpSub && !dt.Signed() {
			like.max = intMax(dt)
		}
	case ir.OpMul:
		limit := float64(capFloat)
		if !float(x) {
			limit = 1 << 50 // a float64 holds every product
		}
		if x.max*y.max > limit && (float(x) || dt == dtype.I64) {
			if x = g.limited(x, 16); x == nil || x.max*y.max > limit {
				return
			}
		}
		like = sum(dt, x.max*y.max, x, y)
	case ir.OpAnd, ir.OpOr, ir.OpXor:
		like.max = min(2*like.max+1, intMax(dt))
	case ir.OpDiv:
		if float(x) {
			if x = g.limited(x, 64); x == nil {
				return
			}
			like = result(2 * x.max)
		} else {
			like.max = min(x.max+1, intMax(dt)) // -128/-1 wraps
		}
	case ir.OpRem:
		like.max = x.max
	case ir.OpPow:
		if x = g.positive(x, 0.5, 4); x == nil {
			return
		}
		like = result(256)
	case ir.OpCompare:
		like.max = 1
		attrs = []ir.Attr{ir.EnumAttr("dir", []string{"eq", "ne", "lt", "le", "gt", "ge"}[g.r.Intn(6)])}
	}
	args := []ir.Value{x.v, arg}
	if op != ir.OpDiv && op != ir.OpRem && op != ir.OpPow && g.chance(4) {
		args[0], args[1] = args[1], args[0]
		if op == ir.OpSub && !dt.Float() {
			like.max = min(x.max+y.max, intMax(dt))
			if !dt.Signed() {
				like.max = intMax(dt)
			}
		}
	}
	g.emit(op.String(), args, like, attrs...)
}

func (g *generator) has(dt dtype.DType) bool {
	_, ok := g.dtype(func(d dtype.DType) bool { return d == dt })
	return ok
}

func (g *generator) where() {
	cond := g.pick(func(x *value) bool { return x.t.DType == dtype.Bool && x.exact })
	if cond == nil {
		return
	}
	x := g.pick(func(x *value) bool {
		s, ok := broadcast(cond.t.Shape, x.t.Shape)
		return ok && g.shapeOK(s)
	})
	if x == nil {
		return
	}
	s, _ := broadcast(cond.t.Shape, x.t.Shape)
	y := g.pick(func(y *value) bool {
		if y.t.DType != x.t.DType {
			return false
		}
		s, ok := broadcast(s, y.t.Shape)
		return ok && g.shapeOK(s)
	})
	args := []ir.Value{cond.v, x.v, ir.NoValue}
	like := value{max: x.max, exact: x.exact, whole: x.whole}
	if y == nil || g.chance(3) {
		args[2] = g.scalar(x.t.DType, float64(g.r.Intn(2)))
		like.max = max(like.max, 1)
	} else {
		args[2] = y.v
		like.max, like.exact, like.whole = max(x.max, y.max), x.exact && y.exact, x.whole && y.whole
	}
	g.emit("where", args, like)
}

func (g *generator) cast() {
	x := g.pick(func(*value) bool { return true })
	to, ok := g.dtype(func(dt dtype.DType) bool { return x.exact || dt.Float() })
	if !ok {
		return
	}
	like := value{max: x.max, exact: x.exact, whole: x.whole || !to.Float()}
	switch {
	case to == dtype.Bool:
		like.max = 1
	case to.Float():
		if x.max > capFloat {
			if x = g.limited(x, 64); x == nil {
				return
			}
			like.max = x.max
		}
	case !to.Signed() || x.max > intMax(to): // wraps or saturates
		like.max = intMax(to)
	}
	g.emit("cast", []ir.Value{x.v}, like, ir.DTypeAttr(to))
}

func (g *generator) reduce(op ir.OpID) {
	ok := both(number, hasMixAxis(g))
	switch op {
	case ir.OpMean:
		ok = both(float, hasMixAxis(g))
	case ir.OpArgMax, ir.OpTopK:
		if !g.has(dtype.I32) {
			return
		}
		ok = both(number, exact, hasMixAxis(g))
	}
	x := g.pick(ok)
	if x == nil {
		return
	}
	axis := g.mixAxis(x)
	rank := x.t.Rank()
	count := float64(g.bounds(x.t.Shape[axis]).Hi)
	var keep []ir.Attr
	if g.chance(2) {
		keep = append(keep, ir.BoolAttr("keepdims", g.chance(2)))
	}
	switch op {
	case ir.OpArgMax:
		g.emit(op.String(), []ir.Value{x.v}, value{max: count, exact: true}, append(keep, g.axisAttr(axis, rank))...)
		return
	case ir.OpTopK:
		if !g.axisOK(x, rank-1) || !g.filled(x.t.Shape[rank-1]) {
			return
		}
		last := g.bounds(x.t.Shape[rank-1])
		k := 1 + g.r.Intn(int(min(last.Lo, 4)))
		r := g.fb.Op(op.String(), []ir.Value{x.v}, ir.IntAttr("k", int64(k)))
		g.add(value{v: r[0], max: x.max, exact: true, whole: x.whole})
		g.add(value{v: r[1], max: float64(last.Hi), exact: true})
		return
	case ir.OpCumSum:
		if x = g.summable(x, count); x != nil {
			g.emit(op.String(), []ir.Value{x.v}, sum(x.t.DType, x.max*count, x), g.axisAttr(axis, rank))
		}
		return
	}
	axes := []int64{int64(axis)}
	if more := g.mixAxis(x); more != axis && g.chance(2) {
		axes = append(axes, int64(more-rank))
		count *= float64(g.bounds(x.t.Shape[more]).Hi)
	}
	like := value{max: x.max, exact: x.exact, whole: x.whole}
	switch op {
	case ir.OpSum:
		if x = g.summable(x, count); x == nil {
			return
		}
		like = sum(x.t.DType, x.max*count, x)
	case ir.OpMean:
		like = result(x.max)
	case ir.OpProd:
		switch {
		case count > 12:
			return
		case float(x) || x.t.DType == dtype.I64:
			if x = g.limited(x, 1.5); x == nil {
				return
			}
			like = sum(x.t.DType, math.Pow(max(x.max, 1), count), x)
		default:
			like.max = intMax(x.t.DType)
		}
	}
	g.emit(op.String(), []ir.Value{x.v}, like, append(keep, ir.IntsAttr("axes", axes...))...)
}

// summable limits x so that a sum of count elements stays small.
func (g *generator) summable(x *value, count float64) *value {
	if float(x) && x.max*count > capFloat || x.t.DType == dtype.I64 && x.max*count > 1<<50 {
		if x = g.limited(x, 2); x == nil || x.max*count > capFloat {
			return nil
		}
	}
	return x
}
