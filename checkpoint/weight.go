package checkpoint

import (
	"errors"
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// Weight is a weight of a module, computed from tensors of a checkpoint.
type Weight struct {
	DType dtype.DType
	Shape []int64
	Parts [][]byte // its bytes, in parts; they may alias the checkpoint's
}

// tensor is a value of a weight expression.
type tensor struct {
	dt    dtype.DType
	shape []int64
	data  []byte   // all bytes; nil: they are in parts, or there are none
	parts [][]byte // all bytes, in parts
}

// whole returns the tensor as one part.
func (t tensor) whole() tensor {
	if t.parts != nil {
		t.data, t.parts = slices.Concat(t.parts...), nil
	}
	return t
}

// Compute computes a weight from tensors of src: by its expression, or from the tensor with its
// name. A result of another type than the declared one is an error with both types.
func Compute(src safetensors.Source, w *ir.Weight) (Weight, error) {
	if src == nil || w == nil {
		return Weight{}, errors.New("checkpoint: a weight and the tensors that it is computed from are needed")
	}
	t, err := evalExpr(src, expression(w))
	if err != nil {
		return Weight{}, fmt.Errorf("weight @%s: %w", w.Name, err)
	}
	if t.dt != w.Type.DType || !slices.Equal(t.shape, constDims(w.Type.Shape)) {
		return Weight{}, fmt.Errorf("weight @%s is %s, the checkpoint gives %s%v", w.Name, w.Type, t.dt, t.shape)
	}
	parts := t.parts
	if parts == nil {
		parts = [][]byte{t.data}
	}
	return Weight{DType: t.dt, Shape: t.shape, Parts: parts}, nil
}

// expression returns the expression of a weight.
func expression(w *ir.Weight) *ir.WeightExpr {
	if w.Expr == nil {
		return &ir.WeightExpr{Name: w.Name}
	}
	return w.Expr
}

func evalExpr(src safetensors.Source, e *ir.WeightExpr) (tensor, error) {
	if e.Op == ir.WeightTensor {
		t, err := src.Tensor(e.Name)
		if err != nil {
			return tensor{}, err
		}
		return tensor{dt: t.DType, shape: t.Shape, data: t.Data}, nil
	}
	if s, ok := e.Shard(); ok {
		return evalShard(src, e.Args[0], s)
	}
	args := make([]tensor, len(e.Args))
	for i, a := range e.Args {
		x, err := evalExpr(src, a)
		if err != nil {
			return tensor{}, err
		}
		args[i] = x.whole()
	}
	x := args[0]
	switch e.Op {
	case ir.WeightConcat:
		return concatHost(args, exprInt(e, "axis", 0))
	case ir.WeightSlice:
		return sliceHost(x, exprInt(e, "axis", 0), exprInt(e, "start", 0), exprInt(e, "end", 0), exprInt(e, "step", 1))
	case ir.WeightTranspose:
		return transposeHost(x, exprInts(e, "perm"))
	case ir.WeightReshape:
		shape := exprInts(e, "shape")
		if !holds(shape, product(x.shape)) {
			return x, fmt.Errorf("reshape of %v to %v", x.shape, shape)
		}
		return tensor{dt: x.dt, shape: shape, data: x.data}, nil
	case ir.WeightCast:
		return castHost(x, castTo(e))
	}
	return x, fmt.Errorf("unknown weight expression %s", e.Op)
}

// castTo returns the dtype of a cast.
func castTo(e *ir.WeightExpr) dtype.DType {
	name := ""
	for _, a := range e.Attrs {
		if a.Name == "dtype" {
			name = a.Str
		}
	}
	dt, _ := dtype.Parse(name)
	return dt
}

func exprInt(e *ir.WeightExpr, name string, def int64) int64 {
	for _, a := range e.Attrs {
		if a.Name == name {
			v, _ := a.Dim.Const()
			return v
		}
	}
	return def
}

func exprInts(e *ir.WeightExpr, name string) []int64 {
	for _, a := range e.Attrs {
		if a.Name == name {
			return constDims(a.Dims)
		}
	}
	return nil
}

func constDims(dims []dim.Dim) []int64 {
	out := make([]int64, len(dims))
	for i, d := range dims {
		out[i], _ = d.Const()
	}
	return out
}

func product(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// holds reports whether a tensor of the shape has n elements. Texts may have negative extents, and ones whose
// product overflows.
func holds(shape []int64, n int64) bool {
	if slices.ContainsFunc(shape, func(d int64) bool { return d < 0 }) {
		return false
	}
	if slices.Contains(shape, 0) {
		return n == 0
	}
	p := int64(1)
	for _, d := range shape {
		if p > n/d {
			return false
		}
		p *= d
	}
	return p == n
}

// around returns the products of the sizes before an axis, at it, and after it.
func around(shape []int64, axis int64) (before, at, after int64, err error) {
	if axis < 0 {
		axis += int64(len(shape))
	}
	if axis < 0 || axis >= int64(len(shape)) {
		return 0, 0, 0, fmt.Errorf("axis %d of a tensor of shape %v", axis, shape)
	}
	return product(shape[:axis]), shape[axis], product(shape[axis+1:]), nil
}

// elementBytes returns the size of one element. Layout changes need whole bytes.
func elementBytes(dt dtype.DType) (int64, error) {
	if dt.Bits()%8 != 0 {
		return 0, fmt.Errorf("%s elements are packed and cannot be moved one by one", dt)
	}
	return int64(dt.Bits() / 8), nil
}

func concatHost(args []tensor, axis int64) (tensor, error) {
	x := args[0]
	size, err := elementBytes(x.dt)
	if err != nil {
		return x, err
	}
	before, _, after, err := around(x.shape, axis)
	if err != nil {
		return x, err
	}
	if axis < 0 {
		axis += int64(len(x.shape))
	}
	shape := append([]int64{}, x.shape...)
	shape[axis] = 0
	for _, y := range args {
		if y.dt != x.dt || len(y.shape) != len(x.shape) {
			return x, fmt.Errorf("concat of %s%v and %s%v", x.dt, x.shape, y.dt, y.shape)
		}
		for i := range y.shape {
			if int64(i) != axis && y.shape[i] != x.shape[i] {
				return x, fmt.Errorf("concat of %s%v and %s%v along axis %d", x.dt, x.shape, y.dt, y.shape, axis)
			}
		}
		shape[axis] += y.shape[axis]
	}
	if product(shape) == 0 { // the other extents may be huge
		return tensor{dt: x.dt, shape: shape}, nil
	}
	if before == 1 { // whole rows: a large weight is not copied on the host
		parts := make([][]byte, len(args))
		for i, y := range args {
			parts[i] = y.data
		}
		return tensor{dt: x.dt, shape: shape, parts: parts}, nil
	}
	out := make([]byte, 0, product(shape)*size)
	for b := range before {
		for _, y := range args {
			run := y.shape[axis] * after * size
			out = append(out, y.data[b*run:(b+1)*run]...)
		}
	}
	return tensor{dt: x.dt, shape: shape, data: out}, nil
}

func sliceHost(x tensor, axis, start, end, step int64) (tensor, error) {
	size, err := elementBytes(x.dt)
	if err != nil {
		return x, err
	}
	before, at, after, err := around(x.shape, axis)
	if err != nil {
		return x, err
	}
	if start < 0 || end < start || end > at || step < 1 {
		return x, fmt.Errorf("slice [%d, %d) step %d of an axis of %d", start, end, step, at)
	}
	if axis < 0 {
		axis += int64(len(x.shape))
	}
	n := int64(0)
	if end > start {
		n = (end-start-1)/step + 1
	}
	shape := append([]int64{}, x.shape...)
	shape[axis] = n
	if product(shape) == 0 { // the other extents may be huge
		return tensor{dt: x.dt, shape: shape}, nil
	}
	run := after * size
	if before == 1 && step == 1 { // one range of the operand's memory, which is often the checkpoint's
		return tensor{dt: x.dt, shape: shape, data: x.data[start*run : end*run : end*run]}, nil
	}
	out := make([]byte, 0, product(shape)*size)
	for b := range before {
		for i := range n {
			from := (b*at + start + i*step) * run
			out = append(out, x.data[from:from+run]...)
		}
	}
	return tensor{dt: x.dt, shape: shape, data: out}, nil
}

func transposeHost(x tensor, perm []int64) (tensor, error) {
	size, err := elementBytes(x.dt)
	if err != nil {
		return x, err
	}
	if len(perm) != len(x.shape) {
		return x, fmt.Errorf("transpose of %v by %v", x.shape, perm)
	}
	strides := make([]int64, len(x.shape))
	s := size
	for i := len(x.shape) - 1; i >= 0; i-- {
		strides[i] = s
		s *= x.shape[i]
	}
	shape, step := make([]int64, len(perm)), make([]int64, len(perm))
	for i, p := range perm {
		if p < 0 || p >= int64(len(perm)) || slices.Contains(perm[:i], p) {
			return x, fmt.Errorf("transpose of %v by %v", x.shape, perm)
		}
		shape[i], step[i] = x.shape[p], strides[p]
	}
	out := make([]byte, len(x.data))
	index := make([]int64, len(shape))
	from := int64(0)
	for to := int64(0); to < int64(len(out)); to += size {
		copy(out[to:to+size], x.data[from:from+size])
		for i := len(index) - 1; i >= 0; i-- {
			index[i]++
			from += step[i]
			if index[i] < shape[i] {
				break
			}
			from -= step[i] * shape[i]
			index[i] = 0
		}
	}
	return tensor{dt: x.dt, shape: shape, data: out}, nil
}

// castHost converts between f32, f16 and bf16, and rounds once, to nearest even. A cast to the tensor's
// own dtype returns x.
func castHost(x tensor, to dtype.DType) (tensor, error) {
	if x.dt == to {
		return x, nil
	}
	load, n := loader(x)
	if load == nil {
		return x, fmt.Errorf("cast of a checkpoint tensor from %s to %s: only f32, f16 and bf16 are converted", x.dt, to)
	}
	out := make([]byte, to.Bytes(n))
	switch to {
	case dtype.F32:
		for i := range n {
			putF32(out, i, load(i))
		}
	case dtype.BF16:
		for i := range n {
			putU16(out, i, dtype.F32ToBF16(load(i)))
		}
	case dtype.F16:
		for i := range n {
			putU16(out, i, dtype.F32ToF16(load(i)))
		}
	default:
		return x, fmt.Errorf("cast of a checkpoint tensor from %s to %s: only f32, f16 and bf16 are converted", x.dt, to)
	}
	return tensor{dt: to, shape: x.shape, data: out}, nil
}
