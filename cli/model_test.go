package cli

import "testing"

// TestOpenWithoutFlags: a caller that is no command may open a model without flags. An exported
// program then opens without limits of its dynamic dimensions.
func TestOpenWithoutFlags(t *testing.T) {
	if _, err := (&app{}).open("../testdata/pt2/mlp/model.pt2", &modelFlags{}); err != nil {
		t.Error(err)
	}
}
