package runner

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"pwc/piecewise"
)

// Step is one step as it was issued, and the runner after it.
type Step struct {
	Rows     int // 0: nothing was issued
	Requests int
	Sampled  int
	Uniform  bool // every request had one row: a decode step
	Mode     piecewise.RunMode
	Size     int64 // with padding

	Running, Waiting   int
	UsedBlocks, Blocks int
	Took               time.Duration // all of it
	Backend            time.Duration // of that in the backend: issuing, and waiting for the step before
	Waited             time.Duration // of that waiting; the rest of Took is what the host does for a step

	// FirstTokens are the times from Submit to the first token, of requests whose first token
	// this step read; Intervals are those from token to token, of the other tokens that it
	// read. Both are valid until the observer returns.
	FirstTokens, Intervals []time.Duration

	PromptTokens int // of the requests of FirstTokens: prompts that are computed

	Preempted int64 // requests that gave their blocks back, since the runner was made

	Err error // what Runner.Step returns
}

// Stats is what a runner has done. Counts of requests and tokens are of those
// that ended and were read.
type Stats struct {
	Steps []StepCount `json:"steps"` // by mode and size

	FailedSteps int64 `json:"failed_steps"` // calls of Runner.Step that returned an error after something was issued or read

	Processed int64 `json:"processed"` // steps that waited for the tokens of the one before, for a LogitsProcessor

	Submitted  int64            `json:"submitted"`
	Rejected   int64            `json:"rejected"`   // by Runner.Submit
	Finished   map[string]int64 `json:"finished"`   // by reason
	Generated  int64            `json:"generated"`  // tokens
	Preempted  int64            `json:"preempted"`  // times that a request gave its blocks back
	Recomputed int64            `json:"recomputed"` // tokens that were computed anew therefore

	Running    int   `json:"running"`
	Waiting    int   `json:"waiting"`
	UsedBlocks int64 `json:"used_blocks"`
	Blocks     int64 `json:"blocks"`
	BlockSize  int64 `json:"block_size"`

	Took    time.Duration `json:"took_ns"`    // in steps
	Backend time.Duration `json:"backend_ns"` // of that in the backend; the rest is the runner's own
	Waited  time.Duration `json:"waited_ns"`  // of that waiting for the device
}

// StepCount is the steps of one mode and size.
type StepCount struct {
	Mode  piecewise.RunMode `json:"mode"`
	Size  int64             `json:"size"`
	Steps int64             `json:"steps"`
	Rows  int64             `json:"rows"` // without padding
}

// Padding returns the part of all rows that padding added, from 0 to 1.
func (s *Stats) Padding() float64 {
	rows, all := int64(0), int64(0)
	for _, c := range s.Steps {
		rows, all = rows+c.Rows, all+c.Steps*c.Size
	}
	if all == 0 {
		return 0
	}
	return 1 - float64(rows)/float64(all)
}

// counters are the goroutine's that steps.
type counters struct {
	finished                           [len(reasonNames)]int64
	generated, preemptions, recomputed int64
	failed                             int64 // steps
	processed                          int64 // steps
	took, backend, waited              time.Duration
	steps                              map[stepKey]*StepCount
}

type stepKey struct {
	mode piecewise.RunMode
	size int64
}

// publish counts a step and tells of it.
func (r *Runner) publish(s *step, took time.Duration, err error) {
	c := &r.count
	if err != nil {
		c.failed++
	}
	c.took, c.backend, c.waited = c.took+took, c.backend+r.busy, c.waited+r.waited
	report := Step{Rows: s.rows, Requests: len(s.chunks), Sampled: s.samples, Uniform: s.uniform, Took: took, Backend: r.busy, Waited: r.waited,
		Running: len(r.running), Waiting: len(r.waiting), UsedBlocks: r.blocks.used(), Blocks: r.blocks.total,
		FirstTokens: r.firsts, Intervals: r.intervals, PromptTokens: r.prompted, Preempted: c.preemptions, Err: err}
	r.mu.Lock()
	if s.rows > 0 {
		choice := r.forward.Choose(int64(s.rows), s.uniform)
		report.Mode, report.Size = choice.Mode, choice.Size
		key := stepKey{choice.Mode, choice.Size}
		if c.steps == nil {
			c.steps = map[stepKey]*StepCount{}
		}
		n := c.steps[key]
		if n == nil {
			n = &StepCount{Mode: key.mode, Size: key.size}
			c.steps[key] = n
		}
		n.Steps++
		n.Rows += int64(s.rows)
	}
	r.share()
	r.mu.Unlock()
	if o := r.opts.Observer; o != nil {
		o.Stepped(report)
	}
}

// share makes the counters visible to [Runner.Stats]. The caller holds mu.
func (r *Runner) share() {
	r.stats.Running, r.stats.Waiting, r.stats.UsedBlocks = len(r.running), len(r.waiting), int64(r.blocks.used())
	r.shared = r.count
}

// Stats returns the counters as the last step or the last end of a request left them: a request
// that is done is counted.
func (r *Runner) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, c := r.stats, &r.shared
	s.FailedSteps, s.Processed, s.Rejected = c.failed, c.processed, r.rejected
	s.Submitted, s.Generated, s.Preempted, s.Recomputed, s.Took, s.Backend, s.Waited = int64(r.arrivals), c.generated, c.preemptions, c.recomputed, c.took, c.backend, c.waited
	s.Finished = map[string]int64{}
	for why, n := range c.finished {
		if n > 0 {
			s.Finished[Reason(why).String()] = n
		}
	}
	for _, n := range slices.SortedFunc(maps.Values(c.steps), func(a, b *StepCount) int {
		return cmp.Or(cmp.Compare(a.Mode, b.Mode), cmp.Compare(a.Size, b.Size))
	}) {
		s.Steps = append(s.Steps, *n)
	}
	return s
}
