package ir_test

import (
	"slices"
	"testing"

	"pwc/ir"
)

// Declarations about the checkpoint and about serving keep their values and their order.
func TestServingDeclarations(t *testing.T) {
	const text = `pwc 1
module "m" {
  weights from "a/"
  weights strict
  unread "h.*.bias"
  unread "head" = "table"
  context 2147483647
  eos [0, 2147483647]
}
`
	m := mustParse(t, text)
	if !m.Strict || m.Context != ir.MaxContext || !slices.Equal(m.EOS, []int32{0, ir.MaxContext}) {
		t.Errorf("strict %v, context %d, eos %v", m.Strict, m.Context, m.EOS)
	}
	if len(m.Unread) != 2 || m.Unread[0].Equal != "" || m.Unread[1].Name != "head" || m.Unread[1].Equal != "table" {
		t.Errorf("unread %+v", m.Unread)
	}
	if got := ir.Print(m); got != text {
		t.Errorf("printed:\n%s", got)
	}
}

func TestUnreadMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"h.*.bias", "h.0.bias", true},
		{"h.*.bias", "h.11.bias", true},
		{"h.*.bias", "h.0.x.bias", false},
		{"h.*.bias", "h.bias", false},
		{"h.*.bias", "h.0.bias.x", false},
		{"h.*", "h.0", true},
		{"head", "head", true},
		{"head", "header", false},
		{"h*", "head", false}, // * inside a part is itself
		{"h*", "h*", true},
		{"h.**", "h.0", true},
		{"h.**", "h.0.bias.x", true},
		{"h.*.x.**", "h.0.x.y.z", true},
		{"h.*.x.**", "h.0.y.x.z", false},
		{"h.**", "h", false},
		{"h.**", "head.0", false},
		{"**", "h.0", true},
		{"h.**.x", "h.0.x", false}, // ** elsewhere is itself
	} {
		if got := (&ir.Unread{Name: c.pattern}).Matches(c.name); got != c.want {
			t.Errorf("%q matches %q: %v", c.pattern, c.name, got)
		}
	}
}
