package piecewise

import (
	"maps"
	"sync/atomic"
)

// Stats contains counters of a backend. The first five correspond to vLLM's
// (CompilationCounter in vllm/compilation/counter.py).
type Stats struct {
	GraphsSeen           int64            `json:"graphs_seen"`            // functions
	PiecewiseGraphsSeen  int64            `json:"piecewise_graphs_seen"`  // pieces, splitting ones included
	CapturableGraphsSeen int64            `json:"capturable_graphs_seen"` // pieces that graphs can hold: not splitting, without a call that may not be captured; in a mode that captures, only of functions that graphs can serve
	BackendCompilations  int64            `json:"backend_compilations"`   // artifacts asked for: pieces between splitting ops × shapes
	GraphsCaptured       int64            `json:"cudagraphs_captured"`    // graphs that exist or existed
	Compiled             int64            `json:"compiled"`               // artifacts that were compiled
	Deduplicated         int64            `json:"deduplicated"`           // artifacts that an identical piece had asked for before
	Loaded               int64            `json:"loaded"`                 // artifacts that came from the store
	ArenaBytesTaken      int64            `json:"arena_bytes_taken"`      // largest offset in the arena that a tensor or scratch was bound up to
	WeightBytesInPlace   int64            `json:"weight_bytes_in_place"`  // of weights that stay in files of the checkpoint
	Replays              int64            `json:"replays"`                // piecewise runs
	FullReplays          int64            `json:"full_replays"`           // full runs
	EagerRuns            int64            `json:"eager_runs"`             // runs without graphs
	Rows                 int64            `json:"rows"`                   // rows of all runs
	PaddedRows           int64            `json:"padded_rows"`            // rows that padding added
	OpCalls              map[string]int64 `json:"op_calls"`               // launches of each extern op between pieces, by piecewise and eager runs
	Skipped              map[string]int64 `json:"skipped"`                // runs without a graph, by reason (C8)

	// CompiledAtLoad counts the programs, kernels of ops included, that the device compiles
	// when it loads them, by the reason (C8).
	CompiledAtLoad map[string]int64 `json:"compiled_at_load"`

	// Counts over the programs at capture sizes, each program once for each function and size (C8).
	LibraryCalls   int64 `json:"library_calls"`   // calls of library routines
	LibraryUntuned int64 `json:"library_untuned"` // of these, calls whose algorithm was not measured
	LibraryMissing int64 `json:"library_missing"` // steps that use another variant because the device lacks a routine
}

// skipReason is why a run used no graph.
type skipReason uint8

const (
	skipMode skipReason = iota
	skipNotCaptured
	skipAbove
	skipPadding
	skipNotUniform
	skipLinked
	skipCounted
	skipBefore
	skipPlain
	skipCount
)

var skipNames = [skipCount]string{
	skipMode:        "mode none",
	skipNotCaptured: "no size of the function is captured",
	skipAbove:       "above the largest captured size",
	skipPadding:     "rows must not be padded",
	skipLinked:      "rows that another function made would mix with an earlier step's",
	skipCounted:     "rows that another batch symbol counts would mix with an earlier step's",
	skipBefore:      "Capture was not called, or failed",
	skipPlain:       "a plain symbol is bound at each run",
	skipNotUniform:  "mode full-decode-only and a batch that is not uniform",
}

type opCounter struct{ calls atomic.Int64 }

// counters are written by the goroutine that runs; any goroutine may read them.
type counters struct {
	captured, taken      atomic.Int64
	inPlace              atomic.Int64
	replays, full, eager atomic.Int64
	rows, padded         atomic.Int64
	skipped              [skipCount]atomic.Int64
	ops                  map[string]*opCounter // fixed after New
}

func (c *counters) tookArena(end int64) {
	for {
		old := c.taken.Load()
		if end <= old || c.taken.CompareAndSwap(old, end) {
			return
		}
	}
}

// Stats returns the counters as they are now.
func (b *Backend) Stats() Stats {
	c, lib := &b.stats, b.plan.libraries
	s := Stats{GraphsCaptured: c.captured.Load(), ArenaBytesTaken: c.taken.Load(), WeightBytesInPlace: c.inPlace.Load(),
		Replays: c.replays.Load(), FullReplays: c.full.Load(), EagerRuns: c.eager.Load(), Rows: c.rows.Load(), PaddedRows: c.padded.Load(),
		OpCalls: map[string]int64{}, Skipped: map[string]int64{}, CompiledAtLoad: maps.Clone(b.plan.atLoad), LibraryCalls: lib.calls, LibraryUntuned: lib.untuned, LibraryMissing: lib.missing}
	b.buildStats(&s)
	for name, n := range c.ops {
		s.OpCalls[name] = n.calls.Load()
	}
	for i := range c.skipped {
		if n := c.skipped[i].Load(); n > 0 {
			s.Skipped[skipNames[i]] = n
		}
	}
	return s
}
