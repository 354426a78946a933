package runner

import "pwc/piecewise"

// LogitsProcessor masks the vocabulary, for structured output.
//
// After a step that samples for a request with a LogitsProcessor, the runner issues the next step only
// when the host has read the tokens, because Process gets them. [Stats.Processed] counts these steps.
// Other steps are issued while the device runs the previous one.
type LogitsProcessor interface {
	// Process is called before each token, on the goroutine that steps, and must return quickly. ids
	// are prompt and answer; Process must not keep or write them. Process removes tokens from
	// allowed, which has those that Sampling.Allowed and Request.MinNew allow. If no token is left,
	// the request ends with [ErrNotANumber]. If a step is interrupted or a token is computed again,
	// Process is called again with the same ids.
	Process(ids []int32, allowed Mask)
}

// Mask is a set of tokens: one bit for each token of the vocabulary.
type Mask struct {
	words      []int32
	vocabulary int
}

// Len returns the size of the vocabulary.
func (m Mask) Len() int { return m.vocabulary }

// Allowed reports whether an id is in the set. An id outside the vocabulary is not.
func (m Mask) Allowed(id int32) bool {
	return m.has(id) && m.words[id/maskBits]>>(id%maskBits)&1 != 0
}

// Forbid removes an id from the set. It ignores an id outside the vocabulary.
func (m Mask) Forbid(id int32) {
	if m.has(id) {
		m.words[id/maskBits] &^= 1 << (id % maskBits)
	}
}

// ForbidAllBut removes all ids from the set that are not in the list. It adds no id.
func (m Mask) ForbidAllBut(ids []int32) {
	kept := make([]int32, 0, len(ids))
	for _, id := range ids {
		if m.Allowed(id) {
			kept = append(kept, id)
		}
	}
	clear(m.words)
	for _, id := range kept {
		m.allow(id)
	}
}

// Intersect removes all ids from the set that are not in a bitmap. Bit j of word i is token 32·i + j, as
// in the bitmaps of xgrammar and llguidance. Words beyond the end of the bitmap count as 0.
func (m Mask) Intersect(bitmap []int32) {
	for i := range m.words {
		if i < len(bitmap) {
			m.words[i] &= bitmap[i]
		} else {
			m.words[i] = 0
		}
	}
}

func (m Mask) has(id int32) bool { return id >= 0 && int(id) < m.vocabulary }

func (m Mask) allow(id int32) { m.words[id/maskBits] |= 1 << (id % maskBits) }

// fill computes the mask for the next token of a sequence.
func (m Mask) fill(q *Sequence) {
	if q.sampling.Allowed != nil {
		clear(m.words)
		for _, id := range q.sampling.Allowed {
			m.allow(id)
		}
	} else {
		m.all()
	}
	if q.young() {
		for _, id := range q.stop {
			m.Forbid(id)
		}
	}
	if p := q.request.Processor; p != nil {
		p.Process(q.ids[:len(q.ids):len(q.ids)], m)
	}
}

func (m Mask) all() {
	for i := range m.words {
		m.words[i] = -1
	}
}

// young reports whether the next token must not end the sequence, because of Request.MinNew.
func (s *Sequence) young() bool { return s.length()-len(s.prompt) < s.request.MinNew }

// masksChange reports whether a sequence's mask may differ from that of its previous step.
func (s *Sequence) masksChange() bool {
	return s.request.Processor != nil || s.length()-len(s.prompt) == s.request.MinNew
}

// runAdjust adjusts the logits of a step's rows in place.
func (r *Runner) runAdjust(s *step, logits piecewise.Result) (piecewise.Result, error) {
	none := piecewise.Result{}
	for i := range s.chunks {
		if h := &s.chunks[i]; h.sample >= 0 && h.seq.slot >= 0 && h.seq.stale {
			if err := r.renew(h.seq); err != nil {
				return none, err
			}
		}
	}
	in, err := r.adjust.Inputs(int64(s.samples))
	if err != nil {
		return none, err
	}
	in.SetUniform(s.uniform)
	if err := in.SetResult("logits", logits); err != nil {
		return none, err
	}
	if err := s.fillAdjust(in); err != nil {
		return none, err
	}
	if err := s.giveMasks(in); err != nil {
		return none, err
	}
	res, err := r.run(r.adjust, in, nil)
	if err != nil {
		return none, err
	}
	return res.At(0), nil
}

// fillAdjust fills the slots and penalties of a step's rows, unless the device still has them from the
// previous step.
func (s *step) fillAdjust(in piecewise.Inputs) error {
	same := s.again
	for _, name := range [...]string{"slot", "repetition", "frequency", "presence"} {
		if !same {
			break
		}
		var err error
		if same, err = in.Keep(name); err != nil {
			return err
		}
	}
	if same {
		return nil
	}
	slot, err := in.Int64s("slot")
	if err != nil {
		return err
	}
	repetition, err := in.Float32s("repetition")
	if err != nil {
		return err
	}
	frequency, err := in.Float32s("frequency")
	if err != nil {
		return err
	}
	presence, err := in.Float32s("presence")
	if err != nil {
		return err
	}
	for i := range s.chunks {
		h := &s.chunks[i]
		if h.sample < 0 {
			continue
		}
		p := &h.seq.sampling
		slot[h.sample], frequency[h.sample], presence[h.sample] = int64(h.seq.slot), float32(p.FrequencyPenalty), float32(p.PresencePenalty)
		if repetition[h.sample] = float32(p.RepetitionPenalty); p.RepetitionPenalty == 0 {
			repetition[h.sample] = 1
		}
	}
	return nil
}

// fillMasks computes the masks of a step's rows, unless they are those of the previous step. It calls
// the processors, once for all ranks.
func (r *Runner) fillMasks(s *step) {
	s.sameMasks = s.again
	for i := range s.chunks {
		s.sameMasks = s.sameMasks && !s.chunks[i].seq.masksChange()
	}
	n := int(maskWords(r.lm.vocabulary))
	if r.masks == nil {
		r.masks = make([]int32, r.opts.MaxSequences*n)
	}
	if s.masks = r.masks; s.sameMasks {
		return
	}
	for i := range s.chunks {
		if h := &s.chunks[i]; h.sample >= 0 {
			Mask{s.masks[h.sample*n:][:n], int(r.lm.vocabulary)}.fill(h.seq)
		}
	}
}

// giveMasks fills the mask parameter of @runner_adjust.
func (s *step) giveMasks(in piecewise.Inputs) error {
	if s.sameMasks {
		if kept, err := in.Keep("allowed"); kept || err != nil {
			return err
		}
	}
	words, err := in.Int32s("allowed")
	if err != nil {
		return err
	}
	copy(words, s.masks)
	return nil
}

// runCount counts the tokens that a step samples.
func (r *Runner) runCount(s *step) error {
	in, err := r.raise.Inputs(int64(s.samples))
	if err != nil {
		return err
	}
	in.SetUniform(s.uniform)
	if err := in.SetResult("sampled", r.chosen.At(sampled)); err != nil {
		return err
	}
	kept := false
	if s.again {
		if kept, err = in.Keep("slot"); err != nil {
			return err
		}
	}
	if !kept {
		slot, err := in.Int64s("slot")
		if err != nil {
			return err
		}
		for i := range s.chunks {
			if h := &s.chunks[i]; h.sample >= 0 {
				slot[h.sample] = int64(h.seq.slot)
			}
		}
	}
	_, err = r.run(r.raise, in, nil)
	return err
}
