package compile

import (
	"testing"

	"pwc/ir"
)

// TestEveryOpIsLowered keeps the op table and the compiler together: each way to lower an
// op has a rule, and each composite op has primitive ones.
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
