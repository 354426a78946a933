package runner

import "time"

// Times are the moments of a request. Those that did not happen are zero.
type Times struct {
	Queued     time.Time // Submit accepted it
	Scheduled  time.Time // the step that began its prompt was scheduled
	FirstToken time.Time // the host read its first token
	LastToken  time.Time // and its last
	Ended      time.Time // Done was closed
}

// times are Times as the steps write them.
type times struct{ queued, scheduled, first, last, ended time.Time }

// Times returns the moments of a request that has ended; before that only Queued.
func (s *Sequence) Times() Times {
	if !s.finished() {
		return Times{Queued: s.times.queued}
	}
	return Times{Queued: s.times.queued, Scheduled: s.times.scheduled, FirstToken: s.times.first, LastToken: s.times.last, Ended: s.times.ended}
}

// generatedAt notes the moment of a token, and what an observer is told of it.
func (r *Runner) generatedAt(s *Sequence, now time.Time) {
	if r.opts.Observer != nil {
		if s.times.first.IsZero() {
			r.firsts = append(r.firsts, now.Sub(s.times.queued))
			r.prompted += len(s.prompt)
		} else {
			r.intervals = append(r.intervals, now.Sub(s.times.last))
		}
	}
	if s.times.first.IsZero() {
		s.times.first = now
	}
	s.times.last = now
}
