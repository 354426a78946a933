package runner

import (
	"errors"
	"math"

	"pwc/piecewise"
	"pwc/runtime/device"
)

// slots are the rows of the states with counts and biases of tokens. A request with penalties or biases
// has one while it runs.
type slots struct {
	free   []int32 // take returns the last
	states [len(adjustStates)]device.Buffer
	row    int64 // bytes of a slot in each of them

	at         []int64 // indices of elements that collect found
	count, add []float32
	seen       map[int32]float32 // scratch: the counts of a sequence's tokens
	vocabulary int64
}

func (r *Runner) newSlots() (s slots, err error) {
	for i, name := range adjustStates {
		if s.states[i], err = r.backend.State(name); err != nil {
			return s, err
		}
	}
	s.vocabulary, s.row = r.lm.vocabulary, 4*r.lm.vocabulary
	for i := r.opts.MaxAdjusted - 1; i >= 0; i-- {
		s.free = append(s.free, int32(i))
	}
	s.seen = map[int32]float32{}
	return s, nil
}

// take gives a sequence a slot, and reports whether there was one.
func (s *slots) take(q *Sequence) bool {
	last := len(s.free) - 1
	if last < 0 {
		return false
	}
	q.slot, q.stale = s.free[last], true
	s.free = s.free[:last]
	return true
}

// give frees the slot of a sequence, if it has one.
func (s *slots) give(q *Sequence) {
	if q.slot >= 0 {
		s.free = append(s.free, q.slot)
		q.slot = -1
	}
}

// collect lists the elements of a sequence's slot that are not 0 in the two states that the host writes.
// The host must know all tokens of the sequence.
func (s *slots) collect(q *Sequence) {
	clear(s.seen)
	s.at, s.count, s.add = s.at[:0], s.count[:0], s.add[:0]
	for i, id := range q.ids {
		if i < len(q.prompt) {
			s.seen[id] = inPrompt
			continue
		}
		s.seen[id] = float32(math.Floor(float64(s.seen[id]))) + 1
	}
	first := int64(q.slot) * s.vocabulary
	for id, n := range s.seen {
		s.at, s.count, s.add = append(s.at, first+int64(id)), append(s.count, n), append(s.add, float32(q.sampling.LogitBias[id]))
	}
	for id, b := range q.sampling.LogitBias {
		if _, ok := s.seen[id]; !ok {
			s.at, s.count, s.add = append(s.at, first+int64(id)), append(s.count, 0), append(s.add, float32(b))
		}
	}
}

// renew writes the slot of a sequence from the tokens that the host knows. These are all of its
// tokens: a slot gets stale only when its sequence joins or a step fails, and then no token of the
// sequence is in flight when the next step samples it.
func (r *Runner) renew(q *Sequence) error {
	s := &r.slots
	for _, state := range s.states {
		b := device.Buffer{Memory: state.Memory, Offset: state.Offset + int64(q.slot)*s.row, Size: s.row}
		if err := r.pool.Stream().Fill(b, 0); err != nil {
			return err
		}
	}
	s.collect(q)
	for from := 0; from < len(s.at); from += r.opts.MaxTokens {
		to := min(from+r.opts.MaxTokens, len(s.at))
		in, err := r.marks(int64(to - from))
		if err != nil {
			return err
		}
		at, err := in.Int64s("at")
		if err != nil {
			return err
		}
		count, err := in.Float32s("count")
		if err != nil {
			return err
		}
		bias, err := in.Float32s("bias")
		if err != nil {
			return err
		}
		copy(at, s.at[from:to])
		copy(count, s.count[from:to])
		copy(bias, s.add[from:to])
		if _, err := r.run(r.mark, in, nil); err != nil {
			return err
		}
	}
	return nil
}

// marks returns inputs of @runner_mark. If all staging slots of @runner_mark are in use, marks waits for the
// device.
func (r *Runner) marks(n int64) (piecewise.Inputs, error) {
	in, err := r.mark.Inputs(n)
	if errors.Is(err, piecewise.ErrSlotBusy) {
		if err := r.pool.Stream().Synchronize(); err != nil {
			return in, err
		}
		in, err = r.mark.Inputs(n)
	}
	return in, err
}

// trustCounts marks the slots of the sequences that an issued step samples as valid.
func (s *step) trustCounts() {
	for i := range s.chunks {
		if h := &s.chunks[i]; h.sample >= 0 {
			h.seq.stale = false
		}
	}
}

// distrustCounts marks the slots of a step's sequences as stale, because it is unknown how much of the
// step ran.
func (s *step) distrustCounts() {
	for i := range s.chunks {
		s.chunks[i].seq.stale = true
	}
}
