package verify

import (
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
)

// part is a module of its own, with some nodes of a function as @case. Its parameters are the function's
// parameters and the values of other nodes that the nodes read.
type part struct {
	module  *ir.Module
	params  []ir.Value // parameter i is this value of the function
	results []ir.Value // result i is this value
}

// caseFunc is the name of the function of a part.
const caseFunc = "case"

// extractor copies nodes into a part.
type extractor struct {
	m       *ir.Module
	f       *ir.Func
	b       *ir.Builder
	fb      *ir.FuncBuilder
	to      map[ir.Value]ir.Value // by the base of a storage in f: its first value in the part
	weights map[int32]bool
	states  map[int32]bool
	externs map[*ir.Extern]bool
	symbols map[string]bool
	spread  [][]ir.Placement // by group of m and value of f
	part    part
}

// extract returns the nodes as a module that returns the results. It keeps locs, all groups, and the
// other declarations that the nodes use. A weight keeps its expression, so the part reads the model's
// checkpoint.
func extract(m *ir.Module, f *ir.Func, nodes []int, results []ir.Value) (*part, error) {
	b := ir.NewBuilder(m.Name)
	x := &extractor{m: m, f: f, b: b, to: map[ir.Value]ir.Value{}, weights: map[int32]bool{}, states: map[int32]bool{},
		externs: map[*ir.Extern]bool{}, symbols: map[string]bool{}}
	for _, g := range m.Groups {
		x.spread = append(x.spread, m.Placements(f, g))
		if g.Rank != "" {
			x.dims([]dim.Dim{dim.Sym(g.Rank)})
		}
		own := *g
		b.AddGroup(&own)
	}
	x.declare(nodes)
	x.fb = b.Func(caseFunc)
	x.params(nodes)
	for _, i := range nodes {
		x.node(f.Nodes[i])
	}
	returns := make([]ir.Value, len(results))
	for i, v := range results {
		returns[i] = x.fb.Latest(x.to[f.Base(v)])
	}
	x.fb.Return(returns...)
	for i, v := range results {
		x.fb.PlaceResult(i, x.placements(v)...)
	}
	built, err := b.Build()
	if err != nil {
		return nil, err
	}
	x.part.module, x.part.results = built, results
	return &x.part, nil
}

// placements returns how a value of f is spread over ranks.
func (x *extractor) placements(v ir.Value) []ir.Placement {
	out := make([]ir.Placement, len(x.spread))
	for i, of := range x.spread {
		out[i] = of[v]
	}
	return out
}

// declare adds the module's declarations that the nodes use.
func (x *extractor) declare(nodes []int) {
	for _, i := range nodes {
		n := x.f.Nodes[i]
		if n.Extern != nil && !x.externs[n.Extern] {
			x.externs[n.Extern] = true
			e := *n.Extern
			x.b.Extern(&e)
		}
		for _, v := range slices.Concat(n.Args, n.Results) {
			info := x.f.Values[x.f.Base(v)]
			x.dims(info.Type.Shape)
			switch {
			case info.Kind == ir.WeightValue && !x.weights[info.Index]:
				x.weights[info.Index] = true
				w := *x.m.Weights[info.Index]
				x.b.AddWeight(&w)
			case info.Kind == ir.StateValue && !x.states[info.Index]:
				x.states[info.Index] = true
				s := *x.m.States[info.Index]
				x.b.AddState(&s)
			}
		}
		for _, a := range n.Attrs {
			x.dims(attrDims(a))
		}
	}
}

// attrDims returns the extents in an attribute.
func attrDims(a ir.Attr) []dim.Dim {
	if a.Kind == ir.AttrDim {
		return []dim.Dim{a.Dim}
	}
	return a.Dims
}

func (x *extractor) dims(ds []dim.Dim) {
	for _, d := range ds {
		for _, name := range d.Symbols() {
			if !x.symbols[name] {
				x.symbols[name] = true
				s := *x.m.Symbol(name)
				x.b.AddSymbol(&s)
			}
		}
	}
}

// params adds the values that the nodes read and do not compute, in order of first use.
func (x *extractor) params(nodes []int) {
	made := map[ir.Value]bool{}
	written := map[ir.Value]bool{}
	for _, i := range nodes {
		for _, w := range x.f.Nodes[i].Versions {
			written[x.f.Base(w.Value)] = true
		}
	}
	for _, i := range nodes {
		n := x.f.Nodes[i]
		for _, a := range n.Args {
			base := x.f.Base(a)
			info := x.f.Values[base]
			if _, ok := x.to[base]; ok || made[base] || info.Kind == ir.LiteralValue {
				continue
			}
			switch info.Kind {
			case ir.WeightValue:
				x.to[base] = x.fb.Weight(x.m.Weights[info.Index].Name)
			case ir.StateValue:
				x.to[base] = x.fb.State(x.m.States[info.Index].Name)
			default:
				name := fmt.Sprintf("in%d", len(x.part.params))
				x.part.params = append(x.part.params, a)
				if written[base] {
					x.to[base] = x.fb.MutParam(name, info.Type)
				} else {
					x.to[base] = x.fb.Param(name, info.Type)
				}
				if x.f.Values[base].Padded {
					x.fb.Padded(x.to[base])
				}
				x.fb.Place(x.to[base], x.placements(a)...)
			}
		}
		for _, r := range n.Results {
			made[r] = true
		}
	}
}

func (x *extractor) node(n *ir.Node) {
	x.fb.SetLoc(n.Loc)
	args := make([]ir.Value, len(n.Args))
	for i, a := range n.Args {
		if info := x.f.Values[a]; info.Kind == ir.LiteralValue {
			args[i] = x.fb.Literal(info.Literal)
		} else {
			args[i] = x.fb.Latest(x.to[info.Base])
		}
	}
	var results []ir.Value
	if n.Extern != nil {
		types := make([]ir.Type, len(n.Results))
		for i, r := range n.Results {
			types[i] = x.f.Type(r)
		}
		results = x.fb.Call(n.Extern.Name, args, types, n.Attrs...)
	} else {
		results = x.fb.Op(n.Op.Name, args, n.Attrs...)
	}
	for i, r := range n.Results {
		if i < len(results) {
			x.to[r] = results[i]
		}
	}
}
