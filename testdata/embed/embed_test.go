package embed_test

import (
	"context"
	"os"
	"slices"
	"testing"

	"example.com/embed"
)

func TestRun(t *testing.T) {
	text, err := os.ReadFile("../nineteen.ir")
	if err != nil {
		t.Fatal(err)
	}
	y, stats, err := embed.Run(context.Background(), text, []int64{1, 2}, []float32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(y, []float32{28, 37}) {
		t.Errorf("f([1 2]) = %v, want [28 37]", y)
	}
	if stats.PiecewiseGraphsSeen != 5 || stats.CapturableGraphsSeen != 3 || stats.GraphsCaptured != 6 || stats.OpCalls["silly::attention"] != 2 {
		t.Errorf("%+v", stats)
	}
}
