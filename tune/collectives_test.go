package tune_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pwc/cache"
	"pwc/tune"
)

// TestCollectives: a record is found only for its device and ranks, a later one replaces it, and an invalid one is not
// found.
func TestCollectives(t *testing.T) {
	s := cache.New(cache.Options{Dir: t.TempDir()})
	want := tune.Collectives{Device: "NVIDIA H100", Ranks: 2, Version: 22809, NCCLBytes: 64 << 20, Peer: 230 * time.Microsecond, Best: 210 * time.Microsecond}
	for _, c := range []tune.Collectives{{Device: "NVIDIA H100", Ranks: 2, Version: 22300, Peer: 1, Best: 1}, want} {
		if err := tune.PutCollectives(t.Context(), s, c); err != nil {
			t.Fatal(err)
		}
	}
	got, ok := tune.LookupCollectives(s, "NVIDIA H100", 2)
	if d := cmp.Diff(want, got); !ok || d != "" {
		t.Errorf("found %v: %s", ok, d)
	}
	for _, other := range []struct {
		device string
		ranks  int
	}{{"NVIDIA H100", 4}, {"NVIDIA H200", 2}} {
		if c, ok := tune.LookupCollectives(s, other.device, other.ranks); ok {
			t.Errorf("%v has %+v", other, c)
		}
	}
	for _, choice := range []string{`{"nccl_bytes":-1}`, `{"NCCL_bytes":1}`} {
		bad := cache.Tuning{TuningKey: cache.TuningKey{Device: "NVIDIA H200", Library: "nccl", Problem: "collectives of 2 ranks"}, Choice: choice}
		if err := s.PutTuning(t.Context(), bad); err != nil {
			t.Fatal(err)
		}
		if c, ok := tune.LookupCollectives(s, "NVIDIA H200", 2); ok {
			t.Errorf("%s is %+v", choice, c)
		}
	}
}
