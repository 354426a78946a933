package ir_test

import (
	"testing"

	"pwc/ir"
)

// TestOpFacts: the ID of each table entry is its index, and its facts are consistent.
func TestOpFacts(t *testing.T) {
	if got := ir.OpID(0).Op(); got != nil {
		t.Errorf("the zero ID is %s", got.Name)
	}
	if len(ir.Ops()) != ir.NumOps-1 || ir.OpID(ir.NumOps).Op() != nil || ir.OpID(ir.NumOps).String() != "no op" {
		t.Errorf("%d ops and %d IDs", len(ir.Ops()), ir.NumOps-1)
	}
	for i, o := range ir.Ops() {
		if o == nil {
			t.Fatalf("ID %d has no row", i+1)
		}
		if o.ID != ir.OpID(i+1) || o.ID.Op() != o || o.ID.String() != o.Name || ir.LookupOp(o.Name) != o {
			t.Errorf("%s: ID %d at place %d", o.Name, o.ID, i)
		}
		lowering := map[ir.Class]ir.Lowering{ir.Pointwise: ir.LowerElementwise, ir.Reduction: ir.LowerReduction, ir.Composite: ir.LowerComposite,
			ir.Contract: ir.LowerContract, ir.Attention: ir.LowerAttention, ir.Scan: ir.LowerScan, ir.Call: ir.LowerCall}
		if want, ok := lowering[o.Class]; ok && o.Lowering != want {
			t.Errorf("%s is of class %d and lowered by way %d", o.Name, o.Class, o.Lowering)
		}
		writes := false
		for _, x := range o.Operands {
			writes = writes || x.Mut
		}
		switch {
		case o.Cost < 1:
			t.Errorf("%s costs nothing", o.Name)
		case writes != (o.Effects&ir.Write != 0):
			t.Errorf("%s: operands and effects say different things of writes", o.Name)
		case o.Reduces != (o.Lowering == ir.LowerReduction):
			t.Errorf("%s: it reduces, or is lowered to a reduction", o.Name)
		case o.Selects && !o.Exact && o.ID != ir.OpClamp: // a clamp is lowered to two ops that are
			t.Errorf("%s selects among its operands and is not exact", o.Name)
		case o.Class == ir.Pointwise && o.Padding != ir.PadKeep:
			t.Errorf("%s is pointwise, and padding has a rule of its own for it", o.Name)
		}
	}
}

// TestOpValues pins facts by hand, of ops where they matter most.
func TestOpValues(t *testing.T) {
	for id, want := range map[ir.OpID][3]bool{ // exact, expensive, reduces
		ir.OpAdd: {false, false, false}, ir.OpNeg: {true, false, false}, ir.OpExp: {false, true, false}, ir.OpRem: {false, true, false},
		ir.OpMax: {true, false, true}, ir.OpSum: {false, false, true}, ir.OpArgMax: {false, false, true}, ir.OpWhere: {true, false, false},
		ir.OpUniform: {false, true, false}, ir.OpSqrt: {false, false, false},
	} {
		o := id.Op()
		if got := [3]bool{o.Exact, o.Cost > 1, o.Reduces}; got != want {
			t.Errorf("%s: exact, expensive, reduces are %v, want %v", id, got, want)
		}
	}
}
