package runner

import (
	"slices"
	"time"
)

// chunk is a sequence's part of a step: n of its tokens, in rows [row, row+n).
type chunk struct {
	seq    *Sequence
	row, n int
	sample int // row of the sampled ids; -1: the step samples no token of the sequence
}

// watermark is the fraction of the cache's blocks that must stay free for the growth of running
// requests when another request joins them (the default of vLLM's BlockSpaceManager).
const watermark = 0.01

func (r *Runner) blocksFor(tokens int) int {
	return (tokens + int(r.lm.blockSize) - 1) / int(r.lm.blockSize)
}

// schedule fills a step: first each decoding request, then running requests with an incomplete prompt,
// then waiting requests, each group in the order of priority and arrival.
func (r *Runner) schedule(s *step) {
	if s.again = r.steadyDecode(s); s.again {
		return
	}
	s.reset()
	budget := r.opts.MaxTokens
	preempted := false
	// A decode may need a block. If no block is free, the last running request is preempted.
	// Requests after i have no chunk in the step yet.
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

// inOrder reports whether a step has exactly the running requests, in their order. The next step has
// that order. A request that just joined, or whose prompt ended in this step, is behind the decoding
// requests here, but may be before them in running by its priority.
func (s *step) inOrder(running []*Sequence) bool {
	return slices.EqualFunc(s.chunks, running, func(h chunk, q *Sequence) bool { return h.seq == q })
}

// steadyDecode reports whether it advanced s, which still describes the step of two turns before. It
// does so if all running requests decoded there, no request joined or left since, no request waits unless
// MaxSequences run, and there are enough blocks. It reads only the requests that need a block:
// with some hundreds of requests, each read would miss the processor's caches.
func (r *Runner) steadyDecode(s *step) bool {
	if !s.decodes || s.changes != r.changes || len(r.waiting) > 0 && len(r.running) < r.opts.MaxSequences {
		return false
	}
	return s.batch.Advance(int(r.turns-s.turn), int(r.lm.blockSize), s.more)
}

// join moves the first waiting request to the running ones and gives it blocks for all its tokens, so
// that its prefill never needs another. It reports false if there are too few blocks or no slot.
func (r *Runner) join(q *Sequence) bool {
	need := r.blocksFor(q.length())
	if spare := len(r.blocks.free) - need; len(r.running) > 0 && spare < int(watermark*float64(r.blocks.total)) {
		return false
	}
	if len(r.blocks.free) < need || q.counted && !r.slots.take(q) {
		return false
	}
	if cap(q.ids) < int(q.limit) { // the request has never run
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

// preempt moves a running request back to the queue. The request keeps its tokens, also those
// in flight, and computes them again as a prompt.
func (r *Runner) preempt(q *Sequence) {
	r.leave(q)
	r.requeue(q)
}

// recompute moves a request whose last step has invalid results back to the queue, without its
// tokens in flight.
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
	if q.place == inWaiting { // preempted after that step
		return
	}
	r.leave(q)
	r.requeue(q)
}

// requeue puts a request that ran into the queue again, without blocks, and counts a preemption.
func (r *Runner) requeue(q *Sequence) {
	r.enqueue(q)
	q.place = inWaiting
	r.count.preemptions++
	r.count.recomputed += int64(q.computed)
	q.computed = 0
}

// grow gives a sequence the blocks that it lacks for a number of tokens. If there are not enough free
// blocks, it gives no block and reports false.
func (r *Runner) grow(q *Sequence, tokens int) (ok bool) {
	q.blocks, ok = r.blocks.grow(q.blocks, r.blocksFor(tokens))
	q.room = len(q.blocks) * int(r.lm.blockSize)
	return ok
}

// giveBlocks frees the blocks of a sequence.
func (r *Runner) giveBlocks(q *Sequence) { q.blocks, q.room = r.blocks.give(q.blocks), 0 }

// number assigns rows to the chunks, and rows of samples to the chunks that have the last token of
// their sequence.
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

// issued updates the sequences as if the step were done, because the device runs steps in order. A
// request whose last token the step samples leaves at once: the next owner of its blocks writes them
// in a later step.
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

// leave removes a sequence from the waiting or running ones, and frees its blocks and its slot.
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
	// The caller may keep the sequence for long, so it keeps no unused capacity.
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
	if o := r.opts.Observer; o != nil { // before done is closed, so that a waiting goroutine finds the observer's counts
		o.Finished(q)
	}
	close(q.done)
}

// dequeue removes the first waiting request, in constant time.
func (r *Runner) dequeue() {
	r.waiting[0] = nil // so that the garbage collector can free it
	r.waiting = r.waiting[1:]
}
