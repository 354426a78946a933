package tune

import (
	"testing"

	"pwc/program"
)

// TestMeetsRanks: collective routines and kernels that compute an all_reduce themselves wait for other ranks.
func TestMeetsRanks(t *testing.T) {
	for _, c := range []struct {
		step program.Step
		want bool
	}{
		{program.Step{Kind: program.StepLibrary, Extern: "collective::all_reduce"}, true},
		{program.Step{Kind: program.StepLibrary, Extern: program.CollectiveWait}, true},
		{program.Step{Kind: program.StepKernel, Launch: program.Launch{Attrs: []program.Attr{{Name: program.LaunchPeers, Kind: program.AttrString, Str: "tp"}}}}, true},
		{program.Step{Kind: program.StepKernel}, false},
		{program.Step{Kind: program.StepLibrary, Extern: "cublaslt.matmul"}, false},
	} {
		if got := meetsRanks(&c.step); got != c.want {
			t.Errorf("%+v: %v, want %v", c.step, got, c.want)
		}
	}
}
