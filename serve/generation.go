package serve

import (
	"context"
	"slices"
	"sync"

	"pwc/runner"
	"pwc/tokenizer"
)

// part is one token of a choice with its text, which may be empty. Ids that end the answer have no
// part. The last part of a choice has no token: it has the text that was held back and the finish
// reason, or an error.
type part struct {
	choice int
	text   string
	finish string // "" until the end
	tokens int    // of the choice, at the end
	err    error  // the choice failed

	scores []runner.TokenLogprobs // of the token, if the request has logprobs
	prompt []runner.TokenLogprobs // of the prompt, at the end
}

// generation is the choices of one request.
type generation struct {
	parts chan part
	wait  sync.WaitGroup
}

// start submits the choices of a prompt. All of them end with ctx. If start returns an error, some may
// run: the caller must cancel ctx.
func (s *Server) start(ctx context.Context, q runner.Request, n, first int, stops []string, out *generation) error {
	for i := range n {
		seq, err := s.o.Runner.Submit(ctx, choice(q, i))
		if err != nil {
			return err
		}
		out.wait.Go(func() {
			s.follow(ctx, first+i, seq, q.Stop, stops, out.parts)
			s.traceChoice(ctx, first+i, seq)
		})
	}
	return nil
}

// follow turns the tokens of a choice into text until it ends.
func (s *Server) follow(ctx context.Context, index int, seq *runner.Sequence, ends []int32, stops []string, out chan<- part) {
	send := func(p part) bool {
		p.choice = index
		select {
		case out <- p:
			return true
		case <-ctx.Done():
			return false
		}
	}
	c := following{text: s.o.Tokenizer.Stream(false), stop: tokenizer.NewStopStrings(stops...), ends: ends}
	for id, err := range seq.Tokens(ctx) {
		if err != nil {
			send(part{err: err})
			return
		}
		// A part for each token, also without text: clients measure times of tokens by events.
		p := part{text: c.next(id)}
		if l, ok := seq.Logprobs(c.tokens - 1); ok {
			p.scores = []runner.TokenLogprobs{l}
		}
		if !slices.Contains(ends, id) && !send(p) {
			return // the context also ends the sequence
		}
		if c.stopped() {
			seq.Stop()
			break
		}
	}
	<-seq.Done()
	send(part{prompt: seq.PromptLogprobs(), text: c.rest(), finish: finishReason(seq.Reason(), c.stopped()), tokens: c.tokens})
}

// following decodes the tokens of a choice.
type following struct {
	text   *tokenizer.Stream
	stop   *tokenizer.StopStrings
	ends   []int32 // ids that end the answer and have no text
	tokens int
}

// next takes a token and returns the text that later tokens cannot change.
func (c *following) next(id int32) string {
	c.tokens++
	if slices.Contains(c.ends, id) {
		return ""
	}
	return c.stop.Next(c.text.Next(id))
}

// stopped reports whether a stop string ended the text.
func (c *following) stopped() bool { return c.stop.Found() != "" }

// rest returns the text that was held back, at the end.
func (c *following) rest() string {
	if c.stopped() {
		return ""
	}
	return c.stop.Next(c.text.Flush()) + c.stop.Flush()
}
