package cli

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// An empty text is an empty list for every flag that takes a list, except --betas. An empty
// --capture-sizes, which also takes names, captures nothing.
func TestEmptyLists(t *testing.T) {
	lists := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !slices.Contains([]string{"stringSlice", "sizes", "ids", "assignments", "biases"}, f.Value.Type()) {
				return
			}
			lists++
			for range 2 { // a repeated flag too
				if err := c.Flags().Set(f.Name, ""); err != nil {
					t.Errorf("%s --%s=: %v", c.CommandPath(), f.Name, err)
				}
			}
			if s := f.Value.String(); s != "" && s != "[]" {
				t.Errorf("%s --%s= is %q", c.CommandPath(), f.Name, s)
			}
		})
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit((&app{}).root())
	if lists < 20 {
		t.Errorf("%d flags take lists, want at least 20", lists)
	}
	f := buildFlags{captureSizes: ""}
	if got, err := f.sizes(); err != nil || got == nil || len(got) > 0 {
		t.Errorf("--capture-sizes=: %v, %v; want an empty list that is not nil", got, err)
	}
}
