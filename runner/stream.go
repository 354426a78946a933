package runner

import (
	"context"
	"iter"
)

// Tokens returns an iterator over the tokens of the answer as they are generated, from the first one.
// If the request ends with an error ([Sequence.Err]) or ctx ends, the last pair is the id -1 with the
// error of the request or the cause of ctx. Steps never wait for a reader: the sequence keeps tokens
// that were not read. Only one goroutine may iterate at a time. A second loop starts again at the
// first token. Leaving the loop does not end the request.
func (s *Sequence) Tokens(ctx context.Context) iter.Seq2[int32, error] {
	return func(yield func(int32, error) bool) {
		s.heard.Store(true)
		for at := len(s.prompt); ; {
			// finished comes before known: after the end, all tokens can be read.
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

// known returns the ids that a reader may read and has not read yet. seen is the number of ids before
// these. ended says whether the request has ended.
func (s *Sequence) known(seen int, ended bool) []int32 {
	if ended {
		return s.ids[seen:]
	}
	told := s.told.Load() // before buffer, which is stored first
	if b := s.buffer.Load(); b != nil {
		return (*b)[seen:told]
	}
	return nil // the request has not run, or it is ending and the next call returns the rest
}

// tell makes all known ids visible to readers.
func (s *Sequence) tell() {
	s.told.Store(int32(len(s.ids)))
	select {
	case s.more <- struct{}{}:
	default:
	}
}
