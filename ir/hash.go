package ir

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pwc/ir/dim"
)

// Hash returns the SHA-256 of Canonical(m, nil).
func (m *Module) Hash() [32]byte { return sha256.Sum256([]byte(Canonical(m, nil))) }

// HashFunc returns the SHA-256 of Canonical(m, f).
func HashFunc(m *Module, f *Func) [32]byte { return sha256.Sum256([]byte(Canonical(m, f))) }

// Canonical returns the canonical text of f, or of all functions of m if f is nil: two
// functions with the same canonical text compile to the same code.
// f is a function over m's declarations and need not be one of m's.
//
// The text is a module of the language, so that a diff explains why two hashes
// differ. Names are replaced by numbers in the order of first use: symbols
// s0, s1, … ([SymbolNames]), weights @w0, …, states @x0, …, functions @f0, …, values %0, …;
// checkpoint tensors are all called "t". Groups and extern ops keep their names. The text
// leaves out locs, comments, the module's name, weights from, weights strict, unread,
// context, eos, and declarations without a use other than groups. Axes of ops of the table
// are counted from the first, and attribute axes is sorted. Attributes of calls are sorted by name, and keep their values,
// because only the extern op knows their meaning.
//
// The text keeps program order, types, placements, "mut" and "padded -1", ranges and kinds of
// symbols, attributes and literals to the bit (all NaNs are one), which results are parameters
// or equal to earlier results, the structure of expressions of weights and states, and extern ops by name,
// version and flags.
//
// Symbols that first occur in the same extent are ordered by their declarations and uses. Names
// decide only if a bounded comparison of these finds no difference.
func Canonical(m *Module, f *Func) string {
	funcs := m.Funcs
	if f != nil {
		funcs = []*Func{f}
	}
	c := canonicalizer{m: m, out: &Module{}, symbols: map[string]int{}, renamed: map[string]dim.Dim{},
		externs: map[*Extern]bool{}, weights: map[int32]string{}, states: map[int32]string{}}
	c.numberSymbols(funcs)
	c.groups()
	for i, f := range funcs {
		c.function(f, "f"+strconv.Itoa(i))
	}
	return Print(c.out)
}

// canonicalizer makes the module whose text is the canonical one.
type canonicalizer struct {
	m, out  *Module
	symbols map[string]int     // symbol → number
	renamed map[string]dim.Dim // text of a dim → the dim over numbered symbols
	externs map[*Extern]bool   // already declared
	weights map[int32]string   // index in m → new name
	states  map[int32]string
	work    int // see maxWork
}

// eachDim calls visit for every dim of the functions in an order that does not
// depend on names: parameters, then node by node states on first use,
// attributes, result types; last, states that are only returned.
func (c *canonicalizer) eachDim(funcs []*Func, visit func(dim.Dim)) {
	states := map[int32]bool{}
	each := func(dims []dim.Dim) {
		for _, d := range dims {
			visit(d)
		}
	}
	for _, f := range funcs {
		use := func(values []Value) {
			for _, v := range values {
				if info := &f.Values[f.Base(v)]; info.Kind == StateValue && !states[info.Index] {
					states[info.Index] = true
					each(info.Type.Shape)
				}
			}
		}
		for _, v := range f.Params {
			each(f.Type(v).Shape)
		}
		for _, n := range f.Nodes {
			use(n.Args)
			for _, a := range sortedAttrs(n) {
				visit(a.Dim)
				each(a.Dims)
			}
			for _, r := range n.Results {
				each(f.Type(r).Shape)
			}
		}
		use(f.Returns)
	}
}

// sortedAttrs returns a node's attributes; it sorts the attributes of calls, which
// have the author's order, by name.
func sortedAttrs(n *Node) []Attr {
	if n.Extern == nil || len(n.Attrs) < 2 {
		return n.Attrs
	}
	return slices.SortedFunc(slices.Values(n.Attrs), func(a, b Attr) int { return cmp.Compare(a.Name, b.Name) })
}

func (c *canonicalizer) numberSymbols(funcs []*Func) {
	c.eachDim(funcs, func(d dim.Dim) {
		if _, ok := d.Const(); ok {
			return
		}
		fresh := slices.DeleteFunc(d.Symbols(), func(s string) bool {
			_, ok := c.symbols[s]
			return ok || s == Unknown
		})
		for len(fresh) > 0 {
			i := 0
			if len(fresh) > 1 {
				i = c.first(funcs, fresh)
			}
			c.symbols[fresh[i]] = len(c.symbols)
			fresh = slices.Delete(fresh, i, i+1)
		}
	})
	var nodes []*Node
	for _, f := range funcs {
		nodes = append(nodes, f.Nodes...)
	}
	byNumber := make([]string, len(c.symbols))
	for name, i := range c.symbols {
		byNumber[i] = name
	}
	next := SymbolNames(nodes)
	for _, name := range byNumber {
		s := Symbol{}
		if d := c.m.Symbol(name); d != nil {
			s = *d
		}
		s.Name = next()
		c.out.Symbols = append(c.out.Symbols, &s)
	}
}

// SymbolNames returns a function that gives the canonical names of symbols, s0,
// s1, … in this order. It leaves out names that are bare names in attributes of the
// nodes' calls: these would then refer to the symbol.
func SymbolNames(nodes []*Node) func() string {
	taken := map[string]bool{}
	for _, n := range nodes {
		for _, a := range n.Attrs {
			if n.Extern != nil && a.Kind == AttrEnum {
				taken[a.Str] = true
			}
		}
	}
	i := -1
	return func() string {
		for i++; taken["s"+strconv.Itoa(i)]; {
			i++
		}
		return "s" + strconv.Itoa(i)
	}
}

// maxRefinements bounds the rounds of first.
const maxRefinements = 8

// maxWork bounds the work of all rounds together to about a second: a text of some
// kilobytes may have hundreds of symbols in one extent. The work is counted
// independently of names, so modules that differ only in names reach the bound at the
// same symbol.
const maxWork = 1 << 26

// first returns the index of the symbol that gets the next number, of several that first
// occur in the same extent. It refines classes of symbols, as graph canonization does: the
// class of a symbol is at first its number or, without one, its declaration; then the places
// where the symbol occurs are added, and the extents there, in which every other symbol is
// replaced by its class.
func (c *canonicalizer) first(funcs []*Func, fresh []string) int {
	if c.work > maxWork {
		return 0 // by name
	}
	class := map[string]string{}
	for _, s := range c.m.Symbols {
		if n, ok := c.symbols[s.Name]; ok {
			class[s.Name] = fmt.Sprintf("n%d", n)
		} else {
			class[s.Name] = symbolText(s, "d")
		}
	}
	classes := rank(class)
	for range maxRefinements {
		uses := make(map[string]*strings.Builder, len(class))
		for name, k := range class {
			uses[name] = &strings.Builder{}
			uses[name].WriteString(k)
		}
		place := 0
		c.work += len(class)
		c.eachDim(funcs, func(d dim.Dim) {
			place++
			if _, ok := d.Const(); ok {
				return
			}
			names := d.Symbols()
			if c.work += len(names) * len(names) * len(names); c.work > maxWork {
				return
			}
			for _, s := range names {
				if uses[s] == nil {
					continue
				}
				seen := d.Subst(func(o string) (dim.Dim, bool) {
					if o == s {
						return dim.Sym("x"), true
					}
					return dim.Sym(class[o]), class[o] != ""
				})
				fmt.Fprintf(uses[s], ";%d:%s", place, seen)
			}
		})
		for name, b := range uses {
			class[name] = b.String()
		}
		n := rank(class)
		if n == classes {
			break
		}
		classes = n
	}
	best := 0
	for i, s := range fresh {
		if class[s] < class[fresh[best]] {
			best = i
		}
	}
	return best
}

// rank replaces classes by short names in the same order, and returns how many
// there are.
func rank(class map[string]string) int {
	var all []string
	for _, k := range class {
		all = append(all, k)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for s, k := range class {
		i, _ := slices.BinarySearch(all, k)
		class[s] = fmt.Sprintf("c%06d", i)
	}
	return len(all)
}

// dim returns d over the numbered symbols.
func (c *canonicalizer) dim(d dim.Dim) dim.Dim {
	if _, ok := d.Const(); ok {
		return d
	}
	key := d.String()
	r, ok := c.renamed[key]
	if !ok {
		r = d.Subst(func(s string) (dim.Dim, bool) {
			i, ok := c.symbols[s]
			if !ok {
				return dim.Dim{}, false
			}
			return dim.Sym(c.out.Symbols[i].Name), true
		})
		c.renamed[key] = r
	}
	return r
}

func (c *canonicalizer) dims(dims []dim.Dim) []dim.Dim {
	if !slices.ContainsFunc(dims, func(d dim.Dim) bool { _, ok := d.Const(); return !ok }) {
		return dims
	}
	out := make([]dim.Dim, len(dims))
	for i, d := range dims {
		out[i] = c.dim(d)
	}
	return out
}

func (c *canonicalizer) typ(t Type) Type { return Type{DType: t.DType, Shape: c.dims(t.Shape)} }

// groups adds all groups, each with the symbol of its rank if a function uses it. Groups
// keep their names, because a runner makes groups by name.
func (c *canonicalizer) groups() {
	for _, g := range c.m.Groups {
		out := &Group{Name: g.Name, Size: g.Size}
		if i, ok := c.symbols[g.Rank]; ok {
			out.Rank = c.out.Symbols[i].Name
		}
		c.out.Groups = append(c.out.Groups, out)
	}
}

// function adds a copy of f without names, origins and comments, which the hash ignores.
func (c *canonicalizer) function(f *Func, name string) {
	out := &Func{Name: name, Params: f.Params, Returns: f.Returns, ResultPlacements: f.ResultPlacements, Values: slices.Clone(f.Values), Nodes: make([]*Node, len(f.Nodes))}
	for i := range out.Values {
		info := &out.Values[i]
		info.Name = ""
		info.Type = c.typ(info.Type)
	}
	use := func(values []Value) {
		for _, v := range values {
			switch info := &out.Values[out.Values[v].Base]; info.Kind {
			case WeightValue:
				info.Name = c.weight(info.Index)
			case StateValue:
				info.Name = c.state(info.Index)
			}
		}
	}
	for i, n := range f.Nodes {
		use(n.Args)
		k := &Node{Op: n.Op, Extern: n.Extern, Args: n.Args, Results: n.Results, Versions: n.Versions}
		if n.Extern != nil && !c.externs[n.Extern] {
			c.externs[n.Extern] = true
			e := *n.Extern
			c.out.Externs = append(c.out.Externs, &e)
		}
		for _, a := range sortedAttrs(n) {
			if n.Extern == nil && (a.Name == "axis" || a.Name == "axes") {
				if a = countedAxes(f, n, a); n.atDefault(f, a) {
					continue
				}
			}
			a.Dim, a.Dims = c.dim(a.Dim), c.dims(a.Dims)
			k.Attrs = append(k.Attrs, a)
		}
		out.Nodes[i] = k
	}
	use(f.Returns)
	for _, t := range f.ResultTypes {
		out.ResultTypes = append(out.ResultTypes, c.typ(t))
	}
	c.out.Funcs = append(c.out.Funcs, out)
}

// countedAxes returns an attribute that names axes with all of them counted from
// the first, and a set of axes in rising order: axis=-1 and axis=1 of a matrix
// are one axis.
func countedAxes(f *Func, n *Node, a Attr) Attr {
	of := n.Results
	if len(n.Args) > 0 {
		of = n.Args
	}
	if len(of) == 0 {
		return a
	}
	rank := int64(f.Type(of[0]).Rank())
	count := func(d dim.Dim) dim.Dim {
		if v, ok := d.Const(); ok && v < 0 {
			return dim.Const(v + rank)
		}
		return d
	}
	a.Dim = count(a.Dim)
	if a.Kind == AttrDims {
		a.Dims = slices.Clone(a.Dims)
		for i, d := range a.Dims {
			a.Dims[i] = count(d)
		}
		slices.SortStableFunc(a.Dims, func(x, y dim.Dim) int {
			v, _ := x.Const()
			w, _ := y.Const()
			return cmp.Compare(v, w)
		})
	}
	return a
}

// atDefault reports whether an attribute with counted axes has the value of its default.
func (n *Node) atDefault(f *Func, a Attr) bool {
	left, ok := findAttr(n.Op, nil, a.Name)
	return ok && countedAxes(f, n, left).Equal(a)
}

func (c *canonicalizer) weight(i int32) string {
	name, ok := c.weights[i]
	if !ok {
		w := c.m.Weights[i]
		name = "w" + strconv.Itoa(len(c.weights))
		c.weights[i] = name
		expr := w.Expr
		if expr == nil {
			expr = &WeightExpr{}
		}
		c.out.Weights = append(c.out.Weights, &Weight{Name: name, Type: c.typ(w.Type), Placements: w.Placements, Expr: anonymous(expr)})
	}
	return name
}

func (c *canonicalizer) state(i int32) string {
	name, ok := c.states[i]
	if !ok {
		name = "x" + strconv.Itoa(len(c.states))
		c.states[i] = name
		s := &State{Name: name, Type: c.typ(c.m.States[i].Type), Placements: c.m.States[i].Placements}
		if e := c.m.States[i].Expr; e != nil {
			s.Expr = anonymous(e)
		}
		c.out.States = append(c.out.States, s)
	}
	return name
}

// anonymous returns the expression with its tensors' names replaced.
func anonymous(e *WeightExpr) *WeightExpr {
	if e.Op == WeightTensor {
		return &WeightExpr{Name: "t"}
	}
	out := &WeightExpr{Op: e.Op, Attrs: e.Attrs}
	for _, a := range e.Args {
		out.Args = append(out.Args, anonymous(a))
	}
	return out
}
