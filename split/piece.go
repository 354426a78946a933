package split

import (
	"crypto/sha256"
	"fmt"

	"pwc/ir"
	"pwc/ir/dim"
)

// cutter makes the pieces of a plan. Its tables are made once for the function, so all pieces together
// cost one walk over it.
type cutter struct {
	p      *Plan
	unitOf []int32          // by node
	nodes  [][]int          // by unit
	last   []int32          // by base: the last unit that uses it; -1: no unit
	out    []bool           // by base: the function returns it
	to     []ir.Value       // by base: its value in the current piece
	stamp  []int32          // by base: the unit (plus 1) for which to is valid
	spread [][]ir.Placement // by group and value: how it is spread over ranks
}

func newCutter(p *Plan) *cutter {
	c := &cutter{p: p,
		unitOf: make([]int32, len(p.Func.Nodes)), nodes: make([][]int, len(p.Units)),
		last: make([]int32, len(p.Func.Values)), out: make([]bool, len(p.Func.Values)),
		to: make([]ir.Value, len(p.Func.Values)), stamp: make([]int32, len(p.Func.Values))}
	for _, g := range p.Module.Groups {
		c.spread = append(c.spread, p.Module.Placements(p.Func, g))
	}
	for _, it := range p.Items {
		at := 0
		for _, i := range it.Nodes {
			if u := it.Units[at]; it.Splitting && len(c.nodes[u.Seq]) > 0 && (u.Call >= 0 || p.Func.Nodes[i].Extern != nil) {
				at++
			}
			seq := it.Units[at].Seq
			c.unitOf[i] = int32(seq)
			c.nodes[seq] = append(c.nodes[seq], i)
		}
	}
	return c
}

// dead reports whether node i does not use its operand's memory: empty_like of a value that its unit
// does not make becomes empty of its type, so the value need not live until here.
func (c *cutter) dead(i int, arg ir.Value) bool {
	n := c.p.Func.Nodes[i]
	def := c.p.Func.Values[c.p.Func.Base(arg)].Node
	return n.IsEmpty() && (def < 0 || c.unitOf[def] != c.unitOf[i])
}

// live computes the last unit of each storage and fills Storages.
func (c *cutter) live() {
	f := c.p.Func
	for b := range c.last {
		c.last[b] = -1
	}
	for i, n := range f.Nodes {
		for _, a := range n.Args {
			if b := f.Base(a); !c.dead(i, a) {
				c.last[b] = max(c.last[b], c.unitOf[i])
			}
		}
		for _, r := range n.Results {
			c.last[r] = max(c.last[r], c.unitOf[i])
		}
	}
	for _, v := range f.Returns {
		c.out[f.Base(v)] = true
	}
	for v := range f.Values {
		switch info := &f.Values[v]; info.Kind {
		case ir.ParamValue:
			c.p.Storages = append(c.p.Storages, Storage{Base: ir.Value(v), First: -1, Last: int(c.last[v]), Returned: c.out[v]})
		case ir.ResultValue:
			if first := c.unitOf[info.Node]; c.escapes(ir.Value(v)) || c.p.Units[first].Call >= 0 {
				c.p.Storages = append(c.p.Storages, Storage{Base: ir.Value(v), First: int(first), Last: int(c.last[v]), Returned: c.out[v]})
			}
		}
	}
}

// escapes reports whether a storage of a node is used outside its unit.
func (c *cutter) escapes(base ir.Value) bool {
	return c.out[base] || c.last[base] > c.unitOf[c.p.Func.Values[base].Node]
}

// pieceBuilder builds the piece of one unit.
type pieceBuilder struct {
	*cutter
	seq     int
	piece   *Piece
	b       *ir.Builder
	fb      *ir.FuncBuilder
	symbols map[string]dim.Dim
	named   func() string // returns the name of the next symbol
	externs map[*ir.Extern]bool
}

// piece builds the module of a unit.
func (c *cutter) piece(seq int) (*Piece, error) {
	b := ir.NewBuilder("piece")
	nodes := make([]*ir.Node, len(c.nodes[seq]))
	for j, i := range c.nodes[seq] {
		nodes[j] = c.p.Func.Nodes[i]
	}
	pb := &pieceBuilder{cutter: c, seq: seq, b: b, fb: b.Func("piece"), piece: &Piece{Origins: c.nodes[seq]},
		symbols: map[string]dim.Dim{}, named: ir.SymbolNames(nodes), externs: map[*ir.Extern]bool{}}
	for _, g := range c.p.Module.Groups {
		b.AddGroup(&ir.Group{Name: g.Name, Size: g.Size})
	}
	pb.inputs()
	for _, i := range c.nodes[seq] {
		pb.node(c.p.Func.Nodes[i], i)
	}
	pb.results()
	m, err := b.Build()
	if err != nil {
		return nil, err
	}
	pb.piece.Module, pb.piece.Func = m, m.Funcs[0]
	// The module is canonical already. Equal hashes of its text mean an equal order of symbols,
	// weights and parameters, so one compiled program serves every piece with this hash. A hash
	// of a renamed text would not guarantee that.
	pb.piece.Hash = sha256.Sum256([]byte(ir.Print(m)))
	// Origins are not hashed: identical pieces have different ones.
	m.Source = c.p.Module.Source
	for j, n := range nodes {
		pb.piece.Func.Nodes[j].Origin = n.Origin
	}
	return pb.piece, nil
}

// inputs declares the values that the unit uses and does not make, in order of first use. One
// storage is one parameter, for any number of its versions in the unit.
func (pb *pieceBuilder) inputs() {
	f := pb.p.Func
	written := map[ir.Value]ir.Value{} // by base: the last version made here
	for _, i := range pb.nodes[pb.seq] {
		n := f.Nodes[i]
		for _, w := range n.Versions {
			written[f.Base(w.Value)] = w.Value
		}
	}
	for _, i := range pb.nodes[pb.seq] {
		for _, a := range f.Nodes[i].Args {
			base := f.Base(a)
			info := &f.Values[base]
			if info.Kind == ir.LiteralValue || pb.dead(i, a) || pb.stamp[base] == int32(pb.seq)+1 {
				continue
			}
			if info.Node >= 0 && pb.unitOf[info.Node] == int32(pb.seq) {
				continue
			}
			t := pb.typ(info.Type)
			var v ir.Value
			switch info.Kind {
			case ir.WeightValue:
				name := fmt.Sprintf("w%d", len(pb.piece.Weights))
				pb.piece.Weights = append(pb.piece.Weights, int(info.Index))
				pb.b.AddWeight(&ir.Weight{Name: name, Type: t, Placements: pb.placements(base)})
				v = pb.fb.Weight(name)
			case ir.StateValue:
				name := fmt.Sprintf("state%d", len(pb.piece.States))
				pb.piece.States = append(pb.piece.States, int(info.Index))
				pb.b.AddState(&ir.State{Name: name, Type: t, Placements: pb.placements(base)})
				v = pb.fb.State(name)
			default:
				name := fmt.Sprintf("p%d", len(pb.piece.Params))
				left, mut := written[base]
				pb.piece.Params = append(pb.piece.Params, Binding{Value: a, Base: base, Mut: mut})
				if mut {
					v = pb.fb.MutParam(name, t)
				} else {
					v, left = pb.fb.Param(name, t), a
				}
				pb.fb.Place(v, pb.placements(left)...)
			}
			pb.set(base, v)
		}
	}
}

func (pb *pieceBuilder) set(base, v ir.Value) {
	pb.to[base], pb.stamp[base] = v, int32(pb.seq)+1
}

// node adds node i of the function. Operands are the newest version of their storage, which the
// builder tracks.
func (pb *pieceBuilder) node(n *ir.Node, i int) {
	f := pb.p.Func
	attrs := pb.attrs(n.Attrs)
	var results []ir.Value
	switch {
	case n.Extern != nil:
		pb.extern(n.Extern)
		types := make([]ir.Type, len(n.Results))
		for j, r := range n.Results {
			types[j] = pb.typ(f.Values[r].Type)
		}
		results = pb.fb.Call(n.Extern.Name, pb.args(n), types, attrs...)
	case len(n.Args) > 0 && pb.dead(i, n.Args[0]):
		t := pb.typ(f.Values[n.Results[0]].Type)
		results = pb.fb.Op("empty", nil, ir.DimsAttr("shape", t.Shape...), ir.DTypeAttr(t.DType))
	default:
		results = pb.fb.Op(n.Op.Name, pb.args(n), attrs...)
	}
	for j, r := range n.Results {
		pb.set(r, results[j])
	}
}

func (pb *pieceBuilder) args(n *ir.Node) []ir.Value {
	args := make([]ir.Value, len(n.Args))
	for j, a := range n.Args {
		if info := &pb.p.Func.Values[a]; info.Kind == ir.LiteralValue {
			args[j] = pb.fb.Literal(info.Literal)
		} else {
			args[j] = pb.to[info.Base]
		}
	}
	return args
}

// results returns, in program order, the storages made here that later units use or the function returns.
func (pb *pieceBuilder) results() {
	f := pb.p.Func
	at := map[ir.Value]int{} // base → index in Results
	var out []ir.Value
	for _, i := range pb.nodes[pb.seq] {
		for _, r := range f.Nodes[i].Results {
			if pb.escapes(r) {
				at[r] = len(out)
				out = append(out, pb.to[r])
				pb.piece.Results = append(pb.piece.Results, Binding{Value: r, Base: r})
			}
		}
		for _, w := range f.Nodes[i].Versions {
			if j, ok := at[f.Base(w.Value)]; ok {
				pb.piece.Results[j].Value = w.Value
			}
		}
	}
	pb.fb.Return(out...)
	for i, r := range pb.piece.Results {
		pb.fb.PlaceResult(i, pb.placements(r.Value)...)
	}
}

// placements returns how a value of the function is spread over ranks.
func (c *cutter) placements(v ir.Value) []ir.Placement {
	out := make([]ir.Placement, len(c.spread))
	for i, of := range c.spread {
		out[i] = of[v]
	}
	return out
}

// typ returns a type over the piece's symbols.
func (pb *pieceBuilder) typ(t ir.Type) ir.Type {
	return ir.Type{DType: t.DType, Shape: pb.dims(t.Shape)}
}

func (pb *pieceBuilder) dims(ds []dim.Dim) []dim.Dim {
	out := make([]dim.Dim, len(ds))
	for i, d := range ds {
		out[i] = pb.dim(d)
	}
	return out
}

// dim renames the symbols of d, and declares those that are new in the piece.
func (pb *pieceBuilder) dim(d dim.Dim) dim.Dim {
	if _, ok := d.Const(); ok {
		return d
	}
	for _, name := range d.Symbols() {
		if _, ok := pb.symbols[name]; !ok {
			s := pb.p.Module.Symbol(name)
			own := pb.named()
			pb.symbols[name] = pb.b.Symbol(own, s.Lo, s.Hi, s.Kind)
			for i, g := range pb.p.Module.Groups {
				if g.Rank == name {
					pb.b.Module().Groups[i].Rank = own
				}
			}
			pb.piece.Symbols = append(pb.piece.Symbols, name)
		}
	}
	return d.Subst(func(name string) (dim.Dim, bool) {
		s, ok := pb.symbols[name]
		return s, ok
	})
}

func (pb *pieceBuilder) attrs(attrs []ir.Attr) []ir.Attr {
	out := make([]ir.Attr, len(attrs))
	for i, a := range attrs {
		a.Pos = ir.Pos{}
		switch a.Kind {
		case ir.AttrDim:
			a.Dim = pb.dim(a.Dim)
		case ir.AttrDims:
			a.Dims = pb.dims(a.Dims)
		}
		out[i] = a
	}
	return out
}

func (pb *pieceBuilder) extern(e *ir.Extern) {
	if pb.externs[e] {
		return
	}
	pb.externs[e] = true
	c := *e
	c.Pos, c.Trivia = ir.Pos{}, ir.Trivia{}
	pb.b.Extern(&c)
}
