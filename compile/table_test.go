package compile

import (
	"testing"

	"pwc/ir"
)

// TestEveryOpIsLowered checks that the lowering of each op of the table has a rule, and that
// exactly the composite ops have a lowering to primitive ops.
func TestEveryOpIsLowered(t *testing.T) {
	for _, o := range ir.Ops() {
		if int(o.Lowering) >= len(lowerings) || lowerings[o.Lowering] == nil {
			t.Errorf("%s: lowering %d has no rule", o.Name, o.Lowering)
		}
		if composite := o.Lowering == ir.LowerComposite; composite != (composites[o.ID] != nil) {
			t.Errorf("%s: composite %v, primitive ops %v", o.Name, composite, composites[o.ID] != nil)
		}
	}
}
