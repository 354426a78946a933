package padding

import (
	"testing"

	"pwc/ir"
)

// TestEveryRuleHasAProof checks that the padding rule of each op of the table has a proof.
func TestEveryRuleHasAProof(t *testing.T) {
	for _, o := range ir.Ops() {
		if int(o.Padding) >= len(rules) || rules[o.Padding] == nil {
			t.Errorf("%s: padding rule %d has no proof", o.Name, o.Padding)
		}
	}
}
