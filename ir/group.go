package ir

import (
	"slices"
	"strconv"

	"pwc/ir/dim"
)

// MaxGroupSize bounds the number of ranks of a group, and the number of devices of a module (World).
const MaxGroupSize = 1 << 16

// maxGroups bounds the groups of a module: each is compared with the others. At most 16 groups can have
// more than one rank (MaxGroupSize).
const maxGroups = 64

// Group is a declared set of devices that run the module together, "group tp in 2 rank r".
// All of them run the same module and the same artifact (C21). They differ in the rank, a
// load symbol, which selects the shards of weights that a device loads.
type Group struct {
	Name   string
	Size   int64  // number of ranks; a constant, because extents can be divided only by constants
	Rank   string // the load symbol that holds the rank, from 0 to Size-1; empty: no symbol holds it
	Pos    Pos
	Trivia Trivia
}

// Group returns the declared group of that name, or nil.
func (m *Module) Group(name string) *Group {
	for _, g := range m.Groups {
		if g.Name == name {
			return g
		}
	}
	return nil
}

// World returns the number of devices that run the module together: the product of the
// sizes of its groups.
func (m *Module) World() int {
	n := 1
	for _, g := range m.Groups {
		n *= int(g.Size)
	}
	return n
}

// GroupRank returns the rank that device number device of the world has in group g. The
// rank in the group that is declared last changes fastest, so the members of that group are
// devices with consecutive numbers.
func (m *Module) GroupRank(g *Group, device int) int {
	for _, h := range slices.Backward(m.Groups) {
		if h == g {
			return device % int(g.Size)
		}
		device /= int(h.Size)
	}
	return 0
}

// RankSymbols returns the values of the load symbols that hold ranks, for device number
// device of the world.
func (m *Module) RankSymbols(device int) map[string]int64 {
	out := make(map[string]int64, len(m.Groups))
	for _, g := range m.Groups {
		if g.Rank != "" {
			out[g.Rank] = int64(m.GroupRank(g, device))
		}
	}
	return out
}

// IsRank reports whether the symbol holds the rank of a group.
func (m *Module) IsRank(symbol string) bool {
	return slices.ContainsFunc(m.Groups, func(g *Group) bool { return g.Rank == symbol })
}

// PlacementKind says how the ranks' values of one name make up the logical value. The names are
// PyTorch DTensor's; "varying" is from JAX's shard_map.
type PlacementKind uint8

const (
	// Replicated values are the same on every rank.
	Replicated PlacementKind = iota
	// Sharded values, concatenated along an axis in rank order, are the whole.
	Sharded
	// Partial values have to be summed: the whole is their sum.
	Partial
	// Varying values differ between ranks, and nothing else is known.
	Varying
)

// Placement says how a value is spread over the ranks of a group.
type Placement struct {
	Group string
	Kind  PlacementKind
	Axis  int // Sharded: the axis along which ranks have parts
}

// String returns the text of the placement, such as "shard 1 over tp"; "" for Replicated.
func (p Placement) String() string {
	switch p.Kind {
	case Sharded:
		return "shard " + strconv.Itoa(p.Axis) + " over " + p.Group
	case Partial:
		return "partial over " + p.Group
	case Varying:
		return "varying over " + p.Group
	}
	return ""
}

// placementOver returns the placement over a group from a list that leaves out Replicated.
func placementOver(list []Placement, group string) Placement {
	for _, p := range list {
		if p.Group == group {
			return p
		}
	}
	return Placement{Group: group}
}

// Group declares a group of size ranks, and the load symbol that holds the rank, if rank is
// not empty.
func (b *Builder) Group(name string, size int64, rank string) *Group {
	if rank != "" {
		b.Symbol(rank, 0, size-1, Load)
	}
	return b.AddGroup(&Group{Name: name, Size: size, Rank: rank})
}

// AddGroup declares g. The symbol of its rank must have been declared.
func (b *Builder) AddGroup(g *Group) *Group {
	if g == nil {
		b.Errorf(Pos{}, "a nil group is declared")
		return &Group{}
	}
	if len(b.m.Groups) == maxGroups {
		b.Errorf(g.Pos, "more than %d groups", maxGroups)
		return g
	}
	switch s := b.symbols[g.Rank]; {
	case b.m.Group(g.Name) != nil:
		b.Errorf(g.Pos, "group %s is declared twice", g.Name)
	case !dim.ValidName(g.Name) || isReserved(g.Name):
		b.Errorf(g.Pos, "%q is no name for a group", g.Name)
	case g.Size < 1 || g.Size > MaxGroupSize:
		b.Errorf(g.Pos, "group %s has %d ranks, want 1 to %d", g.Name, g.Size, MaxGroupSize)
	case int64(b.m.World()) > MaxGroupSize/g.Size:
		b.Errorf(g.Pos, "group %s has %d ranks, and the groups before it need %d devices: a module runs on at most %d", g.Name, g.Size, b.m.World(), MaxGroupSize)
	case g.Rank == "":
	case s == nil:
		b.Errorf(g.Pos, "group %s: symbol %s of its rank is not declared", g.Name, g.Rank)
	case s.Kind != Load || s.Lo != 0 || s.Hi != g.Size-1:
		b.Errorf(g.Pos, "group %s: its rank is a load symbol in [0, %d], but %s is %s", g.Name, g.Size-1, g.Rank, symbolText(s, s.Name))
	case b.m.IsRank(g.Rank):
		b.Errorf(g.Pos, "group %s: symbol %s holds the rank of another group", g.Name, g.Rank)
	}
	b.m.Groups = append(b.m.Groups, g)
	return g
}

// placements checks the placements that a declaration gives to a value of type t. It
// returns them in the order of the groups, without Replicated ones.
func (b *Builder) placements(list []Placement, t Type, pos Pos, what string) []Placement {
	var out []Placement
	for _, g := range b.m.Groups {
		if p := placementOver(list, g.Name); p.Kind != Replicated {
			out = append(out, p)
		}
	}
	for i, p := range list {
		switch {
		case b.m.Group(p.Group) == nil:
			b.Errorf(pos, "%s: group %s is not declared", what, p.Group)
		case slices.ContainsFunc(list[:i], func(q Placement) bool { return q.Group == p.Group }):
			b.Errorf(pos, "%s: its placement over %s is given twice", what, p.Group)
		case p.Kind == Sharded && (p.Axis < 0 || p.Axis >= t.Rank()):
			b.Errorf(pos, "%s: axis %d of its placement is outside %s", what, p.Axis, t)
		case p.Kind == Partial && !t.DType.Float():
			b.Errorf(pos, "%s: only floats are summed over ranks, %s are not", what, t.DType)
		}
	}
	return out
}

// Place declares how a parameter is spread over ranks.
func (fb *FuncBuilder) Place(v Value, list ...Placement) {
	if fb.has(v) {
		info := &fb.f.Values[v]
		info.Placements = fb.b.placements(list, info.Type, info.Pos, "parameter %"+info.Name)
	}
}

// PlaceResult declares how result i of the function is spread over ranks. Call it after
// Return.
func (fb *FuncBuilder) PlaceResult(i int, list ...Placement) {
	if i < 0 || i >= len(fb.f.ResultTypes) {
		fb.Errorf("PlaceResult of result %d: @%s has %d results", i, fb.f.Name, len(fb.f.ResultTypes))
		return
	}
	for len(fb.f.ResultPlacements) <= i {
		fb.f.ResultPlacements = append(fb.f.ResultPlacements, nil)
	}
	fb.f.ResultPlacements[i] = fb.b.placements(list, fb.f.ResultTypes[i], fb.f.ReturnPos, "result "+strconv.Itoa(i)+" of @"+fb.f.Name)
}

// ResultPlacement returns the declared placements of result i; nil: replicated.
func (f *Func) ResultPlacement(i int) []Placement {
	if i >= 0 && i < len(f.ResultPlacements) {
		return f.ResultPlacements[i]
	}
	return nil
}

// noPart is the attribute part of a shard that leaves the part to the rank.
const noPart = -1

// shardExpr describes shard, an op of weight expressions that functions do not have: it takes one
// part of its operand, which the rank in a group selects or attribute part names.
var shardExpr = &Op{Name: "shard", Operands: []Operand{xOperand}, Results: 1, Attrs: []AttrSpec{axisFirst,
	{Name: "parts", Kind: AttrDim, Default: ptr(IntAttr("parts", 0)), Doc: "number of parts; if left out, the number of ranks of the group"},
	{Name: "part", Kind: AttrDim, Default: ptr(IntAttr("part", noPart)), Doc: "index of the part; if left out, the rank picks it"},
	{Name: "group", Kind: AttrEnum, Group: true, Default: ptr(EnumAttr("group", "")), Doc: "the group whose ranks pick parts"}},
	Doc: "one of equal parts along an axis"}

// Shard has the attributes of a weight expression with op shard: it is one of Parts equal
// parts along Axis.
type Shard struct {
	Axis  int64
	Parts int64  // 0: the number of ranks of Group
	Part  int64  // -1: the part that the rank in Group selects
	Group string // empty if Part is given
}

// Shard returns the attributes of the expression if its op is shard.
func (e *WeightExpr) Shard() (Shard, bool) {
	if e.Op != WeightShard {
		return Shard{}, false
	}
	integer := func(name string) int64 {
		a, _ := findAttr(shardExpr, e.Attrs, name)
		v, _ := a.Dim.Const()
		return v
	}
	group, _ := findAttr(shardExpr, e.Attrs, "group")
	return Shard{Axis: integer("axis"), Parts: integer("parts"), Part: integer("part"), Group: group.Str}, true
}

// ShardExpr returns the expression of the part of e along axis that the rank in group
// selects. If there are fewer parts than ranks, consecutive ranks have the same part. If parts
// is 0, there is a part for each rank.
func ShardExpr(e *WeightExpr, axis, parts int64, group string) *WeightExpr {
	return &WeightExpr{Op: WeightShard, Args: []*WeightExpr{e}, Attrs: []Attr{IntAttr("axis", axis), IntAttr("parts", parts), EnumAttr("group", group)}}
}

// checkShard checks the group and the numbers of a shard.
func (b *Builder) checkShard(e *WeightExpr, what string) {
	s, ok := e.Shard()
	if !ok {
		return
	}
	g := b.m.Group(s.Group)
	switch {
	case s.Group == "" && (s.Parts < 1 || s.Part < 0 || s.Part >= s.Parts):
		b.Errorf(e.Pos, "%s: shard wants a group (group=tp), or parts and the index of one (parts=2, part=0)", what)
	case s.Group != "" && s.Part != noPart:
		b.Errorf(e.Pos, "%s: shard has part and group, whose rank picks the part: leave one out", what)
	case s.Group != "" && g == nil:
		b.Errorf(e.Pos, "%s: group %s is not declared", what, s.Group)
	case g != nil && s.Parts != 0 && (s.Parts < 1 || g.Size%s.Parts != 0):
		b.Errorf(e.Pos, "%s: %d parts for %d ranks: the number of parts must divide the number of ranks", what, s.Parts, g.Size)
	}
}

// checkWeightSpread refuses a declared placement of a weight whose expression has a shard over a
// group, which places the weight.
func (b *Builder) checkWeightSpread(w *Weight) {
	if w.Expr == nil || !w.Expr.sharded() {
		return
	}
	for _, p := range w.Placements {
		b.Errorf(w.Pos, "weight @%s: it is declared %s, but the shard in its expression places it: leave the declaration out", w.Name, p)
	}
}

// checkStateSpread refuses a state whose ranks start from parts that do not fit its declared placement.
func (b *Builder) checkStateSpread(s *State) {
	if s.Expr == nil {
		return
	}
	for _, g := range b.m.Groups {
		p := &placer{m: b.m, g: g}
		starts, declared := p.weight(s.Initial()), p.declared(s.Placements)
		switch {
		case starts.sharded() && !declared.shardedAt(starts.axis) && declared.kind != Varying:
			b.Errorf(s.Pos, "state @%s: each rank of group %s starts from its part along axis %d: declare the state as shard %d over %s, or as varying over %s", s.Name, g.Name, starts.axis, starts.axis, g.Name, g.Name)
		case starts.kind == Varying && declared.kind == Replicated:
			b.Errorf(s.Pos, "state @%s: the ranks of group %s may start from different tensors: declare the state as varying over %s", s.Name, g.Name, g.Name)
		}
	}
}

// WeightOf returns the weight that device number device of the world loads: a copy of w
// whose shards name their part. If no shard of w is over a group, it returns w.
func (m *Module) WeightOf(w *Weight, device int) *Weight {
	if w == nil || w.Expr == nil || !w.Expr.sharded() {
		return w
	}
	c := *w
	c.Expr = m.exprOf(w.Expr, device)
	return &c
}

// sharded reports whether the rank selects a part in the expression or below it.
func (e *WeightExpr) sharded() bool {
	s, ok := e.Shard()
	return ok && s.Group != "" || slices.ContainsFunc(e.Args, (*WeightExpr).sharded)
}

func (m *Module) exprOf(e *WeightExpr, device int) *WeightExpr {
	if !e.sharded() {
		return e
	}
	c := *e
	c.Args = make([]*WeightExpr, len(e.Args))
	for i, a := range e.Args {
		c.Args[i] = m.exprOf(a, device)
	}
	if s, ok := e.Shard(); ok && s.Group != "" {
		if g := m.Group(s.Group); g != nil {
			parts := g.parts(s)
			c.Attrs = []Attr{IntAttr("axis", s.Axis), IntAttr("parts", parts), IntAttr("part", int64(m.GroupRank(g, device))/(g.Size/parts))}
		}
	}
	return &c
}

// parts returns the number of parts of a shard over g.
func (g *Group) parts(s Shard) int64 {
	if s.Parts == 0 {
		return g.Size
	}
	return s.Parts
}

// Group returns the name of the group whose ranks take part in a collective.
func (n *Node) Group() string {
	a, _ := n.Attr("group")
	return a.Str
}
