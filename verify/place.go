package verify

import (
	"slices"
	"strings"

	"pwc/ir"
)

// Place is a value of a function, such as the output of a module.
type Place struct {
	Func  string
	Value ir.Value
}

// in returns the function of the value; nil if the module has no such function or value.
func (p Place) in(m *ir.Module) *ir.Func {
	if m == nil {
		return nil
	}
	if f := m.Func(p.Func); f != nil && p.Value >= 0 && int(p.Value) < len(f.Values) {
		return f
	}
	return nil
}

// Index maps module paths to places in a model (C23).
type Index struct {
	outputs map[string]Place // by path: the last value at the path or below
	weights map[string]Place // by path: the output of the GEMM with weight PATH.weight
}

// NewIndex reads the paths of nodes ([ir.Node.Loc]) and the checkpoint tensors in weight
// expressions.
//
// The output of a module is the last value whose node has the module's path, or a path below it.
// If one GEMM serves several modules, its weight is a concatenation of their tensors, and the
// parts of the split result are their outputs.
func NewIndex(m *ir.Module) *Index {
	x := &Index{outputs: map[string]Place{}, weights: map[string]Place{}}
	if m == nil {
		return x
	}
	for _, f := range m.Funcs {
		for _, n := range f.Nodes {
			v, ok := outputOf(f, n)
			if !ok {
				continue
			}
			for path := n.Loc; path != ""; path = parent(path) {
				x.outputs[path] = Place{f.Name, v}
			}
			x.addGEMMs(m, f, n)
		}
	}
	return x
}

// outputOf returns a node's output: the last value that it wrote to memory that a node allocated, else
// its first result.
func outputOf(f *ir.Func, n *ir.Node) (ir.Value, bool) {
	for _, w := range slices.Backward(n.Versions) {
		// Not a state: attention appends to its cache and also writes its output.
		if f.Values[f.Base(w.Value)].Kind == ir.ResultValue {
			return w.Value, true
		}
	}
	if len(n.Results) == 0 {
		return ir.NoValue, false
	}
	return n.Results[0], true
}

// parent returns the path of the parent module; "" at the root.
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '.'), 0)] }

// addGEMMs records the output of a GEMM for the module of its weight. If the weight is a
// concatenation, it records the parts of the output for the modules of the parts.
func (x *Index) addGEMMs(m *ir.Module, f *ir.Func, n *ir.Node) {
	gemm, outputs := n, n.Results
	if n.Op.ID == ir.OpSplit {
		if gemm = f.Def(n.Args[0]); gemm == nil {
			return
		}
	}
	if gemm.Op.ID != ir.OpLinear || f.Values[gemm.Args[1]].Kind != ir.WeightValue {
		return
	}
	w := m.Weights[f.Values[gemm.Args[1]].Index]
	expr := w.Expr
	if expr == nil {
		expr = &ir.WeightExpr{Name: w.Name}
	}
	for expr.Op == ir.WeightCast {
		expr = expr.Args[0]
	}
	parts := []*ir.WeightExpr{expr}
	if expr.Op == ir.WeightConcat {
		parts = expr.Args
	}
	if len(parts) != len(outputs) {
		return
	}
	for i, p := range parts {
		if path, ok := strings.CutSuffix(leafOf(p), ".weight"); ok {
			x.weights[path] = Place{f.Name, outputs[i]}
		}
	}
}

// leafOf returns the checkpoint tensor of an expression that only transposes or casts it; "" for any
// other expression, such as some rows of a tensor.
func leafOf(e *ir.WeightExpr) string {
	for e.Op == ir.WeightTranspose || e.Op == ir.WeightCast {
		e = e.Args[0]
	}
	if e.Op != ir.WeightTensor {
		return ""
	}
	return e.Name
}

// renamed are parts of paths that differ between releases of transformers, because a trace may
// come from another release than the checkpoint.
var renamed = [][2]string{
	{".mlp", ".block_sparse_moe"}, // Mixtral, since transformers 5
	{"model.language_model.", "model."},
	{"language_model.", ""}, // wrappers of models for text and images
	{"model.", ""},          // a base model traced without its head
}

// dropouts has, by the name of a dropout module, the modules of the same parent whose output it copies at
// inference; "" is the parent, whose last module it then is. The first that the model has counts. A dropout of
// attention weights (attn_dropout) is not among them: the model does not compute these weights as a value.
var dropouts = map[string][]string{
	"dropout":                {""},             // GPT-2, in the MLP
	"resid_dropout":          {"mlp", ""},      // Phi calls it for attention and then for the MLP; GPT-2, at the end of attention
	"post_attention_dropout": {"attention"},    // GPT-NeoX
	"post_mlp_dropout":       {"mlp"},          // GPT-NeoX
	"emb_dropout":            {"embed_in"},     // GPT-NeoX
	"resid_attn_dropout":     {"self_attn"},    // Phi-3
	"resid_mlp_dropout":      {"mlp"},          // Phi-3
	"embed_dropout":          {"embed_tokens"}, // Phi and Phi-3
}

// Find returns the place of a module's output. If the model lacks the path, Find tries the names
// of other releases of transformers. The output of a dropout module is that of the module whose output
// it copies.
func (x *Index) Find(path string) (Place, bool) {
	if x == nil {
		return Place{}, false
	}
	for _, name := range spellings(path) {
		if p, ok := x.find(name); ok {
			return p, true
		}
	}
	above := parent(path)
	for _, name := range dropouts[strings.TrimPrefix(path[len(above):], ".")] {
		if p, ok := x.Find(strings.Trim(above+"."+name, ".")); ok {
			return p, true
		}
	}
	return Place{}, false
}

// spellings returns a path and its names in other releases, nearest first.
func spellings(path string) []string {
	out := []string{path}
	for _, r := range renamed {
		for _, name := range slices.Clone(out) {
			for _, way := range [][2]string{r, {r[1], r[0]}} {
				other := strings.Replace(name, way[0], way[1], 1) // before the path, where way[0] is empty
				if !slices.Contains(out, other) {
					out = append(out, other)
				}
			}
		}
	}
	return out
}

func (x *Index) find(path string) (Place, bool) {
	p, ok := x.outputs[path]
	if !ok {
		p, ok = x.weights[path]
	}
	return p, ok
}
