// Package opattr converts attributes of nodes to those that programs store and ops get.
package opattr

import (
	"pwc/ir"
	"pwc/program"
)

// kinds are the kinds of a program's attributes by those of the IR. Programs have no
// enumerations: a name is a string.
var kinds = [...]program.AttrKind{
	ir.AttrDim:    program.AttrDim,
	ir.AttrDims:   program.AttrDims,
	ir.AttrFloat:  program.AttrFloat,
	ir.AttrFloats: program.AttrFloats,
	ir.AttrBool:   program.AttrBool,
	ir.AttrEnum:   program.AttrString,
	ir.AttrString: program.AttrString,
}

// Of returns the attributes of a call as programs store them and ops get them, in
// their order.
func Of(attrs []ir.Attr) []program.Attr {
	out := make([]program.Attr, len(attrs))
	for i, a := range attrs {
		out[i] = program.Attr{Name: a.Name, Kind: kinds[a.Kind], Dim: a.Dim, Float: a.Float, Bool: a.Bool, Str: a.Str, Dims: a.Dims, Floats: a.Floats}
	}
	return out
}
