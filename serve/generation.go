package serve

import (
	"context"
	"slices"
	"sync"

	"pwc/runner"
	"pwc/tokenizer"
)

// part is a token of a choice as text, which may be empty, and at the end the text that was
// held back and why the choice ended.
type part struct {
	choice int
	text   string
	finish string // "" until the end
	tokens int    // of the choice, at the end
	err    error  // it failed

	scores []runner.TokenLogprobs // of the token, if they were asked for
	prompt []runner.TokenLogprobs // of the prompt, at the end
}

// generation is the choices of one request.
type generation struct {
	parts chan part
	wait  sync.WaitGroup
}

// start submits the choices of a prompt. All of them end when ctx does. Nothing is left
// running when it returns an error.
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
		// A token without text of its own is a part, too: clients time tokens by events.
		p := part{text: c.next(id)}
		if l, ok := seq.Logprobs(c.tokens - 1); ok {
			p.scores = []runner.TokenLogprobs{l}
		}
		if !slices.Contains(ends, id) && !send(p) {
			return // the context ends the sequence, too
		}
		if c.stopped() {
			seq.Stop()
			break
		}
	}
	<-seq.Done()
	send(part{prompt: seq.PromptLogprobs(), text: c.rest(), finish: finishReason(seq.Reason(), c.stopped()), tokens: c.tokens})
}

// following is the text of a choice as far as it is known.
type following struct {
	text   *tokenizer.Stream
	stop   *tokenizer.StopStrings
	ends   []int32 // ids that end the answer: they are no text
	tokens int
}

// next takes a token and returns the text that is certain by now.
func (c *following) next(id int32) string {
	c.tokens++
	if slices.Contains(c.ends, id) {
		return ""
	}
	return c.stop.Next(c.text.Next(id))
}

// stopped reports whether a stop string ended the text.
func (c *following) stopped() bool { return c.stop.Found() != "" }

// rest returns the text that is certain at the end.
func (c *following) rest() string {
	if c.stopped() {
		return ""
	}
	return c.stop.Next(c.text.Flush()) + c.stop.Flush()
}
