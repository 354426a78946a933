package runner

import (
	"slices"
	"time"
)

// chunk is a sequence's part of a step: n of its tokens, in rows from row on.
type chunk struct {
	seq    *Sequence
	row, n int
	sample int // row of the sampled ids; -1: nothing is sampled yet
}

// watermark is the part of the cache that a joining request must leave free for the growth of
// running ones (vLLM's default).
const watermark = 0.01

func (r *Runner) blocksFor(tokens int) int {
	return (tokens + int(r.lm.blockSize) - 1) / int(r.lm.blockSize)
}

// schedule fills a step: first every request that decodes, then prompts that are partly computed,
// then waiting requests, each group in the order of priority and arrival.
func (r *Runner) schedule(s *step) {
	if s.again = r.steadyDecode(s); s.again {
		return
	}
	s.reset()
	budget := r.opts.MaxTokens
	preempted := false
	// A decode may need a block, which the last running request gives if none is free. Requests
	// after i have no chunk in the step yet.
	for i := 0; i < len(r.running); i++ {
		q := r.running[i]
		if q.rest() != 1 {
			continue
		}
		for {
			if q.room > q.computed || r.grow(q, q.computed+1) {
				s.add(q, 1)
				budget--
				break
			}
			preempted = true
			victim := r.running[len(r.running)-1]
			r.preempt(victim)
			if victim == q {
				break
			}
		}
	}
	for _, q := range r.running {
		if n := min(q.rest(), budget); n > 0 && q.rest() > 1 {
			s.add(q, n)
			budget -= n
		}
	}
	for !preempted && budget > 0 && len(r.waiting) > 0 && len(r.running) < r.opts.MaxSequences {
		q := r.waiting[0]
		if !r.join(q) {
			break
		}
		n := min(q.rest(), budget)
		s.add(q, n)
		budget -= n
	}
	s.number()
	s.decodes, s.changes = s.rows > 0 && s.uniform && s.samples == len(r.running) && s.inOrder(r.running), r.changes
}

// inOrder reports whether a step has the requests that run, in their order, which is that of
// the step after it. A request that joined, or whose prompt ended, may come before others by
// its priority, but comes after them in its first step.
func (s *step) inOrder(running []*Sequence) bool {
	return slices.EqualFunc(s.chunks, running, func(h chunk, q *Sequence) bool { return h.seq == q })
}

// steadyDecode advances the step that this one was two turns before. It does so if all running
// requests decoded there, none joined or left since or can join now, and there are enough
// blocks. It reads only the requests that need a block: with some hundreds of requests, each
// read would miss the processor's caches.
func (r *Runner) steadyDecode(s *step) bool {
	if !s.decodes || s.changes != r.changes || len(r.waiting) > 0 && len(r.running) < r.opts.MaxSequences {
		return false
	}
	return s.batch.Advance(int(r.turns-s.turn), int(r.lm.blockSize), s.more)
}

// join gives the first waiting request the blocks of all its tokens, so that its prefill never
// lacks one.
func (r *Runner) join(q *Sequence) bool {
	need := r.blocksFor(q.length())
	if spare := len(r.blocks.free) - need; len(r.running) > 0 && spare < int(watermark*float64(r.blocks.total)) {
		return false
	}
	if len(r.blocks.free) < need || q.counted && !r.slots.take(q) {
		return false
	}
	if cap(q.ids) < int(q.limit) { // it runs for the first time
		q.ids = append(make([]int32, 0, q.limit), q.ids...)
		buffer := q.ids[:q.limit]
		q.buffer.Store(&buffer)
		q.blocks = make([]int32, 0, r.blocksFor(int(q.limit)))
		if q.scores != nil && q.scores.Answer {
			q.scores.answer = make([]TokenLogprobs, int(q.limit)-len(q.prompt))
		}
	}
	r.grow(q, q.length())
	r.dequeue()
	r.begin(q)
	i, _ := slices.BinarySearchFunc(r.running, q, (*Sequence).compare)
	r.running = slices.Insert(r.running, i, q)
	r.changes++
	q.place = inRunning
	r.names++
	q.name = r.names
	return true
}

// preempt moves the last running request back to the queue. It keeps its tokens, with those in
// flight, and computes them anew as a prompt.
func (r *Runner) preempt(q *Sequence) {
	r.leave(q)
	r.requeue(q)
}

// recompute moves a request whose last step cannot be trusted back to the queue: its tokens in
// flight do not count.
func (r *Runner) recompute(q *Sequence) {
	if q.place == ended {
		return
	}
	q.pending = 0
	if r.inFlight != nil {
		r.inFlight.distrust(q)
		for i := range r.inFlight.chunks {
			if h := &r.inFlight.chunks[i]; h.seq == q {
				h.sample = -1
			}
		}
	}
	if q.place == inWaiting { // it was preempted since
		return
	}
	r.leave(q)
	r.requeue(q)
}

// requeue puts a request without blocks into the queue.
func (r *Runner) requeue(q *Sequence) {
	r.enqueue(q)
	q.place = inWaiting
	r.count.preemptions++
	r.count.recomputed += int64(q.computed)
	q.computed = 0
}

// grow gives a sequence the blocks of so many tokens, or none and reports that there are
// not enough.
func (r *Runner) grow(q *Sequence, tokens int) (ok bool) {
	q.blocks, ok = r.blocks.grow(q.blocks, r.blocksFor(tokens))
	q.room = len(q.blocks) * int(r.lm.blockSize)
	return ok
}

// giveBlocks takes the blocks of a sequence back.
func (r *Runner) giveBlocks(q *Sequence) { q.blocks, q.room = r.blocks.give(q.blocks), 0 }

// number assigns rows to the chunks, and rows of samples to chunks that end with the last token
// of their sequence.
func (s *step) number() {
	for i := range s.chunks {
		h := &s.chunks[i]
		q := h.seq
		h.row = s.rows
		s.rows += h.n
		s.uniform = s.uniform && h.n == 1
		h.sample = -1
		if h.n == q.rest() {
			h.sample = s.samples
			s.samples++
			s.variant = max(s.variant, q.variant)
			s.adjusts = s.adjusts || q.adjusts
			s.processed = s.processed || q.request.Processor != nil
		}
		s.score(i)
	}
}

// issued counts a step as done, since all work that is issued later comes after it. A request whose
// last token it samples leaves at once; the next owner of its blocks writes them in a later step.
func (r *Runner) issued(s *step) {
	if s.adjusts {
		s.trustCounts()
	}
	s.turn = r.turns
	r.turns++
	for i := range s.chunks {
		h := &s.chunks[i]
		q := h.seq
		q.computed += h.n
		if h.sample < 0 {
			continue
		}
		q.pending, q.from = q.pending+1, int32(h.sample)
		if q.length() == int(q.limit) {
			r.leave(q)
			q.place = inFlight
		}
	}
}

// leave takes a sequence from where it is and frees its blocks.
func (r *Runner) leave(q *Sequence) {
	list := &r.waiting
	switch q.place {
	case inRunning:
		list = &r.running
		r.changes++
	case inWaiting:
	default:
		return
	}
	switch i := slices.Index(*list, q); {
	case i == 0 && list == &r.waiting:
		r.dequeue()
	case i >= 0:
		*list = slices.Delete(*list, i, i+1)
	}
	r.giveBlocks(q)
	r.slots.give(q)
}

// finish ends a request.
func (r *Runner) finish(q *Sequence, why Reason, err error) {
	if q.place == ended {
		return
	}
	r.leave(q)
	q.place, q.reason, q.err = ended, why, err
	// An answer is kept for as long as its reader likes: without the room that it did not need.
	q.blocks = nil
	q.buffer.Store(nil)
	if len(q.ids) < cap(q.ids) {
		q.ids = slices.Clip(slices.Clone(q.ids))
	}
	r.count.finished[why]++
	q.unwatch()
	q.times.ended = time.Now()
	r.ended(q)
	q.over.Store(true)
	if o := r.opts.Observer; o != nil { // before who waits for the end: what an observer counts is there then
		o.Finished(q)
	}
	close(q.done)
}

// dequeue takes the first that waits from the queue, whatever its length.
func (r *Runner) dequeue() {
	r.waiting[0] = nil // so that it can be collected
	r.waiting = r.waiting[1:]
}
