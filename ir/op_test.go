package ir_test

import (
	"testing"

	"pwc/ir"
)

// TestOpFacts: IDs number the entries of the op table from 1, and the facts of an entry are
// consistent.
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
			t.Errorf("%s has the cost %d, want at least 1", o.Name, o.Cost)
		case writes != (o.Effects&ir.Write != 0):
			t.Errorf("%s: Mut of an operand is %v, and Effects are %d", o.Name, writes, o.Effects)
		case o.Reduces != (o.Lowering == ir.LowerReduction):
			t.Errorf("%s: Reduces is %v, and Lowering is %d", o.Name, o.Reduces, o.Lowering)
		case o.Selects && !o.Exact && o.ID != ir.OpClamp: // a clamp is lowered to two exact ops
			t.Errorf("%s selects among its operands and is not exact", o.Name)
		case o.Class == ir.Pointwise && o.Padding != ir.PadKeep:
			t.Errorf("%s is pointwise and has padding rule %d, want PadKeep", o.Name, o.Padding)
		}
	}
}

// TestOpValues compares facts of some ops with values written by hand.
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
