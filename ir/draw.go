package ir

import (
	"fmt"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// DrawStep is the least distance between the offsets of two draws from a generator. Philox
// ignores the two lowest bits of an offset, so smaller steps would repeat numbers.
const DrawStep = 4

// maxDrawOffset bounds the offset of a draw, so that its sum with a run's offset fits an int64.
const maxDrawOffset = 1 << 60

// GeneratorType is the type of a generator's state: its seed and its offset.
var GeneratorType = TypeOf(dtype.I64, dim.Const(2))

// Generator is a parameter or state that a function draws random numbers from.
type Generator struct {
	Value Value // the parameter or state

	// Advance is by how much one run advances the generator's offset: the largest
	// offset of a draw, plus DrawStep. It is 0 if the function only redraws numbers
	// that another function draws (attribute redraw).
	Advance int64
}

// Generators returns the generators that f draws from, in the order of their
// first draw. Passes that drop draws may lower Advance, so call it on the function as it
// was before passes.
func (f *Func) Generators() []Generator {
	var out []Generator
	at := make(map[Value]int)
	for _, n := range f.Nodes {
		g, ok := n.Generator()
		if !ok {
			continue
		}
		i, seen := at[g]
		if !seen {
			i = len(out)
			at[g] = i
			out = append(out, Generator{Value: g})
		}
		if again, _ := n.Attr("redraw"); !again.Bool {
			out[i].Advance = max(out[i].Advance, n.Int("offset")+DrawStep)
		}
	}
	return out
}

// Generator returns the operand of n that is the state of a generator, and
// whether n draws random numbers at all.
func (n *Node) Generator() (Value, bool) {
	for i, o := range n.Op.Operands {
		if o.Generator && i < len(n.Args) {
			return n.Args[i], true
		}
	}
	return NoValue, false
}

// origin names a parameter or state in any function over the same declarations.
type origin struct {
	kind  ValueKind
	index int32
}

// draws has the draws of a function so far. It gives an offset to draws without one,
// and finds draws that break the rules.
type draws struct {
	next  map[origin]int64           // the offset of the next draw without one
	taken map[origin]map[int64]drawn // by offset
}

// drawn is a node that draws and how many elements.
type drawn struct {
	node     *Node
	elements dim.Dim
}

func originOf(f *Func, v Value) origin {
	info := &f.Values[f.Values[v].Base]
	return origin{info.Kind, info.Index}
}

// reserve excludes the offsets that f uses: draws without an offset get larger ones.
func (d *draws) reserve(f *Func) {
	for _, n := range f.Nodes {
		if g, ok := n.Generator(); ok {
			d.past(originOf(f, g), n.Int("offset"))
		}
	}
}

func (d *draws) past(g origin, offset int64) {
	if d.next == nil {
		d.next = make(map[origin]int64)
	}
	d.next[g] = max(d.next[g], offset+DrawStep)
}

// place returns n's attributes. If n is a draw without an offset and no redraw, it adds an offset
// above those of all earlier draws from the same generator.
func (d *draws) place(f *Func, n *Node, attrs []Attr) []Attr {
	g, ok := n.Generator()
	if !ok {
		return attrs
	}
	again := false
	for _, a := range attrs {
		if a.Name == "offset" {
			return attrs
		}
		again = again || a.Name == "redraw" && a.Bool
	}
	if again {
		return attrs // the offset is that of another draw
	}
	return append(attrs[:len(attrs):len(attrs)], IntAttr("offset", d.next[originOf(f, g)]))
}

// add records n, whose operands and attributes are in order and whose results are
// of the given types, and returns how it breaks the rules of drawing: the generator is a
// parameter or state that the function does not write, and each draw has an
// offset of its own, or has redraw=true and as many elements as an earlier draw at that offset.
// A redraw is not compared with later draws, or with draws of other functions.
func (d *draws) add(f *Func, n *Node, types []Type) []string {
	var errs []string
	for j, a := range n.Args {
		if mutOperand(n, j) && d.taken[originOf(f, a)] != nil {
			errs = append(errs, fmt.Sprintf("%s writes operand %d, the generator of an earlier draw", n.Name(), j))
		}
	}
	v, ok := n.Generator()
	if !ok {
		return errs
	}
	info := &f.Values[v]
	if info.Kind != ParamValue && info.Kind != StateValue || info.Mut {
		return append(errs, fmt.Sprintf("%s: the generator must be a parameter that is not mut, or a state that the function does not write", n.Name()))
	}
	g, offset, elements := originOf(f, v), n.Int("offset"), types[0].Elements()
	again, _ := n.Attr("redraw")
	first, taken := d.taken[g][offset]
	switch {
	case !taken:
	case !again.Bool:
		errs = append(errs, fmt.Sprintf("%s: offset %d is used by %s; leave the offset out, or write redraw=true to draw the same numbers again", n.Name(), offset, where(f, first.node)))
	case !elements.Equal(first.elements):
		errs = append(errs, fmt.Sprintf("%s: redraws %s elements at offset %d, where %s draws %s", n.Name(), elements, offset, where(f, first.node), first.elements))
	}
	if d.taken == nil {
		d.taken = make(map[origin]map[int64]drawn)
	}
	if d.taken[g] == nil {
		d.taken[g] = make(map[int64]drawn)
	}
	if !taken && !again.Bool {
		d.taken[g][offset] = drawn{n, elements}
	}
	d.past(g, offset)
	return errs
}

// where names a node of f in a message: its op, and its line or number.
func where(f *Func, n *Node) string {
	if n.Pos.IsValid() {
		return fmt.Sprintf("%s at %d:%d", n.Name(), n.Pos.Line, n.Pos.Col)
	}
	for i, o := range f.Nodes {
		if o == n {
			return fmt.Sprintf("%s, node %d", n.Name(), i)
		}
	}
	return n.Name()
}

// inferUniform is the shape rule of uniform.
func inferUniform(c *inferCtx) []Type {
	t, ok := c.source()
	if !ok || !c.wantDType(t.DType, "a float", isFloat) || !c.draw(0) {
		return nil
	}
	return []Type{t}
}

// inferDropout is the shape rule of dropout.
func inferDropout(c *inferCtx) []Type {
	if p := c.attr("p").Float; !(p >= 0 && p <= 1) {
		return c.fail("dropout: p = %v is no probability, want 0 to 1", p)
	}
	if !c.draw(1) {
		return nil
	}
	return sameFloat(c)
}

// draw checks operand i as a generator, and the offset.
func (c *inferCtx) draw(i int) bool {
	if !c.args[i].Equal(GeneratorType) {
		c.errf("%s: the generator must be %s, its seed and its offset, is %s", c.op.Name, GeneratorType, c.args[i])
		return false
	}
	offset := c.attr("offset").Dim
	if v, ok := offset.Const(); !ok || v < 0 || v > maxDrawOffset || v%DrawStep != 0 {
		c.errf("%s: offset must be a multiple of %d from 0 to 2^60, is %s", c.op.Name, DrawStep, offset)
		return false
	}
	return true
}

// inferPhilox is the shape rule of philox.
func inferPhilox(c *inferCtx) []Type {
	t, ok := c.joined(0, "i64", func(dt dtype.DType) bool { return dt == dtype.I64 })
	if !ok {
		return nil
	}
	return []Type{{dtype.F32, t.Shape}}
}
