package ir

import (
	"math"
	"slices"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// AttrKind is the kind of an attribute's value.
type AttrKind uint8

const (
	AttrDim    AttrKind = iota // a dim expression; integers are constant dims
	AttrFloat                  // a float64, compared and hashed by its bits
	AttrBool                   // true or false
	AttrEnum                   // a bare identifier; in a call no symbol has this name
	AttrString                 // a quoted string (extern ops only)
	AttrDims                   // a list of dim expressions
	AttrFloats                 // a list of floats
)

// Attr is one "name=value" of a node or of a weight expression. Kind tells which
// field holds the value.
type Attr struct {
	Name   string
	Kind   AttrKind
	Dim    dim.Dim
	Float  float64
	Bool   bool
	Str    string // AttrEnum, AttrString
	Dims   []dim.Dim
	Floats []float64
	Pos    Pos
}

// IntAttr returns an integer attribute.
func IntAttr(name string, v int64) Attr { return DimAttr(name, dim.Const(v)) }

// DimAttr returns an attribute that is one dim expression.
func DimAttr(name string, d dim.Dim) Attr { return Attr{Name: name, Kind: AttrDim, Dim: d} }

// FloatAttr returns a float attribute.
func FloatAttr(name string, v float64) Attr { return Attr{Name: name, Kind: AttrFloat, Float: v} }

// BoolAttr returns a boolean attribute.
func BoolAttr(name string, v bool) Attr { return Attr{Name: name, Kind: AttrBool, Bool: v} }

// EnumAttr returns an attribute that is a bare identifier.
func EnumAttr(name, v string) Attr { return Attr{Name: name, Kind: AttrEnum, Str: v} }

// DTypeAttr returns the attribute dtype=dt.
func DTypeAttr(dt dtype.DType) Attr { return EnumAttr("dtype", dt.String()) }

// StringAttr returns a string attribute; only extern ops take them.
func StringAttr(name, v string) Attr { return Attr{Name: name, Kind: AttrString, Str: v} }

// DimsAttr returns an attribute that is a list of dim expressions.
func DimsAttr(name string, v ...dim.Dim) Attr { return Attr{Name: name, Kind: AttrDims, Dims: v} }

// IntsAttr returns an attribute that is a list of integers.
func IntsAttr(name string, v ...int64) Attr {
	d := make([]dim.Dim, len(v))
	for i, x := range v {
		d[i] = dim.Const(x)
	}
	return DimsAttr(name, d...)
}

// FloatsAttr returns an attribute that is a list of floats.
func FloatsAttr(name string, v ...float64) Attr {
	return Attr{Name: name, Kind: AttrFloats, Floats: v}
}

// Equal reports whether two attributes have the same name and value; floats
// are compared by their bits.
func (a Attr) Equal(b Attr) bool {
	return a.Name == b.Name && a.Kind == b.Kind && a.Dim.Equal(b.Dim) && math.Float64bits(a.Float) == math.Float64bits(b.Float) &&
		a.Bool == b.Bool && a.Str == b.Str && slices.EqualFunc(a.Dims, b.Dims, dim.Dim.Equal) &&
		slices.EqualFunc(a.Floats, b.Floats, func(x, y float64) bool { return math.Float64bits(x) == math.Float64bits(y) })
}

// Attr returns the node's attribute of that name, with the default of the op
// table where the node does not set it. The second result is false when there
// is neither.
func (n *Node) Attr(name string) (Attr, bool) { return findAttr(n.Op, n.Attrs, name) }

func findAttr(op *Op, attrs []Attr, name string) (Attr, bool) {
	for _, a := range attrs {
		if a.Name == name {
			return a, true
		}
	}
	if op != nil {
		for _, s := range op.Attrs {
			if s.Name == name && s.Default != nil {
				return *s.Default, true
			}
		}
	}
	return Attr{}, false
}

// Int returns the integer attribute of that name, or its default, or 0 if there is neither. It
// is for constants: of a dim expression with symbols it returns only the constant term.
func (n *Node) Int(name string) int64 {
	a, _ := n.Attr(name)
	v, _ := a.Dim.Const()
	return v
}

// Ints returns the attribute of that name as a list of integers, each a constant as for Int.
func (n *Node) Ints(name string) []int64 {
	a, _ := n.Attr(name)
	out := make([]int64, len(a.Dims))
	for i, d := range a.Dims {
		out[i], _ = d.Const()
	}
	return out
}

// Axis returns the integer attribute of that name as an index into rank axes;
// negative values count from the end.
func (n *Node) Axis(name string, rank int) int {
	v := n.Int(name)
	if v < 0 {
		v += int64(rank)
	}
	return int(v)
}
