package cli

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"pwc/piecewise"
	"pwc/runner"
	"pwc/runtime/device"
)

// timedOp counts the time in the launches of an op. A launch on the host device
// is the op itself; on a GPU it is what issuing it takes. An op inside a whole
// graph is not launched.
type timedOp struct {
	device.Op
	nanoseconds atomic.Int64
}

// Launch is that of the op.
func (o *timedOp) Launch(c *device.OpCall) error {
	if c.Capturing {
		return o.Op.Launch(c)
	}
	start := time.Now()
	err := o.Op.Launch(c)
	o.nanoseconds.Add(int64(time.Since(start)))
	return err
}

// generateStats is the JSON of --stats.
type generateStats struct {
	runner.Stats
	Padding float64        `json:"padding"` // part of all rows
	Seconds generateTimes  `json:"seconds"`
	Backend piecewiseStats `json:"backend"`
}

// generateTimes is where the time of the steps went.
type generateTimes struct {
	All       float64 `json:"all"`       // from the first step to the last answer
	Pieces    float64 `json:"pieces"`    // graphs, and waiting for the device
	Attention float64 `json:"attention"` // extern ops between graphs
	Host      float64 `json:"host"`      // scheduling, metadata, answers
}

// piecewiseStats are counters of the backend over all functions of a step.
type piecewiseStats struct {
	Replays     int64            `json:"replays"`
	FullReplays int64            `json:"full_replays"`
	EagerRuns   int64            `json:"eager_runs"`
	Rows        int64            `json:"rows"`
	PaddedRows  int64            `json:"padded_rows"`
	OpCalls     map[string]int64 `json:"op_calls"`
	Skipped     map[string]int64 `json:"skipped"`
}

func (g *generation) printStats(r *runner.Runner) error {
	s, b := r.Stats(), r.Backend().Stats()
	ops := time.Duration(0)
	for _, op := range g.ops {
		ops += time.Duration(op.nanoseconds.Load())
	}
	out := generateStats{Stats: s, Padding: s.Padding(),
		Seconds: generateTimes{time.Since(g.start).Seconds(), (s.Backend - ops).Seconds(), ops.Seconds(), (s.Took - s.Backend).Seconds()},
		Backend: piecewiseStats{b.Replays, b.FullReplays, b.EagerRuns, b.Rows, b.PaddedRows, b.OpCalls, b.Skipped}}
	if g.app.json {
		line, err := json.Marshal(map[string]any{"stats": out})
		if err == nil {
			_, err = fmt.Fprintf(g.app.out, "%s\n", line)
		}
		return err
	}
	t := table{head: []string{"steps", ">size", ">count", ">rows", ">padding"}}
	whole := false
	for _, c := range s.Steps {
		whole = whole || c.How == piecewise.Whole
		t.add(c.Mode, fmt.Sprint(c.Size), fmt.Sprint(c.Steps), fmt.Sprint(c.Rows), fmt.Sprintf("%.1f%%", 100*(1-float64(c.Rows)/float64(c.Steps*c.Size))))
	}
	fmt.Fprintln(g.app.err)
	if err := t.write(g.app.err, "  "); err != nil {
		return err
	}
	fmt.Fprintf(g.app.err, "\n%s generated, %.1f%% of rows were padding; %s, %s computed anew\n", plural(s.Generated, "token"), 100*out.Padding,
		plural(s.Preempted, "preemption"), plural(s.Recomputed, "token"))
	fmt.Fprintf(g.app.err, "%.3f s in pieces, %.3f in attention, %.3f in the host's part of steps\n", out.Seconds.Pieces, out.Seconds.Attention, out.Seconds.Host)
	if whole {
		fmt.Fprintln(g.app.err, "attention inside whole graphs counts as pieces; --mode piecewise tells them apart")
	}
	return nil
}
