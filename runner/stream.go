package runner

import (
	"context"
	"iter"
)

// Tokens returns an iterator over the tokens of the answer, from the first, as they are
// generated. The last pair of a request that failed or ended early has its error
// (see [Sequence.Err]), and that of a context that ended its cause; the id is then -1. The
// steps never wait for a reader: what it has not read yet stays in the sequence, which has
// no more than Request.MaxNew tokens. One goroutine at a time may range; a second
// loop starts again from the first token. Leaving the loop does not end the request.
func (s *Sequence) Tokens(ctx context.Context) iter.Seq2[int32, error] {
	return func(yield func(int32, error) bool) {
		s.heard.Store(true)
		for at := len(s.prompt); ; {
			// Looked at before the tokens: those of a request that has ended are all there.
			ended := s.finished()
			for _, id := range s.known(at, ended) {
				at++
				if !yield(id, nil) {
					return
				}
			}
			if ended {
				if s.err != nil {
					yield(-1, s.err)
				}
				return
			}
			select {
			case <-s.more:
			case <-s.done:
			case <-ctx.Done():
				yield(-1, context.Cause(ctx))
				return
			}
		}
	}
}

// known returns the ids from at on that a reader may read.
func (s *Sequence) known(at int, ended bool) []int32 {
	if ended {
		return s.ids[at:]
	}
	told := s.told.Load() // before the buffer, which was there first
	if b := s.buffer.Load(); b != nil {
		return (*b)[at:told]
	}
	return nil // it waits for its first step, or it is ending and the rest follows then
}

// tell lets readers read all ids that the host knows.
func (s *Sequence) tell() {
	s.told.Store(int32(len(s.ids)))
	select {
	case s.more <- struct{}{}:
	default:
	}
}
