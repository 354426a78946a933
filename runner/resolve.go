package runner

import (
	"fmt"

	"pwc/piecewise"
)

// Decision says how a batch runs, and why. It has vLLM's pair of a mode and a batch descriptor
// (CudagraphDispatcher.dispatch in vllm/v1/cudagraph_dispatcher.py).
type Decision struct {
	Rows     int64 // of the batch
	Uniform  bool  // every request of the batch has one row
	Mode     piecewise.RunMode
	Size     int64 // rows of the graphs; Rows when it runs eagerly
	Requests int64 // the largest number of requests of the full graph; 0: no full graph, so any number
	Decode   bool  // the full graph serves only uniform batches
	Why      string
	Err      error // not nil: no step has such a batch, or a frozen backend refuses it
}

// Explain returns how a batch of rows runs. A step makes the same decision by the same code. The
// answer before Load is that after Load.
func (r *Runner) Explain(rows int, uniform bool) Decision {
	uniform = uniform || rows == 1 // one row is the row of one request
	if uniform && rows > r.opts.MaxSequences {
		err := fmt.Errorf("%w: no step has %d requests, MaxSequences is %d", ErrRequest, rows, r.opts.MaxSequences)
		return Decision{Rows: int64(rows), Uniform: uniform, Mode: piecewise.RunEager, Size: int64(rows), Why: err.Error(), Err: err}
	}
	c := r.forward.Choose(int64(rows), uniform)
	d := Decision{Rows: int64(rows), Uniform: uniform, Mode: c.Mode, Size: c.Size, Why: c.Why, Err: c.Err}
	if c.Mode == piecewise.RunFull {
		d.Requests = min(c.Size, int64(r.opts.MaxSequences))
		d.Decode = uniform && r.opts.Backend.Capture.Mode != piecewise.Full
	}
	return d
}

// String returns a sentence.
func (d Decision) String() string {
	batch := "mixed"
	if d.Uniform {
		batch = "one row each"
	}
	if d.Err != nil {
		return fmt.Sprintf("%d rows, %s: refused, because %v", d.Rows, batch, d.Err)
	}
	switch d.Mode {
	case piecewise.RunEager:
		return fmt.Sprintf("%d rows, %s: no graph, because %s", d.Rows, batch, d.Why)
	case piecewise.RunFull:
		kind := "any batch"
		if d.Decode {
			kind = "decode steps"
		}
		return fmt.Sprintf("%d rows, %s: the whole graph of %d rows for %s of %d requests, because %s", d.Rows, batch, d.Size, kind, d.Requests, d.Why)
	}
	return fmt.Sprintf("%d rows, %s: the pieces' graphs of %d rows, because %s", d.Rows, batch, d.Size, d.Why)
}

// uncovered lists decode steps that no capture size serves, and if rows must not be padded, steps of
// other sizes, with reasons. In mode none its one entry means all steps.
func (r *Runner) uncovered() []string {
	top := int64(0)
	if n := len(r.plan.Sizes); n > 0 {
		top = r.plan.Sizes[n-1]
	}
	most := int64(r.opts.MaxSequences)
	var out []string
	if r.opts.Backend.Capture.Mode == piecewise.None {
		return []string{"anything: mode none"}
	}
	if top < most {
		out = append(out, fmt.Sprintf("decode steps of %d to %d requests: the largest size is %d", top+1, most, top))
	}
	if err := r.forward.Padding(); err != nil {
		out = append(out, fmt.Sprintf("steps of other sizes than those captured: %v", err))
	}
	return out
}
