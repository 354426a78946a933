package vec

import (
	"math"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program/internal/wire"
)

// MaxHead is the largest number of elements of a head in attention.
const MaxHead = 256

// Attention is softmax(Scale·Q·Kᵀ)·V for each head, or its gradient, for each batch of
// Loop.Outer. Scores are float32, sums float32 or float64; the order of a sum over keys or queries
// depends only on their number. Inner of LSE and Delta is [sequence, head], of all other accesses
// [sequence, head, element].
type Attention struct {
	Queries, Keys dim.Dim // length of the sequences
	Heads, Groups int64   // heads of Q, and of K and V: head h of Q reads head h/(Heads/Groups) of K and V
	Size          int64   // elements of a head
	Scale         float64 // of the scores, rounded to float32
	Causal        bool    // query t attends to keys 0 to t

	Q, K, V Access         // of one float dtype
	Out     Access         // forward: the result; gradient: the cotangent of the result, which is read
	LSE     Access         // f32: logarithms of the sums of exponentials; forward writes them, the gradient reads them
	Grad    *AttentionGrad // nil: forward
}

// AttentionGrad has the accesses that only the gradient has.
type AttentionGrad struct {
	Delta      Access // f32: a row's value is subtracted from the cotangents of its softmax weights
	DQ, DK, DV Access // the results
}

// accesses returns the accesses that the attention reads, and those that it writes, with names.
func (a *Attention) accesses() (reads, writes []namedAccess) {
	reads = []namedAccess{{"q", &a.Q}, {"k", &a.K}, {"v", &a.V}}
	rows := []namedAccess{{"out", &a.Out}, {"lse", &a.LSE}}
	if g := a.Grad; g != nil {
		return append(append(reads, rows...), namedAccess{"delta", &g.Delta}), []namedAccess{{"dq", &g.DQ}, {"dk", &g.DK}, {"dv", &g.DV}}
	}
	return reads, rows
}

type namedAccess struct {
	name string
	*Access
}

// all returns every access: first those that are read, then those that are written.
func (a *Attention) all() []namedAccess {
	reads, writes := a.accesses()
	return append(reads, writes...)
}

func (n namedAccess) isRow() bool { return n.name == "lse" || n.name == "delta" }

func (v *validator) attention(a *Attention) {
	l := &v.k.Loop
	if len(l.Inner)+len(l.Access)+len(l.Dims)+len(l.Phases) > 0 || l.Regs != (RegCount{}) || l.Serial {
		v.failf("attention with a loop")
	}
	v.dims("length", a.Queries, a.Keys)
	if a.Size < 1 || a.Size > MaxHead || a.Groups < 1 || a.Heads < 1 || a.Heads > math.MaxInt32 || a.Heads%a.Groups != 0 {
		v.failf("attention of %d heads over %d, each of %d elements; want a multiple of the heads of keys, and 1 to %d elements", a.Heads, a.Groups, a.Size, MaxHead)
	}
	if a.Causal && !a.Queries.Equal(a.Keys) {
		v.failf("causal attention of %s queries and %s keys", a.Queries, a.Keys)
	}
	for _, x := range a.all() {
		v.at = x.name + ": "
		want, inner := a.Q.DType, 3
		if x.isRow() {
			want, inner = dtype.F32, 2
		}
		if x.Arg < 0 || x.Index != nil {
			v.failf("want plain memory")
		}
		switch {
		case !x.DType.Float():
			v.failf("dtype %s, want a float", x.DType)
		case x.DType != want:
			v.failf("dtype %s, want %s", x.DType, want)
		}
		v.access(x.Access, inner)
	}
	v.at = ""
}

func encodeAttention(w *wire.Writer, a *Attention) {
	w.Dim(a.Queries)
	w.Dim(a.Keys)
	w.I64(a.Heads)
	w.I64(a.Groups)
	w.I64(a.Size)
	w.F64(a.Scale)
	w.Bool(a.Causal)
	w.Bool(a.Grad != nil)
	for _, x := range a.all() {
		encodeAccess(w, x.Access)
	}
}

func decodeAttention(r *wire.Reader) *Attention {
	a := &Attention{Queries: r.Dim(), Keys: r.Dim(), Heads: r.I64(), Groups: r.I64(), Size: r.I64(), Scale: r.F64(), Causal: r.Bool()}
	if r.Bool() {
		a.Grad = &AttentionGrad{}
	}
	for _, x := range a.all() {
		*x.Access = decodeAccess(r)
	}
	return a
}

func (d *dumper) attention(a *Attention) {
	mask := ""
	if a.Causal {
		mask = " causal"
	}
	d.linef("attention queries=%s keys=%s heads=%d/%d size=%d scale=%g%s", a.Queries, a.Keys, a.Heads, a.Groups, a.Size, a.Scale, mask)
	for _, x := range a.all() {
		d.linef("  %s %s", x.name, access(x.Access))
	}
}
