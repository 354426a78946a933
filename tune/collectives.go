package tune

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"pwc/cache"
)

// Collectives is from which size on NCCL computes the collectives of a group of one kind of GPU: a record of a
// measurement with one version of NCCL.
type Collectives struct {
	Device string // the GPU's name, "NVIDIA H100 80GB HBM3"
	Ranks  int

	Version   int   // of NCCL, 22809 for 2.28.9
	NCCLBytes int64 // of a call's part of one rank; 0: NCCL was faster at no size

	Peer time.Duration // of the largest all_reduce that was measured, over peer memory
	Best time.Duration // of the same, by the faster of both ways
}

// collectivesChoice is what a record keeps of it.
type collectivesChoice struct {
	Version   int   `json:"version"`
	NCCLBytes int64 `json:"nccl_bytes"`
}

// collectivesKey has no version: that of the machine is known only when NCCL is opened, which takes time that processes
// without large collectives do not spend.
func collectivesKey(device string, ranks int) cache.TuningKey {
	return cache.TuningKey{Device: device, Library: "nccl", Problem: fmt.Sprintf("collectives of %d ranks", ranks)}
}

// PutCollectives keeps a record in place of an older one of the same device and ranks. The error is that of
// cache.Store.PutTuning.
func PutCollectives(ctx context.Context, s *cache.Store, c Collectives) error {
	choice, err := json.Marshal(collectivesChoice{c.Version, c.NCCLBytes})
	if err != nil {
		return err
	}
	return s.PutTuning(ctx, cache.Tuning{TuningKey: collectivesKey(c.Device, c.Ranks), Choice: string(choice), Time: c.Best, Before: c.Peer})
}

// LookupCollectives reads a record; false where there is none, or one that is not understood.
func LookupCollectives(s *cache.Store, device string, ranks int) (Collectives, bool) {
	t, ok := s.Tuning(collectivesKey(device, ranks))
	var choice collectivesChoice
	if !ok || json.Unmarshal([]byte(t.Choice), &choice) != nil || choice.NCCLBytes < 0 {
		return Collectives{}, false
	}
	return Collectives{Device: device, Ranks: ranks, Version: choice.Version, NCCLBytes: choice.NCCLBytes, Peer: t.Before, Best: t.Time}, true
}
