package ir

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// checkAttrs checks attributes against the op's table entry and returns them
// in the entry's order, converted to its kinds, without those that equal the
// default.
func checkAttrs(op *Op, attrs []Attr) ([]Attr, []string) {
	var errs []string
	for i, a := range attrs {
		known := slices.ContainsFunc(op.Attrs, func(s AttrSpec) bool { return s.Name == a.Name })
		twice := slices.ContainsFunc(attrs[:i], func(b Attr) bool { return b.Name == a.Name })
		switch {
		case !known:
			errs = append(errs, fmt.Sprintf("%s has no attribute %s", op.Name, a.Name))
		case twice:
			errs = append(errs, fmt.Sprintf("%s: attribute %s is given twice", op.Name, a.Name))
		}
	}
	var out []Attr
	for _, s := range op.Attrs {
		i := slices.IndexFunc(attrs, func(a Attr) bool { return a.Name == s.Name })
		if i < 0 {
			if s.Default == nil {
				errs = append(errs, fmt.Sprintf("%s needs attribute %s (%s)", op.Name, s.Name, s.Doc))
			}
			continue
		}
		a, err := convertAttr(attrs[i], s)
		if err != "" {
			errs = append(errs, fmt.Sprintf("%s: attribute %s: %s", op.Name, s.Name, err))
			continue
		}
		if s.Default == nil || !a.Equal(*s.Default) {
			out = append(out, a)
		}
	}
	return out, errs
}

var attrKindNames = [...]string{"a dim expression", "a float", "true or false", "a name", "a string", "a list of dim expressions", "a list of floats"}

// String names the kind as an error message does.
func (k AttrKind) String() string {
	if int(k) < len(attrKindNames) {
		return attrKindNames[k]
	}
	return fmt.Sprintf("kind%d", uint8(k))
}

func convertAttr(a Attr, s AttrSpec) (Attr, string) {
	if a.Kind != s.Kind {
		switch {
		case s.Kind == AttrFloat && a.Kind == AttrDim:
			if v, ok := a.Dim.Const(); ok {
				return Attr{Name: a.Name, Kind: AttrFloat, Float: float64(v), Pos: a.Pos}, ""
			}
		case s.Kind == AttrFloats && a.Kind == AttrDims:
			out := Attr{Name: a.Name, Kind: AttrFloats, Pos: a.Pos, Floats: make([]float64, 0, len(a.Dims))}
			for _, d := range a.Dims {
				if v, ok := d.Const(); ok {
					out.Floats = append(out.Floats, float64(v))
				}
			}
			if len(out.Floats) == len(a.Dims) {
				return out, ""
			}
		}
		return a, fmt.Sprintf("wants %s, has %s", s.Kind, a.Kind)
	}
	if s.Kind == AttrEnum && !s.Group {
		if s.Enum == nil {
			if _, ok := dtype.Parse(a.Str); !ok {
				return a, fmt.Sprintf("%q is no dtype", a.Str)
			}
		} else if !slices.Contains(s.Enum, a.Str) {
			return a, fmt.Sprintf("%q is not one of %s", a.Str, strings.Join(s.Enum, ", "))
		}
	}
	return oneNaN(a), ""
}

// oneNaN gives all NaNs of an attribute the same bits, because the text has only one NaN.
func oneNaN(a Attr) Attr {
	isNaN := func(v float64) bool { return v != v }
	if isNaN(a.Float) {
		a.Float = math.NaN()
	}
	if slices.ContainsFunc(a.Floats, isNaN) {
		a.Floats = slices.Clone(a.Floats)
		for i, v := range a.Floats {
			if isNaN(v) {
				a.Floats[i] = math.NaN()
			}
		}
	}
	return a
}

// scope gives a shape rule the declarations of the module that it may use.
type scope struct {
	bounds func(string) (dim.Interval, bool)
	group  func(string) *Group // nil for an unknown name
}

// inferNode checks operands and attributes of n, puts the attributes into
// canonical form, gives literals their dtype, and returns the result types.
// results are the result types that a call states; other ops ignore them.
func inferNode(f *Func, n *Node, results []Type, in scope) ([]Type, []string) {
	bounds := in.bounds
	if n.Op.Class == Call {
		attrs, errs := callAttrs(n, bounds)
		n.Attrs = attrs
		return results, append(errs, callErrors(f, n, results, bounds)...)
	}
	op := n.Op
	lo, hi := operandCount(op)
	if len(n.Args) < lo || len(n.Args) > hi {
		return nil, []string{fmt.Sprintf("%s takes %s, has %d", op.Name, countText(lo, hi), len(n.Args))}
	}
	attrs, errs := checkAttrs(op, n.Attrs)
	if len(errs) > 0 {
		return nil, errs
	}
	n.Attrs = attrs
	for _, a := range attrs {
		if msg := attrDimError(op.Name, a, bounds); msg != "" {
			return nil, []string{msg}
		}
	}
	c := &inferCtx{op: op, attrs: attrs, scope: in, args: make([]Type, len(n.Args)), lits: make([]*Literal, len(n.Args))}
	if errs := c.operands(f, n); len(errs) > 0 {
		return nil, errs
	}
	types := op.infer(c)
	if len(c.errs) == 0 {
		for _, t := range types {
			for _, d := range t.Shape {
				if err := d.Err(); err != nil {
					return nil, []string{fmt.Sprintf("%s: extent: %v", op.Name, err)}
				}
			}
			if t.Rank() > MaxRank {
				return nil, []string{fmt.Sprintf("%s: the result has %d axes, want at most %d", op.Name, t.Rank(), MaxRank)}
			}
			if _, ok := t.Elements().Bounds(bounds); !ok {
				return nil, []string{fmt.Sprintf("%s: %s has more elements than an int64 can count", op.Name, t)}
			}
		}
	}
	return types, c.errs
}

// operands fills in the operand types. A literal takes the dtype of attribute dtype, or else
// that of the first tensor operand (except where's condition).
func (c *inferCtx) operands(f *Func, n *Node) []string {
	dt := dtype.Invalid
	if a, ok := findAttr(c.op, c.attrs, "dtype"); ok {
		dt, _ = dtype.Parse(a.Str)
	}
	for i, v := range n.Args {
		info := &f.Values[v]
		if info.Kind == LiteralValue {
			c.lits[i] = &info.Literal
			continue
		}
		c.args[i] = info.Type
		if info.Type.HasUnknown() {
			return []string{fmt.Sprintf("%s: operand %d has an unknown extent", c.op.Name, i)}
		}
		if dt == dtype.Invalid && !(c.op.ID == OpWhere && i == 0) {
			dt = info.Type.DType
		}
	}
	for i, v := range n.Args {
		l := c.lits[i]
		if l == nil {
			continue
		}
		spec := c.op.Operands[min(i, len(c.op.Operands)-1)]
		switch {
		case !spec.Literal:
			return []string{fmt.Sprintf("%s: operand %s cannot be a literal", c.op.Name, spec.Name)}
		case dt == dtype.Invalid && c.op.ID == OpWhere:
			return []string{"where: a or b must be a tensor: its dtype is that of the literal"}
		case dt == dtype.Invalid:
			return []string{fmt.Sprintf("%s: at least one operand must be a tensor", c.op.Name)}
		case !dt.Float() && !l.IsInt:
			return []string{fmt.Sprintf("%s: a float literal among %s operands", c.op.Name, dt)}
		case !dt.Float() && dt.Wrap(l.Int) != l.Int:
			return []string{fmt.Sprintf("%s: %d is not a value of %s", c.op.Name, l.Int, dt)}
		}
		c.args[i] = Type{DType: dt}
		if f.Values[v].Type.DType != dt { // verifying a finished function must not write it: it may be shared
			f.Values[v].Type = c.args[i]
		}
	}
	return nil
}

func operandCount(op *Op) (lo, hi int) {
	hi = len(op.Operands)
	for _, o := range op.Operands {
		if !o.Optional {
			lo++
		}
		if o.Variadic {
			hi = 1 << 30
		}
	}
	return lo, hi
}

func countText(lo, hi int) string {
	switch {
	case hi == 1<<30:
		return fmt.Sprintf("%d or more operands", lo)
	case lo == 1 && hi == 1:
		return "1 operand"
	case lo == hi:
		return fmt.Sprintf("%d operands", lo)
	}
	return fmt.Sprintf("%d to %d operands", lo, hi)
}

func callErrors(f *Func, n *Node, results []Type, bounds func(string) (dim.Interval, bool)) []string {
	e := n.Extern
	var errs []string
	if len(n.Args) != len(e.Mut) {
		errs = append(errs, fmt.Sprintf("%s takes %d operands, has %d", e.Name, len(e.Mut), len(n.Args)))
	}
	if len(results) != e.Results {
		errs = append(errs, fmt.Sprintf("%s returns %d tensors, the call has %d result types", e.Name, e.Results, len(results)))
	}
	for i, v := range n.Args {
		if f.Values[v].Kind == LiteralValue {
			errs = append(errs, fmt.Sprintf("%s: operand %d is a literal; calls take tensors, and scalars as attributes", e.Name, i))
		} else if f.Values[v].Type.HasUnknown() {
			errs = append(errs, fmt.Sprintf("%s: operand %d has an unknown extent", e.Name, i))
		}
	}
	for _, t := range results {
		if msg := callResultError(t, bounds); msg != "" {
			errs = append(errs, fmt.Sprintf("%s: %s", e.Name, msg))
		}
	}
	return errs
}

// callResultError checks a result type that a call states.
func callResultError(t Type, bounds func(string) (dim.Interval, bool)) string {
	if !t.DType.Valid() {
		return "a result has no dtype"
	}
	if t.Rank() > MaxRank {
		return fmt.Sprintf("a result has %d axes, want at most %d", t.Rank(), MaxRank)
	}
	unknown := false
	for _, d := range t.Shape {
		if isUnknown(d) {
			unknown = true
			continue
		}
		if err := d.Err(); err != nil {
			return fmt.Sprintf("extent: %v", err)
		}
		for _, s := range d.Symbols() {
			if s == Unknown {
				return "an unknown extent cannot be part of an expression"
			}
			if _, ok := bounds(s); !ok {
				return fmt.Sprintf("symbol %s is not declared", s)
			}
		}
		if iv, ok := d.Bounds(bounds); !ok || iv.Lo < 0 {
			return fmt.Sprintf("extent %s is not known to be at least 0", d)
		}
	}
	if _, ok := t.Elements().Bounds(bounds); !ok && !unknown {
		return fmt.Sprintf("%s has more elements than an int64 can count", t)
	}
	return ""
}

// attrDimError checks the dims of an attribute.
func attrDimError(op string, a Attr, bounds func(string) (dim.Interval, bool)) string {
	for _, d := range append(slices.Clip(a.Dims), a.Dim) {
		if err := d.Err(); err != nil {
			return fmt.Sprintf("%s: attribute %s: %v", op, a.Name, err)
		}
		for _, s := range d.Symbols() {
			if _, ok := bounds(s); !ok {
				return fmt.Sprintf("%s: attribute %s: symbol %s is not declared", op, a.Name, s)
			}
		}
	}
	return ""
}

// callAttrs checks the attributes of a call, for which there is no table entry. It
// returns them as they are after printing and parsing.
func callAttrs(n *Node, bounds func(string) (dim.Interval, bool)) ([]Attr, []string) {
	var errs []string
	attrs := slices.Clone(n.Attrs)
	for i, a := range attrs {
		report := func(format string, args ...any) {
			errs = append(errs, n.Name()+": "+fmt.Sprintf(format, args...))
		}
		switch {
		case slices.ContainsFunc(attrs[:i], func(b Attr) bool { return b.Name == a.Name }):
			report("attribute %s is given twice", a.Name)
		case !isWord(a.Name):
			report("%q is no name for an attribute", a.Name)
		case a.Kind == AttrEnum && !isWord(a.Str):
			report("attribute %s: %q is no bare name", a.Name, a.Str)
		}
		if a.Kind == AttrEnum {
			if _, ok := bounds(a.Str); ok {
				report("attribute %s: %s is a symbol, not a name", a.Name, a.Str)
			}
		}
		if msg := attrDimError(n.Name(), a, bounds); msg != "" {
			errs = append(errs, msg)
		}
		if a.Kind == AttrFloats && len(a.Floats) == 0 {
			a = Attr{Name: a.Name, Kind: AttrDims, Pos: a.Pos} // "[]"
		}
		attrs[i] = oneNaN(a)
	}
	return attrs, errs
}
