package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// NotInvertibleError is a tensor of a checkpoint that cannot be computed from the weights that
// depend on it.
type NotInvertibleError struct {
	Tensor string
	Weight string // of the module, without "@"
	Reason string
}

// Error names the tensor and the weight.
func (e *NotInvertibleError) Error() string {
	return fmt.Sprintf("tensor %s cannot be written from weight @%s: %s", termsafe.Quote(e.Tensor), e.Weight, e.Reason)
}

// Invert returns the tensors of a checkpoint from which the weights are computed, given the
// weights' bytes. src has the shapes of the tensors; Invert does not read its bytes. It inverts
// concat, slice, transpose and reshape. A cast tensor is written in the dtype of the weight. Unless
// each element of each tensor is in the weights exactly once, the error wraps a [*NotInvertibleError].
// If the bytes of a weight are nil, Invert checks the same, so a caller can check beforehand. The Data of
// its tensors is then nil or zeros.
func Invert(src safetensors.Source, weights []*ir.Weight, data [][]byte) ([]safetensors.Tensor, error) {
	if len(data) != len(weights) {
		return nil, fmt.Errorf("checkpoint: bytes of %d weights are given, want %d", len(data), len(weights))
	}
	inv := &inversion{src: src, leaves: map[string]*leaf{}}
	var errs []error
	for i, w := range weights {
		if w == nil {
			return nil, errors.New("checkpoint: a nil weight")
		}
		if err := inv.add(w, data[i]); err != nil {
			errs = append(errs, err)
		}
	}
	var out []safetensors.Tensor
	for _, l := range inv.order {
		if l.written < l.elements {
			errs = append(errs, &NotInvertibleError{l.Name, l.weight, fmt.Sprintf("the weights hold %d of its %d elements", l.written, l.elements)})
		}
		out = append(out, l.Tensor)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

// inversion collects the tensors that weights are computed from.
type inversion struct {
	src    safetensors.Source
	leaves map[string]*leaf
	order  []*leaf
}

// leaf is a tensor to write.
type leaf struct {
	safetensors.Tensor
	weight   string // the first one with this tensor
	elements int64
	written  int64
	seen     []bool // by element
}

// add writes one weight to its tensors.
func (inv *inversion) add(w *ir.Weight, data []byte) error {
	size, err := elementBytes(w.Type.DType)
	if err != nil {
		return fmt.Errorf("weight @%s: %w", w.Name, err)
	}
	if n := product(constDims(w.Type.Shape)); data != nil && int64(len(data)) != n*size {
		return fmt.Errorf("checkpoint: weight @%s has %d bytes, want %d", w.Name, len(data), n*size)
	}
	e := withoutCasts(expression(w))
	if e.Op == ir.WeightTensor {
		l, err := inv.leaf(e.Name, w, constDims(w.Type.Shape), data)
		if err != nil {
			return err
		}
		if l.seen != nil {
			return l.usedTwice(w)
		}
		l.written = l.elements
		return nil
	}
	// The expression, computed over tensors of places instead of values, gives the place from which
	// each element of the weight comes.
	places := &placeSource{inv: inv, w: w}
	from, err := evalExpr(places, e)
	if err != nil {
		return fmt.Errorf("weight @%s: %w", w.Name, err)
	}
	if !slices.Equal(from.shape, constDims(w.Type.Shape)) {
		return fmt.Errorf("weight @%s is %s, the checkpoint gives %v", w.Name, w.Type, from.shape)
	}
	at := from.whole().data
	for i := int64(0); i < int64(len(at))/8; i++ {
		place := binary.LittleEndian.Uint64(at[8*i:])
		l, k := places.used[place>>placeBits], int64(place&(1<<placeBits-1))
		if l.seen[k] {
			return &NotInvertibleError{l.Name, w.Name, fmt.Sprintf("its element %d is in the weights twice", k)}
		}
		l.seen[k] = true
		l.written++
		if data != nil {
			copy(l.Data[k*size:(k+1)*size], data[i*size:(i+1)*size])
		}
	}
	return nil
}

// leaf returns the tensor with that name, and makes it at the first use. whole is the data of a
// weight that is the whole tensor, or nil. The tensor of such a weight has no seen, and a second
// use of it is an error.
func (inv *inversion) leaf(name string, w *ir.Weight, shape []int64, whole []byte) (*leaf, error) {
	l := inv.leaves[name]
	if l == nil {
		l = &leaf{Tensor: safetensors.Tensor{Name: name, DType: w.Type.DType, Shape: shape, Data: whole}, weight: w.Name, elements: product(shape)}
		inv.leaves[name] = l
		inv.order = append(inv.order, l)
		return l, nil
	}
	if l.seen == nil || l.DType != w.Type.DType {
		return nil, l.usedTwice(w)
	}
	return l, nil
}

func (l *leaf) usedTwice(w *ir.Weight) error {
	return &NotInvertibleError{l.Name, w.Name, fmt.Sprintf("weight @%s, which is %s, is computed from it too", l.weight, l.DType)}
}

// placeBits is the number of low bits of a place that are the index of an element in its tensor. The
// other bits are the index of the tensor in placeSource.used.
const placeBits = 40

// placeSource replaces a checkpoint's tensors by tensors of i64 in which each element is its own
// place.
type placeSource struct {
	inv  *inversion
	w    *ir.Weight
	used []*leaf
}

// Names returns nil: callers ask for tensors by name.
func (p *placeSource) Names() []string { return nil }

// Info returns the checkpoint's information.
func (p *placeSource) Info(name string) (safetensors.Info, error) {
	if p.inv.src == nil {
		return safetensors.Info{}, fmt.Errorf("%w: %s", safetensors.ErrNotFound, name)
	}
	return p.inv.src.Info(name)
}

// Tensor returns the places of a tensor's elements.
func (p *placeSource) Tensor(name string) (safetensors.Tensor, error) {
	info, err := p.Info(name)
	if err != nil {
		return safetensors.Tensor{}, err
	}
	n := product(info.Shape)
	if n >= 1<<placeBits || len(p.used) > math.MaxInt16 {
		return safetensors.Tensor{}, fmt.Errorf("tensor %s is too large to be written from a weight that is computed from it", termsafe.Quote(name))
	}
	l, err := p.inv.leaf(name, p.w, info.Shape, nil)
	if err != nil {
		return safetensors.Tensor{}, err
	}
	if l.seen == nil {
		size, err := elementBytes(l.DType)
		if err != nil {
			return safetensors.Tensor{}, err
		}
		l.seen, l.Data = make([]bool, n), make([]byte, n*size)
	}
	base := uint64(len(p.used)) << placeBits
	p.used = append(p.used, l)
	out := make([]byte, 8*n)
	for i := range n {
		binary.LittleEndian.PutUint64(out[8*i:], base|uint64(i))
	}
	return safetensors.Tensor{Name: name, DType: dtype.I64, Shape: info.Shape, Data: out}, nil
}

// withoutCasts returns the expression without its casts.
func withoutCasts(e *ir.WeightExpr) *ir.WeightExpr {
	if e.Op == ir.WeightCast {
		return withoutCasts(e.Args[0])
	}
	out := *e
	out.Args = make([]*ir.WeightExpr, len(e.Args))
	for i, a := range e.Args {
		out.Args[i] = withoutCasts(a)
	}
	return &out
}
