package compile

import (
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
)

// specialize copies the piece with its symbols narrowed to the shape. With
// constants, a symbol whose range is one number is replaced by it wherever it
// stands. The origin of each node gets an ID, which is the node's identity through
// all passes.
func specialize(piece *ir.Module, shape Shape, constants bool) (*ir.Module, error) {
	m := &ir.Module{Name: piece.Name, Externs: piece.Externs, Source: piece.Source}
	known := 0
	value := make(map[string]dim.Dim)
	for _, s := range piece.Symbols {
		c := &ir.Symbol{Name: s.Name, Lo: s.Lo, Hi: s.Hi, Kind: s.Kind}
		if iv, ok := shape.Ranges[s.Name]; ok {
			known++
			if iv.Lo > iv.Hi || iv.Lo < s.Lo || iv.Hi > s.Hi {
				return nil, fmt.Errorf("compile: range [%d, %d] of symbol %s is not within the declared [%d, %d]", iv.Lo, iv.Hi, s.Name, s.Lo, s.Hi)
			}
			c.Lo, c.Hi = iv.Lo, iv.Hi
		}
		if c.Lo == c.Hi && constants {
			value[s.Name] = dim.Const(c.Lo)
		}
		m.Symbols = append(m.Symbols, c)
	}
	if known != len(shape.Ranges) {
		return nil, fmt.Errorf("compile: the shape names a symbol that module %s does not declare", piece.Name)
	}
	s := substitution(value)
	for _, w := range piece.Weights {
		m.Weights = append(m.Weights, &ir.Weight{Name: w.Name, Type: s.typ(w.Type)})
	}
	for _, st := range piece.States {
		m.States = append(m.States, &ir.State{Name: st.Name, Type: s.typ(st.Type)})
	}
	m.Funcs = []*ir.Func{s.function(piece.Funcs[0])}
	if err := m.Verify(); err != nil {
		return nil, fmt.Errorf("compile: module %s: %w", piece.Name, err)
	}
	return m, nil
}

// substitution replaces symbols in everything that holds dims.
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
	out := &ir.Func{Name: f.Name, Pos: f.Pos, ReturnPos: f.ReturnPos, Params: f.Params, Returns: f.Returns, Values: slices.Clone(f.Values)}
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
