package tune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"pwc/cache"
	"pwc/internal/exactjson"
)

// Collectives is a record of a measurement: the size from which on NCCL is faster than peer memory, for the
// collectives of a group of GPUs of one kind and one version of NCCL.
type Collectives struct {
	Device string // the GPU's name, "NVIDIA H100 80GB HBM3"
	Ranks  int

	Version   int   // of NCCL, 22809 for 2.28.9
	NCCLBytes int64 // NCCL serves calls in which one rank's part has at least so many bytes; 0: NCCL serves no calls

	Peer time.Duration // the time of the largest measured all_reduce over peer memory
	Best time.Duration // the time of the same all_reduce over peer memory or by NCCL, whichever is less
}

// collectivesChoice is the part of a record that is stored as its choice.
type collectivesChoice struct {
	Version   int   `json:"version"`
	NCCLBytes int64 `json:"nccl_bytes"`
}

// collectivesKey returns the key of a record. It has no version of NCCL, because the version is known only when NCCL is
// opened. That takes time, and processes without large collectives do not need NCCL.
func collectivesKey(device string, ranks int) cache.TuningKey {
	return cache.TuningKey{Device: device, Library: "nccl", Problem: fmt.Sprintf("collectives of %d ranks", ranks)}
}

// PutCollectives stores a record. It replaces the record of the same device and ranks. Errors are those of
// cache.Store.PutTuning, and one for a nil store.
func PutCollectives(ctx context.Context, s *cache.Store, c Collectives) error {
	if s == nil {
		return errors.New("tune: no store is given for the record of collectives")
	}
	choice, err := json.Marshal(collectivesChoice{c.Version, c.NCCLBytes})
	if err != nil {
		return err
	}
	return s.PutTuning(ctx, cache.Tuning{TuningKey: collectivesKey(c.Device, c.Ranks), Choice: string(choice), Time: c.Best, Before: c.Peer})
}

// LookupCollectives reads the record of a device and a number of ranks. It returns false if there is no valid one, or no
// store.
func LookupCollectives(s *cache.Store, device string, ranks int) (Collectives, bool) {
	if s == nil {
		return Collectives{}, false
	}
	t, ok := s.Tuning(collectivesKey(device, ranks))
	var choice collectivesChoice
	if !ok || exactjson.Unmarshal([]byte(t.Choice), &choice) != nil || choice.NCCLBytes < 0 {
		return Collectives{}, false
	}
	return Collectives{Device: device, Ranks: ranks, Version: choice.Version, NCCLBytes: choice.NCCLBytes, Peer: t.Before, Best: t.Time}, true
}
