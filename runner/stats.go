package runner

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"pwc/piecewise"
)

// Step describes one call of Runner.Step: the step that it issued, the tokens of the previous step,
// which it read, and the state of the runner after it.
type Step struct {
	Rows     int // 0: no step was scheduled; a step that could not be issued has its rows, and Err
	Requests int
	Sampled  int               // tokens that the step samples
	Uniform  bool              // every request has one row: a decode step
	Mode     piecewise.RunMode // of @forward
	Size     int64             // rows with padding

	Running, Waiting   int           // requests
	UsedBlocks, Blocks int           // of the KV cache
	Took               time.Duration // of the whole call
	Backend            time.Duration // the part of Took in the backend: issuing, and waiting for the previous step
	Waited             time.Duration // the part of Backend in which the host waited for the previous step

	// FirstTokens are the times from Submit to the first token, for each first token that the call
	// read. Intervals are the times from the previous token of the request, for each other token
	// that it read. Both slices are valid until the observer returns.
	FirstTokens, Intervals []time.Duration

	PromptTokens int // prompt tokens of the requests in FirstTokens

	Preempted int64 // preemptions since the runner was made

	Err error // the error that Runner.Step returns
}

// Stats are the counters of a runner. Tokens count when the host has read them.
type Stats struct {
	Steps []StepCount `json:"steps"` // by mode and size

	FailedSteps int64 `json:"failed_steps"` // calls of Runner.Step in which issuing or reading a step failed, or a step had an index out of range

	Processed int64 `json:"processed"` // steps with a LogitsProcessor, which were read before the next step was issued

	Submitted  int64            `json:"submitted"`  // requests that Runner.Submit accepted
	Rejected   int64            `json:"rejected"`   // by Runner.Submit
	Finished   map[string]int64 `json:"finished"`   // by reason
	Generated  int64            `json:"generated"`  // tokens
	Preempted  int64            `json:"preempted"`  // preemptions, including requests computed again after a fault
	Recomputed int64            `json:"recomputed"` // tokens whose keys and values were discarded by them

	Running    int   `json:"running"`
	Waiting    int   `json:"waiting"`
	UsedBlocks int64 `json:"used_blocks"`
	Blocks     int64 `json:"blocks"`
	BlockSize  int64 `json:"block_size"`

	Took    time.Duration `json:"took_ns"`    // in Runner.Step
	Backend time.Duration `json:"backend_ns"` // the part of Took in the backend
	Waited  time.Duration `json:"waited_ns"`  // the part of Backend in which the host waited for the device
}

// StepCount counts the steps of one mode and size, including those that could not be issued.
type StepCount struct {
	Mode  piecewise.RunMode `json:"mode"`
	Size  int64             `json:"size"`
	Steps int64             `json:"steps"`
	Rows  int64             `json:"rows"` // of all these steps, without padding
}

// Padding returns the fraction of all rows that are padding, from 0 to 1.
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

// counters are the counters that the goroutine that steps writes.
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

// publish counts a step and calls the observer.
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

// Stats returns the counters after the last step or the last end of a request, whichever is later. A
// request is counted before its Done is closed.
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
