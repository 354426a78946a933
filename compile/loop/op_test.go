package loop

import (
	"testing"

	"pwc/ir"
)

// TestOps: every pointwise op, reduction and scan of the op table is an op of kernels with the
// same facts, except for ops that others replace; names are unique.
func TestOps(t *testing.T) {
	have := make(map[Op]bool)
	names := make(map[string]bool)
	for _, op := range Ops() {
		have[op] = true
		if op.String() == "no op" || names[op.String()] {
			t.Errorf("op %d is named %q, want a unique name", op, op)
		}
		names[op.String()] = true
	}
	for _, o := range ir.Ops() {
		op := Op(o.ID)
		element := o.Class == ir.Pointwise || o.Class == ir.Scan || o.Reduces
		if o.ID == ir.OpCompare || o.ID == ir.OpClamp || o.ID == ir.OpMean {
			element = false
		}
		if have[op] != element {
			t.Errorf("%s: in kernels %v, want %v", o.Name, have[op], element)
		}
		if element && (op.String() != o.Name || op.Operands() != len(o.Operands) || op.Exact() != o.Exact || op.Reduces() != o.Reduces || op.Cost() != o.Cost) {
			t.Errorf("%s has other facts in kernels", o.Name)
		}
	}
	for _, dir := range ir.OpCompare.Op().Attrs[0].Enum {
		if op, ok := Comparison(dir); !ok || !have[op] || op.String() != dir {
			t.Errorf("compare %s is %s", dir, op)
		}
	}
	if _, ok := Comparison("load"); ok {
		t.Error("load is a comparison")
	}
	if op := Op(255); op.String() != "no op" || op.Reduces() || op.Exact() || op.Expensive() {
		t.Errorf("op 255, %s, has facts", op)
	}
}
