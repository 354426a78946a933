package opattr

import (
	"testing"

	"pwc/ir"
	"pwc/ir/dim"
)

// TestOf: every kind keeps its name and value. Programs encode only the field of the kind, so
// with a wrong kind the value would be lost.
func TestOf(t *testing.T) {
	n := dim.Sym("N")
	in := []ir.Attr{
		ir.DimAttr("dim", n), ir.FloatAttr("float", 0.5), ir.BoolAttr("bool", true), ir.EnumAttr("enum", "left"), ir.StringAttr("string", "a b"),
		{Name: "dims", Kind: ir.AttrDims, Dims: []dim.Dim{n, dim.Const(3)}}, {Name: "floats", Kind: ir.AttrFloats, Floats: []float64{1, 2}},
	}
	want := []string{"dim=N", "float=0.5", "bool=true", `enum="left"`, `string="a b"`, "dims=[N, 3]", "floats=[1, 2]"}
	out := Of(in)
	if len(out) != len(want) {
		t.Fatalf("%d attributes of %d", len(out), len(in))
	}
	for i, a := range out {
		if a.String() != want[i] {
			t.Errorf("%s, want %s", a, want[i])
		}
	}
}
