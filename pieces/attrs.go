package pieces

import (
	"pwc/ir"
	"pwc/program"
)

// OpAttrs converts a node's attributes to what extern ops get.
func OpAttrs(attrs []ir.Attr) []program.Attr {
	kinds := map[ir.AttrKind]program.AttrKind{ir.AttrDim: program.AttrDim, ir.AttrFloat: program.AttrFloat, ir.AttrBool: program.AttrBool,
		ir.AttrEnum: program.AttrString, ir.AttrString: program.AttrString, ir.AttrDims: program.AttrDims, ir.AttrFloats: program.AttrFloats}
	out := make([]program.Attr, len(attrs))
	for i, a := range attrs {
		out[i] = program.Attr{Name: a.Name, Kind: kinds[a.Kind], Dim: a.Dim, Float: a.Float, Bool: a.Bool, Str: a.Str, Dims: a.Dims, Floats: a.Floats}
	}
	return out
}
