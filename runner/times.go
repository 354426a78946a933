package runner

import "time"

// Times are the times of events of a request. An event that did not happen is zero.
type Times struct {
	Queued     time.Time // Submit accepted it
	Scheduled  time.Time // the step that began its prompt was scheduled
	FirstToken time.Time // the host read its first token
	LastToken  time.Time // the host read its last token
	Ended      time.Time // it ended, just before Done was closed
}

// times has the fields of Times while the request runs.
type times struct{ queued, scheduled, first, last, ended time.Time }

// Times returns the times of a request that has ended; before that, only Queued is set.
func (s *Sequence) Times() Times {
	if !s.finished() {
		return Times{Queued: s.times.queued}
	}
	return Times{Queued: s.times.queued, Scheduled: s.times.scheduled, FirstToken: s.times.first, LastToken: s.times.last, Ended: s.times.ended}
}

// generatedAt records the time at which the host read a token, for [Times] and for an observer.
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
