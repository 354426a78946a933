package ir

import "fmt"

// Pos is a place in a text: 1-based line and column (in bytes). The zero Pos
// means "not from a text".
type Pos struct{ Line, Col int32 }

// IsValid reports whether the position comes from a text.
func (p Pos) IsValid() bool { return p.Line > 0 }

// Origin tells where a node comes from. It is part of no hash and of no comparison: two
// functions that differ only in origins compile to the same program. Every pass keeps it.
// A node that replaces others has the origin of one of them (see [Rewriter]), so that an
// error, a listing or a profile names a line of the source.
type Origin struct {
	File string // name of the text; empty: the module was built, not parsed
	Pos  Pos    // line and column in the text
	Loc  string // place in the model: "layers.0.mlp"

	// ID distinguishes nodes with the same position, or without one: 1 + the index of the
	// node in the function that a compilation starts from; 0 outside of a compilation.
	ID int32
}

// At returns "file:line:col (loc)", or the parts of it that are known.
func (o Origin) At() string {
	var s string
	if o.Pos.IsValid() {
		s = fmt.Sprintf("%d:%d", o.Pos.Line, o.Pos.Col)
		if o.File != "" {
			s = o.File + ":" + s
		}
	}
	switch {
	case o.Loc == "":
		return s
	case s == "":
		return o.Loc
	}
	return s + " (" + o.Loc + ")"
}
