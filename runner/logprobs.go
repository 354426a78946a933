package runner

import (
	"fmt"
	"math"
	"unsafe"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/piecewise"
)

// MaxLogprobs is the largest Logprobs.Top, as in OpenAI's API and as vLLM's default.
const MaxLogprobs = 20

// Logprob is the log probability of a token.
type Logprob struct {
	ID      int32
	Logprob float32 // natural logarithm; -Inf if Sampling.Allowed, MinNew or Processor masks the token
}

// TokenLogprobs is the log probability of a token of a sequence, and those of the most probable
// tokens at its index.
type TokenLogprobs struct {
	Logprob
	Top []Logprob // in descending order; of equal ones the lower id comes first
}

// Logprobs says which log probabilities a request asks for. Those of the answer are of the logits
// after biases, penalties and masks, before temperature, top-k, top-p and min-p. Those of a prompt
// are of the model's own logits.
type Logprobs struct {
	Answer bool // of each token of the answer
	Prompt bool // of each token of the prompt but the first
	Top    int  // number of most probable tokens to return for each token, at most MaxLogprobs and the vocabulary
}

func (l *Logprobs) check(vocabulary int64) error {
	most := min(MaxLogprobs, vocabulary)
	if l.Top < 0 || int64(l.Top) > most {
		return fmt.Errorf("Logprobs.Top is %d: it must be in [0, %d]", l.Top, most)
	}
	return nil
}

// scores are the log probabilities of a sequence. The goroutine that steps writes those of a
// token before readers get the token.
type scores struct {
	Logprobs
	answer []TokenLogprobs // as long as the whole answer can be, once the sequence runs
	prompt []TokenLogprobs // of the prompt's length
	scored int             // known elements of prompt, with element 0, which has no log probability
}

// newScores returns nil for a request without Logprobs.
func newScores(q *Request) *scores {
	if !q.Logprobs.Answer && !q.Logprobs.Prompt {
		return nil
	}
	s := &scores{Logprobs: q.Logprobs, scored: 1}
	if s.Prompt {
		s.prompt = make([]TokenLogprobs, len(q.Prompt))
		s.prompt[0].ID = q.Prompt[0]
	}
	return s
}

// Logprobs returns the log probabilities of token i of the answer, counted from 0. ok is false if
// Request.Logprobs.Answer is false, and for an i outside the answer. While the sequence runs, the
// answer ends at the last token that [Sequence.Tokens] can give.
func (s *Sequence) Logprobs(i int) (l TokenLogprobs, ok bool) {
	if s.scores == nil || !s.scores.Answer || i < 0 || i >= s.readable()-len(s.prompt) {
		return TokenLogprobs{}, false
	}
	return s.scores.answer[i], true
}

// PromptLogprobs returns one element for each token of the prompt. Element 0 has an ID and no log
// probabilities. It returns nil if Request.Logprobs.Prompt is false, and until the first token of
// the answer can be read.
func (s *Sequence) PromptLogprobs() []TokenLogprobs {
	if s.scores == nil || s.readable() <= len(s.prompt) {
		return nil
	}
	return s.scores.prompt
}

// readable returns how many tokens of prompt and answer a reader may read.
func (s *Sequence) readable() int {
	if s.finished() {
		return len(s.ids)
	}
	return int(s.told.Load())
}

// The functions that compute log probabilities, and their results.
const (
	logprobsFunc       = "runner_logprobs"
	promptLogprobsFunc = "runner_prompt_logprobs"

	scoreOfToken = 0 // f32[M]
	scoresOfTop  = 1 // f32[M, K]
	idsOfTop     = 2 // i32[M, K]
)

// logprobs emits @runner_logprobs, which takes its tokens from the results of sampling, and
// @runner_prompt_logprobs, which takes them from the host.
func (s *sampler) logprobs() {
	s.score(logprobsFunc, "sampled", dtype.I32)
	s.score(promptLogprobsFunc, "token", dtype.I64)
}

func (s *sampler) score(name, token string, dt dtype.DType) {
	f := s.start(name)
	chosen := f.column(s, token, dt)
	ids := f.f.Op1("iota", nil, ir.DimsAttr("shape", dim.Const(1), dim.Const(s.vocabulary)), ir.DTypeAttr(dt), ir.IntAttr("axis", 1))
	top := f.row1("max", f.logits)
	sum := f.row1("sum", f.f.Op1("exp", []ir.Value{f.op("sub", f.logits, top)}))
	whole := f.op("add", top, f.f.Op1("log", []ir.Value{sum}))
	own := f.row1("sum", f.where(f.is(ids, "eq", chosen), f.logits, f.float(0)))
	best := f.f.Op("topk", []ir.Value{f.logits}, ir.IntAttr("k", s.top()))
	own = f.f.Op1("reshape", []ir.Value{f.op("sub", own, whole)}, ir.DimsAttr("shape", s.rows))
	f.f.Return(own, f.op("sub", best[0], whole), best[1])
}

// top returns the number of most probable tokens that the functions find.
func (s *sampler) top() int64 { return min(MaxLogprobs, s.vocabulary) }

// promptRow is a row of a step that scores a token of a prompt.
type promptRow struct {
	chunk int
	row   int32
	at    int32 // index of the token in the prompt; -1: the score is discarded
}

// score notes the tokens of a chunk for which the step computes log probabilities.
func (s *step) score(chunk int) {
	h := &s.chunks[chunk]
	p := h.seq.scores
	if p == nil {
		return
	}
	s.scored = s.scored || h.sample >= 0 && p.Answer
	if !p.Prompt {
		return
	}
	for j := range h.n { // row j predicts the token after it
		if at := h.seq.computed + j + 1; at >= p.scored && at < len(h.seq.prompt) {
			s.prompts = append(s.prompts, promptRow{chunk, int32(h.row + j), int32(at)})
		}
	}
}

// scoreRows are the rows of a step's host memory for log probabilities: those that are
// sampled, then those of prompts.
type scoreRows struct {
	top  int // K
	rows int
	data []byte
}

// scoreBytes returns the bytes of a step's scoreRows. A row has the log probability of its token,
// and the log probabilities and ids of the top tokens.
func (o *Options) scoreBytes(top int64) int64 {
	return 4 * int64(o.MaxSequences+o.MaxTokens) * (1 + 2*top)
}

// part returns the bytes of rows [at, at+n) of a result.
func (s *scoreRows) part(result, at, n int) []byte {
	switch result {
	case scoreOfToken:
		return s.data[4*at : 4*(at+n)]
	case scoresOfTop:
		return s.data[4*(s.rows+at*s.top) : 4*(s.rows+(at+n)*s.top)]
	}
	return s.data[4*(s.rows*(1+s.top)+at*s.top) : 4*(s.rows*(1+s.top)+(at+n)*s.top)]
}

// token returns a row: the log probability of its token, which is id, and the n most probable tokens.
func (s *scoreRows) token(row int, id int32, n int) TokenLogprobs {
	own := s.part(scoreOfToken, row, 1)
	out := TokenLogprobs{Logprob: Logprob{id, *(*float32)(unsafe.Pointer(&own[0]))}, Top: make([]Logprob, n)}
	values, ids := s.part(scoresOfTop, row, 1), s.part(idsOfTop, row, 1)
	for i := range out.Top {
		out.Top[i] = Logprob{*(*int32)(unsafe.Pointer(&ids[4*i])), *(*float32)(unsafe.Pointer(&values[4*i]))}
	}
	return out
}

// runScores runs one of the two functions on n rows of logits, and starts the copy of its results
// to rows [first, first+n) of the step's scoreRows. give fills the tokens whose log probabilities are
// wanted.
func (r *Runner) runScores(s *step, f *piecewise.Func, logits piecewise.Result, first, n int, give func(in piecewise.Inputs) error) error {
	in, err := f.Inputs(int64(n))
	if err != nil {
		return err
	}
	in.SetUniform(s.uniform)
	if err := in.SetResult("logits", logits); err != nil {
		return err
	}
	if err := give(in); err != nil {
		return err
	}
	out, err := r.run(f, in, nil)
	if err != nil {
		return err
	}
	rows := s.scoreRows(r)
	for result := range 3 {
		if err := out.At(result).StartCopy(rows.part(result, first, n)); err != nil {
			return err
		}
	}
	return nil
}

func (s *step) scoreRows(r *Runner) *scoreRows {
	return &scoreRows{int(min(MaxLogprobs, r.lm.vocabulary)), r.opts.MaxSequences + r.opts.MaxTokens, s.scores.Bytes()}
}

// runLogprobs scores the tokens that a step sampled.
func (r *Runner) runLogprobs(s *step, logits piecewise.Result) error {
	return r.runScores(s, r.logprobs, logits, 0, s.samples, func(in piecewise.Inputs) error {
		return in.SetResult("sampled", r.chosen.At(sampled))
	})
}

// runPromptLogprobs scores tokens of prompts, in parts of at most MaxSequences rows, which @logits
// takes.
func (r *Runner) runPromptLogprobs(s *step, hidden piecewise.Results) error {
	for at := 0; at < len(s.prompts); at += r.opts.MaxSequences {
		part := s.prompts[at:min(at+r.opts.MaxSequences, len(s.prompts))]
		logits, err := r.runLogits(s, hidden, len(part), part)
		if err != nil {
			return err
		}
		err = r.runScores(s, r.promptLogprobs, logits, r.opts.MaxSequences+at, len(part), func(in piecewise.Inputs) error {
			token, err := in.Int64s("token")
			if err != nil {
				return err
			}
			for i, p := range part {
				token[i] = int64(s.chunks[p.chunk].seq.prompt[p.at])
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// takePromptScores copies the prompt scores of a finished step to its sequences.
func (r *Runner) takePromptScores(s *step) {
	if len(s.prompts) == 0 {
		return
	}
	rows := s.scoreRows(r)
	for i, p := range s.prompts {
		q := s.chunks[p.chunk].seq
		if q.place == ended || int(p.at) != q.scores.scored {
			continue
		}
		l := rows.token(r.opts.MaxSequences+i, q.prompt[p.at], q.scores.Top)
		if math.IsNaN(float64(l.Logprob.Logprob)) {
			r.finish(q, Failed, ErrNotANumber)
			continue
		}
		q.scores.prompt[p.at] = l
		q.scores.scored++
	}
}

// distrust discards the step's prompt scores of q, or of all sequences if q is nil. A later step
// computes them again.
func (s *step) distrust(q *Sequence) {
	for i := range s.prompts {
		if p := &s.prompts[i]; q == nil || s.chunks[p.chunk].seq == q {
			p.at = -1
		}
	}
}

// takeScore copies the log probabilities of a sequence's last token from the row that sampled it.
func (r *Runner) takeScore(s *step, h *chunk, id int32) {
	if p := h.seq.scores; p != nil && p.Answer {
		p.answer[len(h.seq.ids)-len(h.seq.prompt)-1] = s.scoreRows(r).token(h.sample, id, p.Top)
	}
}
