// Package opattr converts attributes of IR nodes to attributes of programs and extern ops.
package opattr

import (
	"pwc/ir"
	"pwc/program"
)

// kinds maps kinds of IR attributes to those of programs, which have no enumerations: the
// name of a value becomes a string.
var kinds = [...]program.AttrKind{
	ir.AttrDim:    program.AttrDim,
	ir.AttrDims:   program.AttrDims,
	ir.AttrFloat:  program.AttrFloat,
	ir.AttrFloats: program.AttrFloats,
	ir.AttrBool:   program.AttrBool,
	ir.AttrEnum:   program.AttrString,
	ir.AttrString: program.AttrString,
}

// Of returns the attributes of a node as attributes of a program, in the same order.
func Of(attrs []ir.Attr) []program.Attr {
	out := make([]program.Attr, len(attrs))
	for i, a := range attrs {
		out[i] = program.Attr{Name: a.Name, Kind: kinds[a.Kind], Dim: a.Dim, Float: a.Float, Bool: a.Bool, Str: a.Str, Dims: a.Dims, Floats: a.Floats}
	}
	return out
}
