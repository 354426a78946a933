package compile

import (
	"fmt"
	"maps"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
)

// specialize is the pass static: it narrows symbols to the shape, and replaces symbols whose
// range is one number by constants.
func specialize(s *state) error {
	value := make(map[string]dim.Dim)
	for _, sym := range s.piece.Symbols {
		if iv := s.shape.of(sym); iv.Lo == iv.Hi {
			value[sym.Name] = dim.Const(iv.Lo)
		}
	}
	return s.begin(value)
}

// narrow copies the piece with its symbols narrowed to the shape.
func narrow(s *state) error { return s.begin(nil) }

// of returns the range of a symbol.
func (s Shape) of(sym *ir.Symbol) dim.Interval {
	if iv, ok := s.Ranges[sym.Name]; ok {
		return iv
	}
	return dim.Interval{Lo: sym.Lo, Hi: sym.Hi}
}

// begin copies the piece and replaces symbols by the given values. The origin of each node
// gets an ID, which identifies the node through all passes.
func (s *state) begin(value substitution) error {
	piece := s.piece
	m := &ir.Module{Name: piece.Name, Groups: piece.Groups, Externs: piece.Externs, Source: piece.Source}
	for _, name := range slices.Sorted(maps.Keys(s.shape.Ranges)) {
		if piece.Symbol(name) == nil {
			return callError{fmt.Errorf("compile: the shape has a range for symbol %s, which module %s does not declare", name, piece.Name)}
		}
	}
	for _, sym := range piece.Symbols {
		iv := s.shape.of(sym)
		switch {
		case iv.Lo > iv.Hi:
			return callError{fmt.Errorf("compile: range [%d, %d] of symbol %s is empty, want Lo <= Hi", iv.Lo, iv.Hi, sym.Name)}
		case iv.Lo < sym.Lo || iv.Hi > sym.Hi:
			return callError{fmt.Errorf("compile: range [%d, %d] of symbol %s is not within the declared [%d, %d]", iv.Lo, iv.Hi, sym.Name, sym.Lo, sym.Hi)}
		}
		m.Symbols = append(m.Symbols, &ir.Symbol{Name: sym.Name, Lo: iv.Lo, Hi: iv.Hi, Kind: sym.Kind})
	}
	for _, w := range piece.Weights {
		m.Weights = append(m.Weights, &ir.Weight{Name: w.Name, Type: value.typ(w.Type), Placements: w.Placements})
	}
	for _, st := range piece.States {
		m.States = append(m.States, &ir.State{Name: st.Name, Type: value.typ(st.Type), Placements: st.Placements})
	}
	fn := value.function(piece.Funcs[0])
	m.Funcs = []*ir.Func{fn}
	if err := m.Verify(); err != nil {
		return callError{fmt.Errorf("compile: module %s: %w", piece.Name, err)}
	}
	s.m, s.verified = m, fn
	s.ops = make([]string, len(fn.Nodes))
	for i, n := range fn.Nodes {
		s.ops[i] = n.Name()
	}
	s.named = returnedAs(fn)
	s.drawn = make(advances)
	s.drawn.add(m, fn)
	return nil
}

// substitution replaces symbols in dims, types, attributes and functions.
type substitution map[string]dim.Dim

func (s substitution) dim(d dim.Dim) dim.Dim {
	if len(s) == 0 {
		return d
	}
	return d.Subst(func(name string) (dim.Dim, bool) { v, ok := s[name]; return v, ok })
}

func (s substitution) dims(ds []dim.Dim) []dim.Dim {
	if len(s) == 0 || ds == nil {
		return ds
	}
	out := make([]dim.Dim, len(ds))
	for i, d := range ds {
		out[i] = s.dim(d)
	}
	return out
}

func (s substitution) typ(t ir.Type) ir.Type { return ir.Type{DType: t.DType, Shape: s.dims(t.Shape)} }

func (s substitution) function(f *ir.Func) *ir.Func {
	out := &ir.Func{Name: f.Name, Pos: f.Pos, ReturnPos: f.ReturnPos, Params: f.Params, Returns: f.Returns, ResultPlacements: f.ResultPlacements, Values: slices.Clone(f.Values)}
	for _, t := range f.ResultTypes {
		out.ResultTypes = append(out.ResultTypes, s.typ(t))
	}
	for i := range out.Values {
		out.Values[i].Type = s.typ(out.Values[i].Type)
	}
	for i, n := range f.Nodes {
		c := *n
		c.ID = int32(i) + 1
		c.Attrs = slices.Clone(n.Attrs)
		for j := range c.Attrs {
			c.Attrs[j].Dim, c.Attrs[j].Dims = s.dim(c.Attrs[j].Dim), s.dims(c.Attrs[j].Dims)
		}
		out.Nodes = append(out.Nodes, &c)
	}
	return out
}
