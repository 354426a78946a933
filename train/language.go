package train

import (
	"errors"
	"fmt"
	"math"

	"pwc/attention"
	"pwc/internal/opattr"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Parameters of the loss of [Language] and [Labeled].
const (
	InputIDs = "input_ids" // the ids of the tokens
	Labels   = "labels"    // of Labeled: the id of each token to predict, elsewhere -100
)

// Language returns the module that trains a language model. @loss of input_ids, i32[rows,
// length], is the mean cross entropy of each token except the first of a row, given the tokens
// before it: transformers' loss for labels that are the input_ids.
//
// m is a module as frontends make it for serving: @forward of ids and positions returns hidden
// states, and @logits of hidden states and rows returns logits. Its calls of [attention.Name]
// become the op attention, or plain ops if they have a window shorter than a row or a cap of scores.
func Language(m *ir.Module, rows, length int64) (*ir.Module, error) {
	return trained(m, &language{m: m, rows: rows, length: length})
}

// Labeled is [Language] for the labels of a second parameter, i32[rows, length]. The mean is over
// the tokens whose label is an id of the vocabulary, except the first of a row. Any other label, such
// as -100 of transformers, excludes the token, such as one of a prompt. A batch without labels has the
// loss 0. @loss also returns the weight of the batch, the fraction of the tokens after the first of
// each row that have a label, so that micro-batches and ranks have the loss of all their tokens together.
func Labeled(m *ir.Module, rows, length int64) (*ir.Module, error) {
	return trained(m, &language{m: m, rows: rows, length: length, labels: true})
}

// trained returns the training module of m.
func trained(m *ir.Module, l *language) (*ir.Module, error) {
	rows, length := l.rows, l.length
	if m == nil {
		return nil, fmt.Errorf("train: %w", ir.ErrNoModule)
	}
	forward, logits := m.Func("forward"), m.Func("logits")
	switch {
	case forward == nil || logits == nil || len(forward.Params) != 2 || len(forward.Returns) != 1 || len(logits.Params) != 2 || len(logits.Returns) != 1:
		return nil, errors.New("train: a language model has @forward of ids and positions, and @logits of hidden states and rows")
	case rows < 1 || length < 2 || rows > math.MaxInt32/length:
		return nil, fmt.Errorf("train: batches of %d rows of %d tokens: a row has at least 2 tokens, and a batch at least 1 row and less than 2^31 tokens", rows, length)
	case m.Context > 0 && length > m.Context:
		return nil, fmt.Errorf("train: rows of %d tokens: the model is for sequences of up to %d", length, m.Context)
	}
	served, err := l.join(forward, logits)
	if err != nil {
		return nil, err
	}
	dense, err := l.attend(served)
	if err != nil {
		return nil, err
	}
	b := declare(m)
	b.Module().Symbols, b.Module().Externs = nil, nil
	for _, w := range m.Weights {
		b.AddWeight(w)
	}
	fb := b.Func("loss")
	fb.Return(fb.Inline(dense, ir.Inlining{Args: params(fb, dense)})...)
	return b.Build()
}

// language makes the training module of m.
type language struct {
	m            *ir.Module
	rows, length int64
	labels       bool // a parameter has the labels; otherwise the ids are the labels
}

// join returns a module with @loss, which still calls the attention of serving.
func (l *language) join(forward, logits *ir.Func) (*ir.Module, error) {
	symbols := map[string]dim.Dim{}
	for _, s := range l.m.Symbols {
		symbols[s.Name] = dim.Const(max(s.Lo, 1)) // symbols of the KV cache keep this value; attend removes the cache
	}
	tokens := dim.Const(l.rows * l.length)
	for _, v := range append(forward.Params[:len(forward.Params):len(forward.Params)], forward.Returns[0]) {
		if t := forward.Type(v); t.Rank() > 0 {
			for _, name := range t.Shape[0].Symbols() {
				symbols[name] = tokens
			}
		}
	}
	for _, name := range logits.Type(logits.Params[1]).Elements().Symbols() {
		symbols[name] = tokens
	}
	b := declare(l.m)
	for _, w := range l.m.Weights {
		b.AddWeight(w)
	}
	for _, s := range l.m.States {
		b.State(s.Name, subst(s.Type, symbols))
	}
	fb := b.Func("loss")
	input := fb.Param(InputIDs, ir.TypeOf(dtype.I32, dim.Const(l.rows), dim.Const(l.length)))
	labels := input
	if l.labels {
		labels = fb.Param(Labels, fb.Type(input))
	}
	e := emitter{fb}
	ids := e.reshape(input, tokens)
	position := fb.Op1("rem", []ir.Value{e.iota(tokens), fb.Int(l.length)})
	hidden := fb.Inline(forward, ir.Inlining{Args: []ir.Value{ids, position}, Symbols: symbols})
	out := fb.Inline(everyRow(l.m, logits), ir.Inlining{Args: []ir.Value{hidden[0], position}, Symbols: symbols})
	fb.Return(l.entropy(e, out[0], labels, position)...)
	return b.Build()
}

// everyRow returns logits without its selection of rows: training computes the logits of every row,
// and a gather would only add a scatter to the gradient.
func everyRow(m *ir.Module, logits *ir.Func) *ir.Func {
	f, err := ir.Rewrite(m, logits, func(rw *ir.Rewriter, _ int, n *ir.Node) {
		if n.Op.ID == ir.OpGather && n.Args[0] == logits.Params[0] && n.Args[1] == logits.Params[1] {
			rw.Replace(n.Results[0], rw.Map(n.Args[0]))
			return
		}
		rw.Keep(n)
	})
	if err != nil { // its rows have another symbol than the hidden states, so it stays
		return logits
	}
	return f
}

// entropy emits the results of the loss: the mean over tokens of the cross entropy of the logits
// with the next label of the row. A comparison selects the token, so the gradient is pointwise. The
// floor of the largest logit is subtracted to keep exp in range. The loss does not depend on the
// subtracted number, so it needs no gradient, and floor has no gradient. With labels the second result
// is the weight of the batch.
func (l *language) entropy(e emitter, logits, labels, position ir.Value) []ir.Value {
	tokens, last := dim.Const(l.rows*l.length), l.length-1
	if e.Type(logits).DType != dtype.F32 {
		logits = e.Op1("cast", []ir.Value{logits}, ir.DTypeAttr(dtype.F32))
	}
	rest := e.Op1("slice", []ir.Value{labels}, ir.IntAttr("axis", 1), ir.IntAttr("start", 1), ir.IntAttr("end", l.length))
	next := e.Op1("pad", []ir.Value{rest, e.Int(-1)}, ir.IntsAttr("low", 0, 0), ir.IntsAttr("high", 0, 1))
	target := e.reshape(next, tokens, dim.Const(1))
	row := func(op string, x ir.Value) ir.Value {
		return e.Op1(op, []ir.Value{x}, ir.IntsAttr("axes", 1), ir.BoolAttr("keepdims", true))
	}
	shifted := e.Op1("sub", []ir.Value{logits, e.Op1("floor", []ir.Value{row("max", logits)})})
	total := e.Op1("log", []ir.Value{row("sum", e.Op1("exp", []ir.Value{shifted}))})
	hit := e.compare(e.iota(e.Type(logits).Shape[1]), target, "eq")
	chosen := row("sum", e.Op1("where", []ir.Value{hit, shifted, e.Float(0)}))
	each := e.Op1("sub", []ir.Value{total, chosen})
	all := func(x ir.Value) ir.Value { return e.Op1("sum", []ir.Value{x}, ir.IntsAttr("axes", 0, 1)) }
	var inside, number, count ir.Value
	if l.labels { // the padding above is not an id, so it also excludes the last token of a row
		vocabulary, _ := e.Type(logits).Shape[1].Const()
		known := e.compare(target, e.Int(0), "ge")
		inside = e.Op1("and", []ir.Value{known, e.compare(target, e.Int(vocabulary), "lt")})
		count = all(e.Op1("cast", []ir.Value{inside}, ir.DTypeAttr(dtype.F32)))
		number = e.Op1("maximum", []ir.Value{count, e.Float(1)})
	} else {
		inside = e.compare(e.reshape(position, tokens, dim.Const(1)), e.Int(last), "lt")
		number = e.Float(float64(l.rows * last))
	}
	counted := all(e.Op1("where", []ir.Value{inside, each, e.Float(0)}))
	loss := e.Op1("div", []ir.Value{counted, number})
	if !l.labels {
		return []ir.Value{loss}
	}
	return []ir.Value{loss, e.Op1("div", []ir.Value{count, e.Float(float64(l.rows * last))})}
}

// attend returns @loss with dense attention in place of calls.
func (l *language) attend(m *ir.Module) (*ir.Func, error) {
	var errs ir.ErrorList
	f := m.Funcs[0]
	out, err := ir.Rewrite(m, f, func(rw *ir.Rewriter, i int, n *ir.Node) {
		if n.Extern == nil || n.Extern.Name != attention.Name {
			rw.Keep(n)
			return
		}
		if len(n.Args) <= attention.ArgO || rw.Type(rw.Map(n.Args[attention.ArgQ])).Rank() != 3 {
			errs = append(errs, m.ErrorAt(f, i, "%s is not called with q, k, v, the cache and o", n.Name()))
			return
		}
		q := rw.Map(n.Args[attention.ArgQ])
		size, _ := rw.Type(q).Shape[2].Const()
		p, err := attention.ParseParams(opattr.Of(n.Attrs), int(size))
		if err != nil {
			errs = append(errs, m.ErrorAt(f, i, "%v", err))
			return
		}
		o := l.dense(emitter{rw.FuncBuilder}, p, q, rw.Map(n.Args[attention.ArgK]), rw.Map(n.Args[attention.ArgV]))
		for _, w := range n.Versions {
			if w.Arg == attention.ArgO {
				rw.Replace(w.Value, o)
			}
		}
	})
	if err := errors.Join(errs.Err(), err); err != nil {
		return nil, err
	}
	return out, nil
}

// dense emits attention within each row: q is [N, H, D], k and v are [N, G, D].
func (l *language) dense(e emitter, p attention.Params, q, k, v ir.Value) ir.Value {
	t := e.Type(q)
	if p.Softcap == 0 && (p.Window == 0 || int64(p.Window) >= l.length) {
		var in []ir.Value
		for _, x := range []ir.Value{q, k, v} {
			s := e.Type(x).Shape
			in = append(in, e.reshape(x, dim.Const(l.rows), dim.Const(l.length), s[1], s[2]))
		}
		out := e.Op("attention", in, ir.FloatAttr("scale", p.Scale), ir.BoolAttr("causal", p.Causal))
		return e.reshape(out[0], t.Shape...)
	}
	rows, length := dim.Const(l.rows), dim.Const(l.length)
	groups := e.Type(k).Shape[1]
	each, _ := t.Shape[1].Div(groups)
	// [rows, G, H/G, length, D] and one matrix of keys and values for each group
	heads := func(x ir.Value, per dim.Dim, perm ...int64) ir.Value {
		s := e.Type(x).Shape
		return e.Op1("transpose", []ir.Value{e.reshape(x, rows, length, groups, per, s[2])}, ir.IntsAttr("perm", perm...))
	}
	scores := e.Op1("matmul", []ir.Value{heads(q, each, 0, 2, 3, 1, 4), heads(k, dim.Const(1), 0, 2, 3, 4, 1)})
	scores = e.Op1("mul", []ir.Value{scores, e.Float(p.Scale)})
	if p.Softcap > 0 {
		bound := e.Float(p.Softcap)
		scores = e.Op1("mul", []ir.Value{e.Op1("tanh", []ir.Value{e.Op1("div", []ir.Value{scores, bound})}), bound})
	}
	weights := e.Op1("softmax", []ir.Value{e.Op1("where", []ir.Value{l.seen(e, p), scores, e.Float(math.Inf(-1))})})
	out := e.Op1("matmul", []ir.Value{weights, heads(v, dim.Const(1), 0, 2, 3, 1, 4)})
	return e.reshape(e.Op1("transpose", []ir.Value{out}, ir.IntsAttr("perm", 0, 3, 1, 2, 4)), t.Shape...)
}

// seen emits the mask of the keys that each query attends to, bool[length, length].
func (l *language) seen(e emitter, p attention.Params) ir.Value {
	key := e.iota(dim.Const(l.length))
	behind := e.Op1("sub", []ir.Value{e.reshape(key, dim.Const(l.length), dim.Const(1)), key})
	low, high := 1-l.length, l.length-1 // of query - key
	if p.Causal {
		low = 0
	}
	if w := int64(p.Window); w > 0 {
		low, high = max(low, 1-w), min(high, w-1)
	}
	return e.Op1("and", []ir.Value{e.compare(behind, e.Int(low), "ge"), e.compare(behind, e.Int(high), "le")})
}

// emitter has short methods that emit ops.
type emitter struct{ *ir.FuncBuilder }

func (e emitter) reshape(x ir.Value, shape ...dim.Dim) ir.Value {
	return e.Op1("reshape", []ir.Value{x}, ir.DimsAttr("shape", shape...))
}

func (e emitter) iota(n dim.Dim) ir.Value {
	return e.Op1("iota", nil, ir.DimsAttr("shape", n), ir.DTypeAttr(dtype.I32))
}

func (e emitter) compare(a, b ir.Value, dir string) ir.Value {
	return e.Op1("compare", []ir.Value{a, b}, ir.EnumAttr("dir", dir))
}

// Operations returns the number of multiplications and additions in the GEMMs of a training step
// of f: those of the forward, twice as many in the backward, and two and a half times as many for
// attention, whose backward computes the scores again. Causal attention counts half.
func Operations(f *ir.Func) int64 {
	if f == nil {
		return 0
	}
	elements := func(v ir.Value) int64 { n, _ := f.Type(v).Elements().Const(); return n }
	extent := func(v ir.Value, fromLast int) int64 {
		s := f.Type(v).Shape
		n, _ := s[len(s)-1-fromLast].Const()
		return n
	}
	total := int64(0)
	for _, n := range f.Nodes {
		switch n.Op.ID {
		case ir.OpLinear, ir.OpLinearSelect, ir.OpMatmul:
			total += 3 * 2 * elements(n.Results[0]) * extent(n.Args[0], 0)
		case ir.OpAttention:
			keys := extent(n.Args[1], 2)
			scores := 2 * 2 * elements(n.Args[0]) * keys * 7 / 2
			if causal, _ := n.Attr("causal"); causal.Bool {
				scores /= 2
			}
			total += scores
		}
	}
	return total
}
