package runner

import (
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"pwc/attention"
	"pwc/piecewise"
	"pwc/runtime/device"
)

// step is one step, from its schedule until its ids are read. A runner has two: the host builds and
// issues one while the device runs the other.
type step struct {
	chunks  []chunk
	rows    int
	samples int
	uniform bool    // every request has one row
	variant variant // the slowest sampler variant that a sampling request needs

	adjusts   bool        // a sampling request has adjusted logits
	processed bool        // a sampling request has a LogitsProcessor
	scored    bool        // a sampling request has Logprobs.Answer
	prompts   []promptRow // rows for the log probabilities of prompt tokens
	masks     []int32     // of the sampled rows, if adjusts is set: Runner.masks of the rank that schedules
	sameMasks bool        // masks are those of the previous step

	// If the same requests continue to decode, schedule does not build a step. It takes the one of
	// two turns before and advances each request by the tokens since then.
	decodes bool                      // the step has one row of each running request, and no prompts
	again   bool                      // the step was advanced, not built
	changes uint64                    // Runner.changes when the step was scheduled
	turn    uint64                    // Runner.turns when the step was issued
	more    func(request int) []int32 // gives batch the blocks of a request, if possible with room for its next token

	batch  *attention.Batch  // must not change until the step is done
	ids    device.HostMemory // the sampled ids, valid after done
	scores device.HostMemory // log probabilities of sampled tokens and of prompts; see scoreRows
	done   device.Event

	// If the next step has the same requests, the host reads the fault flags of a step (C12) in
	// place, because a fault of either step ends the same requests. This costs nothing. Before a
	// step with other requests, the flags are moved to a snapshot.
	faults   *piecewise.FaultSnapshot
	moved    bool // the snapshot may have flags of the step
	complete bool // the snapshot has all flags of the step, so current flags are of later steps
}

func (r *Runner) newStep() (*step, error) {
	n := r.opts.MaxSequences
	s := &step{chunks: make([]chunk, 0, n), batch: attention.NewBatch(n, r.opts.MaxTokens, r.blocksFor(r.plan.MaxLength))}
	var err error
	if s.ids, err = r.device.AllocHost(4 * int64(n)); err != nil {
		return nil, err
	}
	if s.scores, err = r.device.AllocHost(r.opts.scoreBytes(min(MaxLogprobs, r.lm.vocabulary))); err != nil {
		return nil, errors.Join(err, s.ids.Free())
	}
	if s.done, err = r.device.NewEvent(); err != nil {
		return nil, errors.Join(err, s.ids.Free(), s.scores.Free())
	}
	if s.faults, err = r.backend.NewFaultSnapshot(); err != nil {
		return nil, errors.Join(err, s.ids.Free(), s.scores.Free(), s.done.Close())
	}
	s.more = func(request int) []int32 {
		q := s.chunks[request].seq
		r.grow(q, q.computed+1)
		return q.blocks
	}
	return s, nil
}

func (s *step) reset() {
	clear(s.chunks) // so that the garbage collector can free ended sequences
	s.chunks, s.rows, s.samples, s.uniform, s.variant = s.chunks[:0], 0, 0, true, greedy
	s.adjusts, s.processed, s.scored, s.prompts = false, false, false, s.prompts[:0]
}

func (s *step) add(q *Sequence, n int) { s.chunks = append(s.chunks, chunk{seq: q, n: n}) }

// sameRequests reports whether a step and the previous one have the same requests.
func (s *step) sameRequests(before *step) bool {
	if s.again { // both have all running requests
		return true
	}
	return slices.EqualFunc(s.chunks, before.chunks, func(a, b chunk) bool { return a.seq == b.seq })
}

// separate moves the fault flags of a step in flight to its snapshot, so that later steps start
// with clear flags.
func (r *Runner) separate(s *step) error {
	s.moved = true
	if err := s.faults.Take(); err != nil {
		return err
	}
	s.complete = true
	return r.pool.Stream().Record(s.done) // the step is done when its snapshot is complete, too
}

// issue enqueues a step's functions and the copy of the sampled ids. before is the step in flight,
// or nil.
func (r *Runner) issue(s, before *step) error {
	if err := r.pool.Enter(); err != nil {
		return err
	}
	defer r.pool.Leave()
	s.moved, s.complete = false, false
	if before != nil && !s.sameRequests(before) {
		if err := r.separate(before); err != nil {
			return err
		}
	}
	if !s.again {
		if err := r.describe(s); err != nil {
			return err
		}
	}
	hidden, err := r.runForward(s)
	if err != nil {
		return err
	}
	if len(s.prompts) > 0 {
		if err := r.runPromptLogprobs(s, hidden); err != nil {
			return err
		}
	}
	if s.samples > 0 {
		if err := r.runSampling(s, hidden); err != nil {
			return err
		}
	}
	return r.pool.Stream().Record(s.done)
}

// wider is the granularity of the block table's width. After a change of the width, the whole table
// is written again.
const wider = 8

// describe builds the metadata for the attention ops.
func (r *Runner) describe(s *step) error {
	b := s.batch
	b.Reset()
	longest := 0
	for i := range s.chunks {
		longest = max(longest, s.chunks[i].seq.computed+s.chunks[i].n)
	}
	// The table is copied at each step, so it is only little wider than the step needs.
	b.Stride = min((r.blocksFor(longest)+wider-1)/wider*wider, r.blocksFor(r.plan.MaxLength))
	for i := range s.chunks {
		h := &s.chunks[i]
		if err := b.AddSequence(h.seq.name, h.seq.computed, h.n, h.seq.blocks, int(r.lm.blockSize)); err != nil {
			return err
		}
	}
	return nil
}

// runForward fills ids and positions and runs @forward. Ids that the step in flight samples stay in device
// memory.
func (r *Runner) runForward(s *step) (piecewise.Results, error) {
	fail := func(err error) (piecewise.Results, error) { return piecewise.Results{}, err }
	in, err := r.forward.Inputs(int64(s.rows))
	if err != nil {
		return fail(err)
	}
	in.SetUniform(s.uniform)
	pos, err := in.Int32s(r.lm.params[1])
	if err != nil {
		return fail(err)
	}
	// pending: the host does not know some ids yet. same: all ids are those that the last step
	// sampled, each in the same row.
	pending, same := false, s.rows == r.rows
	if s.again {
		pending = true
		for i, length := range s.batch.SeqLens {
			pos[i] = length - 1
		}
	} else {
		for i := range s.chunks {
			h := &s.chunks[i]
			for j := range h.n {
				pos[h.row+j] = int32(h.seq.computed + j)
			}
			waits := h.seq.computed+h.n > len(h.seq.ids)
			pending, same = pending || waits, same && waits && h.n == 1 && int(h.seq.from) == h.row
		}
	}
	switch {
	case !pending:
		ids, err := in.Int32s(r.lm.params[0])
		if err != nil {
			return fail(err)
		}
		for i := range s.chunks {
			h := &s.chunks[i]
			copy(ids[h.row:], h.seq.ids[h.seq.computed:][:h.n])
		}
	case same:
		if err := in.SetResult(r.lm.params[0], r.chosen.At(next)); err != nil {
			return fail(err)
		}
	default:
		ids, err := r.runIDs(s)
		if err != nil {
			return fail(err)
		}
		if err := in.SetResult(r.lm.params[0], ids.At(0)); err != nil {
			return fail(err)
		}
	}
	return r.run(r.forward, in, s.batch)
}

func (r *Runner) runIDs(s *step) (piecewise.Results, error) {
	fail := func(err error) (piecewise.Results, error) { return piecewise.Results{}, err }
	in, err := r.ids.Inputs(int64(s.rows))
	if err != nil {
		return fail(err)
	}
	in.SetUniform(s.uniform)
	if err := in.SetResult("sampled", r.chosen.At(sampled)); err != nil {
		return fail(err)
	}
	from, err := in.Int32s("from")
	if err != nil {
		return fail(err)
	}
	ids, err := in.Int32s("ids")
	if err != nil {
		return fail(err)
	}
	for i := range s.chunks {
		h := &s.chunks[i]
		known := copy(ids[h.row:h.row+h.n], h.seq.ids[h.seq.computed:])
		for j := range h.n {
			from[h.row+j] = -1
		}
		if known < h.n { // the host does not know the last one: only a sequence's last token can be in flight
			ids[h.row+known], from[h.row+known] = 0, h.seq.from
		}
	}
	return r.run(r.ids, in, nil)
}

// runLogits computes the logits of n rows: those of prompts, or if prompts is nil the last row of
// each sequence that samples.
func (r *Runner) runLogits(s *step, hidden piecewise.Results, n int, prompts []promptRow) (piecewise.Result, error) {
	none := piecewise.Result{}
	in, err := r.logits.Inputs(int64(n))
	if err != nil {
		return none, err
	}
	in.SetUniform(s.uniform)
	if err := in.SetResult(r.lm.params[2], hidden.At(0)); err != nil {
		return none, err
	}
	rows, err := in.Int32s(r.lm.params[3])
	if err != nil {
		return none, err
	}
	for i, p := range prompts {
		rows[i] = p.row
	}
	for i := range s.chunks {
		if h := &s.chunks[i]; prompts == nil && h.sample >= 0 {
			rows[h.sample] = int32(h.row + h.n - 1)
		}
	}
	logits, err := r.run(r.logits, in, nil)
	if err != nil {
		return none, err
	}
	return logits.At(0), nil
}

// runSampling computes the logits of each sequence that samples, chooses tokens, and starts their
// copy to the host.
func (r *Runner) runSampling(s *step, hidden piecewise.Results) error {
	chosenFrom, err := r.runLogits(s, hidden, s.samples, nil)
	if err != nil {
		return err
	}
	if s.adjusts {
		if chosenFrom, err = r.runAdjust(s, chosenFrom); err != nil {
			return err
		}
	}
	choose := r.samplers[s.variant]
	in, err := choose.Inputs(int64(s.samples))
	if err != nil {
		return err
	}
	in.SetUniform(s.uniform)
	if err := in.SetResult("logits", chosenFrom); err != nil {
		return err
	}
	if s.variant != greedy {
		if err := s.fillSampling(in); err != nil {
			return err
		}
	}
	if r.chosen, err = r.run(choose, in, nil); err != nil {
		return err
	}
	r.rows = s.samples
	if s.scored {
		if err := r.runLogprobs(s, chosenFrom); err != nil {
			return err
		}
	}
	if s.adjusts {
		if err := r.runCount(s); err != nil {
			return err
		}
	}
	return r.chosen.At(sampled).StartCopy(s.ids.Bytes()[:4*s.samples])
}

// fillSampling fills the parameters of a sampler variant that is not greedy. If keepSampling keeps the
// others, it fills only positions.
func (s *step) fillSampling(in piecewise.Inputs) error {
	position, err := in.Int64s("position")
	if err != nil {
		return err
	}
	for i := range s.chunks {
		if h := &s.chunks[i]; h.sample >= 0 {
			position[h.sample] = int64(h.seq.length())
		}
	}
	if same, err := s.keepSampling(in); same || err != nil {
		return err
	}
	temperature, err := in.Float32s("temperature")
	if err != nil {
		return err
	}
	seed, err := in.Int64s("seed")
	if err != nil {
		return err
	}
	var topP []float32
	if s.variant >= nucleus {
		if topP, err = in.Float32s("top_p"); err != nil {
			return err
		}
	}
	var topK []int64
	if s.variant >= withTopK {
		if topK, err = in.Int64s("top_k"); err != nil {
			return err
		}
	}
	var minP []float32
	if s.variant >= withMinP {
		if minP, err = in.Float32s("min_p"); err != nil {
			return err
		}
	}
	for i := range s.chunks {
		h := &s.chunks[i]
		if h.sample < 0 {
			continue
		}
		p := &h.seq.sampling
		temperature[h.sample] = float32(p.Temperature)
		if h.seq.variant == greedy {
			temperature[h.sample] = 0
		}
		seed[h.sample] = int64(p.Seed)
		if topP != nil {
			topP[h.sample] = float32(p.TopP)
			if p.TopP > 0 { // a value that f32 rounds to 0 would keep all tokens instead of the fewest
				topP[h.sample] = max(topP[h.sample], leastPart)
			}
		}
		if topK != nil {
			topK[h.sample] = int64(p.TopK)
		}
		if minP != nil {
			minP[h.sample] = float32(p.MinP)
		}
	}
	return nil
}

// keepSampling keeps the previous step's sampling parameters on the device if the step was advanced, not
// built, and reports whether it kept all of them.
func (s *step) keepSampling(in piecewise.Inputs) (bool, error) {
	names := [...]string{"temperature", "seed", "top_p", "top_k", "min_p"} // variant i needs names[:i+1], except greedy, which needs no parameter
	same := s.again
	for i := 0; same && i <= int(s.variant); i++ {
		var err error
		if same, err = in.Keep(names[i]); err != nil {
			return false, err
		}
	}
	return same, nil
}

// run calls Func.Run and counts its time. The end of the context ends a run only on a
// [device.Interruptible] stream; see Step.
func (r *Runner) run(f *piecewise.Func, in piecewise.Inputs, meta any) (piecewise.Results, error) {
	start := time.Now()
	res, err := f.Run(r.runs, in, meta)
	r.busy += time.Since(start)
	return res, err
}

// flagged returns the indices out of range of a finished step as a [device.IndexError], and ends all
// requests of the step with it: a flag names an op, not a row, so every result may be wrong.
//
// There is one exception. If an earlier fault ended a request while the step was in flight, the
// step still has that request's rows, and they are the cause of the flags. Then flagged returns nil,
// and the other requests of the step are computed again.
func (r *Runner) flagged(s *step) error {
	var err error
	if s.moved {
		err = s.faults.Err()
	}
	if err == nil && !s.complete {
		err = r.backend.Faults()
	}
	if err == nil {
		return nil
	}
	if slices.ContainsFunc(s.chunks, func(h chunk) bool { return h.seq.place == ended && errors.Is(h.seq.err, device.ErrIndex) }) {
		s.distrust(nil)
		for i := range s.chunks {
			s.chunks[i].sample = -1
			r.recompute(s.chunks[i].seq)
		}
		return nil
	}
	err = fmt.Errorf("runner: a step of %d rows and %d requests: %w", s.rows, len(s.chunks), err)
	r.fail(s, err)
	return err
}

// forgetFaults clears the fault flags when no step is in flight. They were reported, or belong to a
// step that was issued in part and has another error.
func (r *Runner) forgetFaults(inPart bool) error {
	if inPart {
		if err := r.pool.Stream().Synchronize(); err != nil {
			return err
		}
	}
	if r.backend.Faults() == nil {
		return nil
	}
	return errors.Join(r.steps[0].faults.Take(), r.pool.Stream().Synchronize())
}

// collect waits for a step, appends the sampled tokens to their sequences, and ends the requests that
// are complete. fault is an error that has already ended the step's requests. If err is not nil, the
// step could not be read and its requests are unchanged.
func (r *Runner) collect(s *step) (fault, err error) {
	start := time.Now()
	err = s.done.Synchronize()
	if err == nil && s.moved && r.inFlight == nil { // the next step failed, perhaps before separate recorded done again
		err = r.pool.Stream().Synchronize()
	}
	now := time.Now()
	r.waited += now.Sub(start)
	r.busy += r.waited
	if err != nil {
		return nil, err
	}
	if fault := r.flagged(s); fault != nil {
		return fault, nil
	}
	r.takePromptScores(s)
	ids := unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(s.ids.Bytes()))), r.opts.MaxSequences)
	for i := range s.chunks {
		h := &s.chunks[i]
		q := h.seq
		if h.sample < 0 || q.place == ended {
			continue
		}
		id := ids[h.sample]
		if id == notANumber {
			r.finish(q, Failed, ErrNotANumber)
			continue
		}
		q.ids, q.pending = append(q.ids, id), q.pending-1
		r.count.generated++
		r.takeScore(s, h, id)
		r.generatedAt(q, now)
		heard := q.heard.Load()
		if heard {
			q.tell()
			if q.onToken != nil {
				q.onToken(id)
			}
		}
		switch {
		case heard && slices.Contains(q.stop, id):
			r.finish(q, Stopped, nil)
		case len(q.ids) == int(q.limit) && q.full:
			r.finish(q, MaxPosition, nil)
		case len(q.ids) == int(q.limit):
			r.finish(q, Exhausted, nil)
		}
	}
	return nil, nil
}
