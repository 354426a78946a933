package piecewise

import (
	"fmt"
	"math"

	"pwc/ir"
	"pwc/runtime/device"
)

// checkRoom compares the memory that Load will allocate with the limit of the pool, and with the
// free memory of the device if it is [device.Budgeted]. It does not count states that the caller
// gives, an arena or workspace that the pool has already, the constants of programs, and inPlace,
// the bytes of weights that stay in files. The error is a [device.MemoryError] with the numbers of the plan.
func (r *residents) checkRoom(given map[string]device.Buffer, inPlace int64) error {
	p := r.plan.memory
	p.WeightBytes -= inPlace
	own := func(s *ir.State) bool { _, ok := given[s.Name]; return !ok }
	var err error
	if _, p.StateBytes, err = r.plan.stateBytes(own); err != nil {
		return err
	}
	r.pool.mu.Lock()
	if r.plan.opts.Debug.Canary == CanaryOff && r.pool.arena.Size >= p.PeakArenaBytes {
		p.PeakArenaBytes = 0
	}
	if r.pool.work.Size >= p.WorkspaceBytes {
		p.WorkspaceBytes = 0
	}
	r.pool.mu.Unlock()
	refuse := func(asked, reserved, active, limit int64) error {
		return fmt.Errorf("piecewise: %d bytes for weights, %d for states, %d for inputs and results, %d for the arena and workspaces, %d for staging: %w",
			p.WeightBytes, p.StateBytes, p.InputBytes+p.ResultBytes, p.PeakArenaBytes+p.WorkspaceBytes, p.StagingBytes,
			&device.MemoryError{Asked: asked, Reserved: reserved, Active: active, Limit: limit})
	}
	pooled := p.Total() - p.ConstBytes
	if limit := r.pool.limit; limit > 0 {
		s := r.pool.Stats()
		if active := s.ActiveBytes.Now; pooled > limit-active {
			return refuse(pooled, s.ReservedBytes.Now, active, limit)
		}
	}
	d, ok := r.plan.opts.Device.(device.Budgeted)
	if !ok {
		return nil
	}
	free, err := d.FreeBytes()
	if err != nil || free == math.MaxInt64 {
		return err
	}
	asked := pooled
	if d.SharesHostMemory() {
		asked += min(p.StagingBytes, math.MaxInt64-pooled)
	}
	s := r.pool.Stats()
	cached := s.ReservedBytes.Now - s.ActiveBytes.Now
	if limit := d.Info().MemoryBytes; asked > free+cached {
		return refuse(asked, limit-free, limit-free-cached, limit)
	}
	return nil
}
