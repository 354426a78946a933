package hf

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"pwc/checkpoint"
	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// Net is a module under construction. Blocks are its methods: they add nodes to F and declare
// their weights and states. Methods do not fail; the import reports all problems.
type Net struct {
	B         *ir.Builder
	F         *ir.FuncBuilder // the function that blocks add to
	DType     dtype.DType     // of weights, activations and caches
	Tokens    dim.Dim         // N, tokens of a step
	Rows      dim.Dim         // M, rows that logits are computed for
	Blocks    dim.Dim         // B, blocks of the KV cache
	BlockSize int64           // tokens in a block

	stored   dtype.DType        // dtype of checkpoint tensors that source does not have
	source   safetensors.Source // nil if only the config is known
	params   []Param
	declared map[string][]Param // checkpoint tensors of each weight that was declared
	ignored  map[string]ignored // tensors that the checkpoint may hold and the module does not read
	notes    []string           // Model.Notes
	odd      []string           // tensors with a dtype that weights cannot be made from: "NAME is i32"
	learned  int64              // learned positions; 0: the model has none

	// Set if only the text part of a model is imported: see textPart.
	bases, heads []string
	leftOut      []string // prefixes of tensors that the module does not read

	expertParallel bool // Options.ExpertParallel

	ranks int64 // devices that run the model together; 0 and 1: one

	loc string // location of the nodes that are added next
}

// newNet starts a module with the symbols and the extern op that every decoder has.
func newNet(name string, stored dtype.DType, o Options) *Net {
	b := ir.NewBuilder(name)
	b.WeightsStrict()
	if o.Weights != "" {
		b.WeightsFrom(o.Weights)
	}
	// M is a batch symbol too: the rows of @logits are padded to capture sizes like the tokens of @forward.
	n := &Net{
		B:         b,
		DType:     o.DType,
		Tokens:    b.Symbol("N", 1, o.MaxTokens, ir.Batch),
		Rows:      b.Symbol("M", 1, o.MaxTokens, ir.Batch),
		Blocks:    b.Symbol("B", 1, 1<<20, ir.Load),
		BlockSize: o.BlockSize,
		stored:    stored,
		source:    o.Source,
		declared:  map[string][]Param{},
		ignored:   map[string]ignored{},
	}
	if n.DType == dtype.Invalid {
		n.DType = stored
	}
	if n.stored == dtype.Invalid {
		n.stored = n.DType
	}
	n.declareRanks(o.Ranks)
	n.expertParallel = o.ExpertParallel
	b.Extern(&ir.Extern{Name: AttentionOp, Mut: []bool{false, false, false, true, true}, Split: true})
	return n
}

func (n *Net) finish() (*ir.Module, error) {
	if len(n.odd) > 0 { // one error, because there may be thousands of tensors
		n.B.Errorf(ir.Pos{}, "tensors of weights must be f32, f16 or bf16, but %s", some(n.odd))
	}
	return n.B.Build()
}

// some joins the first entries of a list for a message, and adds the number of the others.
func some(list []string) string {
	const shown = 8
	text := strings.Join(list[:min(shown, len(list))], ", ")
	if len(list) > shown {
		text += fmt.Sprintf(" and %d more", len(list)-shown)
	}
	return text
}

// SetLoc sets the location of the nodes that are added next, and returns the previous one. A location is the path of a
// module as PyTorch names it. The output of a module is the last value at its path or at a path below it.
func (n *Net) SetLoc(loc string) (before string) {
	before, n.loc = n.loc, loc
	n.F.SetLoc(loc)
	return before
}

// Type returns a type of the model's dtype.
func (n *Net) Type(shape ...dim.Dim) ir.Type { return ir.TypeOf(n.DType, shape...) }

// Forward starts @forward and returns its parameters: i32[N] token ids and i32[N] positions.
func (n *Net) Forward() (ids, pos ir.Value) {
	n.F = n.B.Func("forward")
	t := ir.TypeOf(dtype.I32, n.Tokens)
	return n.F.Param("ids", t), n.F.Param("pos", t)
}

// Head computes logits from hidden states.
type Head struct {
	Weight     string // name in the module of the head's matrix
	Projection Projection
	Bias       bool
	Scale      float64 // multiplies the logits; 0: 1
	Divisor    float64 // of the logits; 0: 1
	Softcap    float64 // bounds them: cap·tanh(logits/cap), after the division; 0: no bound
}

// Logits adds @logits: it gathers rows of the hidden states T[N, hidden], multiplies them by the head, and returns f32.
// The result of the GEMM is rounded to the model's dtype, as in the reference; the ops after it compute in f32.
func (n *Net) Logits(hidden int64, head Head) {
	n.F = n.B.Func("logits")
	h := n.F.Param("h", n.Type(n.Tokens, dim.Const(hidden)))
	rows := n.F.Param("rows", ir.TypeOf(dtype.I32, n.Rows))
	n.SetLoc("logits")
	x := n.F.Op1("gather", []ir.Value{h, rows})
	if n.vocabularyDivided(head.Projection.Rows) {
		head.Projection.Share.Rows = []Section{n.section(head.Projection.Rows)}
	}
	x = n.Linear(x, head.Weight, head.Bias, head.Projection)
	if n.vocabularyDivided(head.Projection.Rows) {
		x = n.gathered(x)
	}
	x = n.Times(n.f32(x), head.Scale)
	if head.Divisor != 0 && head.Divisor != 1 {
		x = n.F.Op1("div", []ir.Value{x, n.F.Float(head.Divisor)})
	}
	if head.Softcap > 0 {
		limit := n.F.Float(head.Softcap)
		x = n.F.Op1("tanh", []ir.Value{n.F.Op1("div", []ir.Value{x, limit})})
		x = n.F.Op1("mul", []ir.Value{x, limit})
	}
	n.F.Return(x)
}

// f32 casts a value of the model's dtype to f32.
func (n *Net) f32(x ir.Value) ir.Value {
	if n.DType == dtype.F32 {
		return x
	}
	return n.F.Op1("cast", []ir.Value{x}, ir.DTypeAttr(dtype.F32))
}

// rounded casts a value of f32 to the model's dtype.
func (n *Net) rounded(x ir.Value) ir.Value {
	if n.DType == dtype.F32 {
		return x
	}
	return n.F.Op1("cast", []ir.Value{x}, ir.DTypeAttr(n.DType))
}

// Matrix is a parameter that holds a projection, [rows, cols]. [Dummy] gives its values the standard deviation 0.02,
// the usual initializer_range of configs.
func Matrix(tensor string, rows, cols int64) Param {
	return Param{Info: safetensors.Info{Name: tensor, Shape: []int64{rows, cols}}, Std: 0.02}
}

// Vector is a parameter that holds a bias, [size].
func Vector(tensor string, size int64) Param {
	return Param{Info: safetensors.Info{Name: tensor, Shape: []int64{size}}, Std: 0.02}
}

// Scale is a parameter that holds the scale of a norm, [size]. All values of [Dummy] for it are mean.
func Scale(tensor string, size int64, mean float64) Param {
	return Param{Info: safetensors.Info{Name: tensor, Shape: []int64{size}}, Mean: mean}
}

// has reports whether the checkpoint is available and has a tensor of that name, with any dtype.
func (n *Net) has(tensor string) bool {
	if n.source == nil {
		return false
	}
	_, err := n.source.Info(tensor)
	return !errors.Is(err, safetensors.ErrNotFound)
}

// tied reports whether a head that the config ties to the table uses it. Both are named without
// ".weight". Tools may write the table twice, so the checkpoint may also have a head. If that has
// another dtype or other values, tied adds a note and returns false, so that the module reads the
// head, as in transformers 5 (pull request 44497). Without a checkpoint the module declares the head
// equal, so loading detects a difference.
func (n *Net) tied(head, table string, vocab, hidden int64) bool {
	head, table = head+".weight", table+".weight"
	if head == table {
		return true
	}
	n.ignored[head] = ignored{}
	if !n.has(head) || !n.has(table) {
		n.B.Unread(head, table)
		return true
	}
	if info, err := n.source.Info(head); err == nil && !slices.Equal(info.Shape, []int64{vocab, hidden}) {
		n.B.Errorf(ir.Pos{}, "tensor %s is %s%v: the head that tie_word_embeddings ties to %s has the shape [%d %d]",
			termsafe.Quote(head), info.DType, info.Shape, termsafe.Quote(table), vocab, hidden)
		return true
	}
	reason, err := checkpoint.Compare(n.source, head, table)
	switch {
	case err != nil:
		n.B.Errorf(ir.Pos{}, "tensors %s and %s cannot be compared: %v", termsafe.Quote(head), termsafe.Quote(table), err)
	case reason != "":
		n.notes = append(n.notes, fmt.Sprintf("tie_word_embeddings is true, but tensor %s differs from %s (%s): the module reads %s, as transformers 5 does",
			termsafe.Quote(head), termsafe.Quote(table), reason, termsafe.Quote(head)))
		return false
	}
	n.B.Unread(head, table)
	return true
}

// Base returns the prefix of a checkpoint's tensors. It is prefix, or empty if the checkpoint has the given tensor
// without the prefix, as models do that were saved without their head. The text part of a multimodal model has other
// prefixes, which replace prefix.
func (n *Net) Base(prefix, tensor string) string {
	prefixes := []string{prefix}
	if n.bases != nil {
		prefixes = n.bases
	}
	for _, p := range append(slices.Clip(prefixes), "") {
		if n.has(p + tensor) {
			return p
		}
	}
	return prefixes[0]
}

// head returns the name of the head, without ".weight": the argument or, for the text part of a multimodal model, the
// first of n.heads that the checkpoint has; n.heads[0] if it has none of them.
func (n *Net) head(name string) string {
	for _, h := range n.heads {
		if n.has(h + ".weight") {
			return h
		}
	}
	if n.heads != nil {
		return n.heads[0]
	}
	return name
}

// part is a checkpoint tensor with the expression that brings its elements into the order of the weight.
type part struct {
	Param
	shape []int64 // of the result
	form  func(leaf *ir.WeightExpr) *ir.WeightExpr
}

func asStored(p Param) part {
	return part{p, p.Shape, func(leaf *ir.WeightExpr) *ir.WeightExpr { return leaf }}
}

// Weight returns a weight of the module, in the model's dtype: the tensors concatenated along axis 0. The first call
// declares it. Later calls must give the same tensors.
func (n *Net) Weight(name string, tensors ...Param) ir.Value {
	parts := make([]part, len(tensors))
	for i, p := range tensors {
		parts[i] = asStored(p)
	}
	return n.weight(name, parts)
}

func (n *Net) weight(name string, parts []part) ir.Value { return n.stack(name, 0, 1, parts) }

// stack is weight for several matrices of one shape, which the parts hold one after the other. The weight is [matrices,
// rows, …]; if matrices is 0, it is [rows, …] with the rows of all. The matrices are divided among the given number of
// ranks, each of which has consecutive ones.
func (n *Net) stack(name string, matrices, ranks int64, parts []part) ir.Value {
	used := make([]Param, len(parts))
	for i, p := range parts {
		used[i] = p.Param
	}
	if before, ok := n.declared[name]; ok {
		if !slices.EqualFunc(used, before, sameTensor) {
			n.B.Errorf(ir.Pos{}, "weight @%s is made of different tensors in different places", name)
		}
		return n.F.Weight(name)
	}
	if len(parts) == 0 {
		n.B.Errorf(ir.Pos{}, "weight @%s is made of no tensor", name)
		return ir.NoValue
	}
	n.declared[name] = used
	exprs := make([]*ir.WeightExpr, len(parts))
	uniform, rows := true, int64(0)
	for i, p := range parts {
		used[i].DType = n.storedDType(p.Name)
		exprs[i] = p.form(&ir.WeightExpr{Name: p.Name})
		uniform = uniform && used[i].DType == used[0].DType
		rows += p.shape[0]
	}
	n.params = append(n.params, used...)

	var expr *ir.WeightExpr
	if uniform { // one cast, of the concatenation
		expr = n.cast(join(exprs), used[0].DType)
	} else {
		for i, p := range used {
			exprs[i] = n.cast(exprs[i], p.DType)
		}
		expr = join(exprs)
	}
	if ranks > 1 {
		expr, rows, matrices = ir.ShardExpr(expr, 0, ranks, rankGroup), rows/ranks, matrices/ranks
	}
	shape := append([]int64{rows}, parts[0].shape[1:]...)
	if matrices > 0 {
		shape = append([]int64{matrices, rows / matrices}, shape[1:]...)
		expr = reshaped(expr, shape...)
	}
	n.B.Weight(name, n.Type(dims(shape)...), expr)
	return n.F.Weight(name)
}

func dims(extents []int64) []dim.Dim {
	out := make([]dim.Dim, len(extents))
	for i, e := range extents {
		out[i] = dim.Const(e)
	}
	return out
}

func sameTensor(a, b Param) bool { return a.Name == b.Name && slices.Equal(a.Shape, b.Shape) }

// storedDType returns the dtype of a checkpoint tensor: its own if the checkpoint is open, else the config's.
func (n *Net) storedDType(tensor string) dtype.DType {
	if n.source == nil {
		return n.stored
	}
	info, err := n.source.Info(tensor)
	if err != nil {
		return n.stored // Check reports all such tensors together
	}
	if !info.DType.Float() || !info.DType.Computes() {
		n.odd = append(n.odd, fmt.Sprintf("%s is %s", termsafe.Quote(tensor), info.DType))
	}
	return info.DType
}

func join(exprs []*ir.WeightExpr) *ir.WeightExpr {
	if len(exprs) == 1 {
		return exprs[0]
	}
	return &ir.WeightExpr{Op: ir.WeightConcat, Args: exprs}
}

func transposed(e *ir.WeightExpr, perm ...int64) *ir.WeightExpr {
	return &ir.WeightExpr{Op: ir.WeightTranspose, Args: []*ir.WeightExpr{e}, Attrs: []ir.Attr{ir.IntsAttr("perm", perm...)}}
}

func reshaped(e *ir.WeightExpr, shape ...int64) *ir.WeightExpr {
	return &ir.WeightExpr{Op: ir.WeightReshape, Args: []*ir.WeightExpr{e}, Attrs: []ir.Attr{ir.IntsAttr("shape", shape...)}}
}

func sliced(e *ir.WeightExpr, axis, start, end int64) *ir.WeightExpr {
	return &ir.WeightExpr{Op: ir.WeightSlice, Args: []*ir.WeightExpr{e}, Attrs: []ir.Attr{ir.IntAttr("axis", axis), ir.IntAttr("start", start), ir.IntAttr("end", end)}}
}

// cast casts an expression to the model's dtype.
func (n *Net) cast(e *ir.WeightExpr, from dtype.DType) *ir.WeightExpr {
	if from == n.DType {
		return e
	}
	return &ir.WeightExpr{Op: ir.WeightCast, Args: []*ir.WeightExpr{e}, Attrs: []ir.Attr{ir.DTypeAttr(n.DType)}}
}
