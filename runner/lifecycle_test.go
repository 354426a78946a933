package runner

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"pwc/piecewise"
)

// lifecycleOptions returns the options of a small runner.
func lifecycleOptions() Options {
	return Options{MaxSequences: 2, MaxTokens: 8, Blocks: 40, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}}
}

// A reader gets every token in order, if it begins early, late or again. A reader that stops does not
// delay requests.
func TestTokens(t *testing.T) {
	r := llama(t, lifecycleOptions())
	q := Request{Prompt: []int32{5, 7, 9}, MaxNew: 12}
	want := alone(t, r, []Request{q})[0][3:]
	s, other := submit(t, r, q), submit(t, r, q)
	read := func(s *Sequence, stall <-chan struct{}) <-chan []int32 {
		out := make(chan []int32, 1)
		go func() {
			var got []int32
			for id, err := range s.Tokens(context.Background()) {
				if err != nil {
					t.Error(err)
				}
				if got = append(got, id); len(got) == 2 && stall != nil {
					<-stall
				}
			}
			out <- got
		}()
		return out
	}
	stall := make(chan struct{})
	slow := read(s, stall)
	for range 5 {
		if _, err := r.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	late := read(other, nil)
	drain(t, r)
	if !s.finished() || !other.finished() {
		t.Fatal("a reader that stops delays the requests")
	}
	close(stall)
	for name, got := range map[string][]int32{"slow": <-slow, "late": <-late, "again": <-read(s, nil)} {
		if !slices.Equal(got, want) {
			t.Errorf("the %s reader got %v, want %v", name, got, want)
		}
	}
	for id := range s.Tokens(context.Background()) {
		if id != want[0] {
			t.Errorf("the first token is %d, want %d", id, want[0])
		}
		break
	}
}

// A reader gets the error of its request, or the cause of its own context.
func TestTokensEndWithErrors(t *testing.T) {
	r := llama(t, lifecycleOptions())
	s := submit(t, r, Request{Prompt: []int32{5}, MaxNew: 3})
	ctx, cancel := context.WithCancelCause(context.Background())
	mine := errors.New("mine")
	cancel(mine)
	last := func(ctx context.Context) (err error) {
		for _, err = range s.Tokens(ctx) {
		}
		return err
	}
	if err := last(ctx); !errors.Is(err, mine) {
		t.Errorf("%v, want the cause of the reader's context", err)
	}
	s.Cancel()
	drain(t, r)
	if err := last(context.Background()); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
}

// Stop ends a request without an error and with the reason Stopped, like a token of Request.Stop. The
// first call of Stop or Cancel determines the reason.
func TestStopAsked(t *testing.T) {
	for _, canceledFirst := range []bool{false, true} {
		r := llama(t, lifecycleOptions())
		s := submit(t, r, Request{Prompt: []int32{5}, MaxNew: 100})
		second := submit(t, r, Request{Prompt: []int32{5}, MaxNew: 100})
		if _, err := r.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
		if canceledFirst {
			s.Cancel()
		}
		s.Stop()
		second.Stop()
		s.Cancel()
		drain(t, r)
		want, name := Stopped, "stop"
		if canceledFirst {
			want, name = Canceled, "canceled"
		}
		if got := s.Reason(); got != want || (s.Err() == nil) == canceledFirst || len(s.IDs()) > 10 {
			t.Errorf("%v, %v with %d tokens, want %v", got, s.Err(), len(s.IDs()), want)
		}
		if got := second.Reason(); got != Stopped || r.Stats().Finished[name] == 0 || r.Stats().UsedBlocks != 0 {
			t.Errorf("%v, %+v", got, r.Stats())
		}
	}
}

// ends is an observer that compares the counters with the calls of Finished.
type ends struct {
	t    *testing.T
	r    *Runner
	told map[string]int64
}

func (e *ends) Stepped(Step) {}

func (e *ends) Finished(s *Sequence) {
	e.told[s.Reason().String()]++
	select {
	case <-s.Done():
		e.t.Error("Done is closed before Finished returns")
	default:
	}
	if got := e.r.Stats().Finished; !maps.Equal(got, e.told) {
		e.t.Errorf("the counters have ends %v, want %v", got, e.told)
	}
}

// The runner and its observer count the end of a request before Done is closed, so a goroutine that
// waits for Done finds it in the counters.
func TestDoneIsCounted(t *testing.T) {
	o, e := lifecycleOptions(), &ends{t: t, told: map[string]int64{}}
	o.Observer = e
	e.r = llama(t, o)
	for n := range 4 {
		submit(t, e.r, Request{Prompt: []int32{5}, MaxNew: n + 1})
	}
	submit(t, e.r, Request{Prompt: []int32{5}, MaxNew: 9}).Cancel()
	submit(t, e.r, Request{Prompt: []int32{5}, MaxNew: 9}).Stop()
	drain(t, e.r)
	if want := map[string]int64{"length": 4, "canceled": 1, "stop": 1}; !maps.Equal(e.told, want) {
		t.Errorf("ends %v, want %v", e.told, want)
	}
}

// order is an observer that keeps the tags of requests in the order of their ends.
type order struct{ tags []any }

func (o *order) Stepped(Step)         {}
func (o *order) Finished(s *Sequence) { o.tags = append(o.tags, s.Tag()) }

// Requests with lower values of Priority run first, those with equal values in the order of arrival. The
// last request in that order is preempted. No answer depends on the order.
func TestPriority(t *testing.T) {
	o, ends := lifecycleOptions(), &order{}
	o.MaxSequences, o.Observer = 1, ends
	r := llama(t, o)
	for i, priority := range []int{1, 0, 1, -3, 0} {
		submit(t, r, Request{Prompt: []int32{5}, MaxNew: 2, Priority: priority, Tag: i})
	}
	drain(t, r)
	if want := []any{3, 1, 4, 0, 2}; !slices.Equal(ends.tags, want) {
		t.Errorf("ended in the order %v, want %v", ends.tags, want)
	}

	o.MaxSequences, o.Blocks, o.Observer = 3, 12, nil
	r = llama(t, o)
	list := []Request{{Prompt: []int32{5, 7}, MaxNew: 24, Priority: 2}, {Prompt: []int32{9, 3}, MaxNew: 24}, {Prompt: []int32{4, 8}, MaxNew: 24, Priority: 1}}
	want := alone(t, r, list)
	var seqs []*Sequence
	for _, q := range list {
		seqs = append(seqs, submit(t, r, q))
	}
	names := map[*Sequence]map[uint64]bool{}
	for more := true; more; {
		var err error
		if more, err = r.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
		for _, q := range r.running {
			if names[q] == nil {
				names[q] = map[uint64]bool{}
			}
			names[q][q.name] = true
		}
	}
	for i, s := range seqs {
		if !slices.Equal(s.IDs(), want[i]) {
			t.Errorf("request %d: %v, alone %v", i, s.IDs(), want[i])
		}
	}
	if r.Stats().Preempted == 0 || len(names[seqs[1]]) != 1 || len(names[seqs[0]]) < 2 {
		t.Errorf("%d preemptions; the most urgent ran %d times, the least %d", r.Stats().Preempted, len(names[seqs[1]]), len(names[seqs[0]]))
	}
}

// A deadline ends a waiting or running request, and no other request.
func TestDeadline(t *testing.T) {
	r := llama(t, lifecycleOptions())
	q := Request{Prompt: []int32{5, 7, 9}, MaxNew: 12}
	want := alone(t, r, []Request{q})[0]
	other := submit(t, r, q)
	q.Deadline = time.Now().Add(-time.Second)
	late := submit(t, r, q)
	q.Deadline = time.Now().Add(time.Hour)
	running, waiting := submit(t, r, q), submit(t, r, q)
	for range 3 {
		if _, err := r.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if late.Reason() != DeadlineExceeded || running.place != inRunning || waiting.place != inWaiting {
		t.Fatalf("%s, %d, %d", late.Reason(), running.place, waiting.place)
	}
	r.dropExpired(time.Now().Add(59 * time.Minute))
	if running.finished() || waiting.finished() {
		t.Error("a request ended before its deadline")
	}
	r.dropExpired(time.Now().Add(2 * time.Hour))
	slow := errors.New("too slow")
	var inContext [2]*Sequence
	for i, cause := range []error{nil, slow} {
		ctx, cancel := context.WithDeadlineCause(context.Background(), time.Now().Add(-time.Second), cause)
		defer cancel()
		var err error
		if inContext[i], err = r.Submit(ctx, Request{Prompt: []int32{5}, MaxNew: 3}); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		for inContext[i].asked.Load() == 0 { // AfterFunc calls Cancel in another goroutine
			time.Sleep(time.Millisecond)
		}
	}
	drain(t, r)
	if s := inContext[1]; s.Reason() != DeadlineExceeded || !errors.Is(s.Err(), slow) {
		t.Errorf("the request of a context with a cause ended as %s: %v", s.Reason(), s.Err())
	}
	for i, s := range []*Sequence{late, running, waiting, inContext[0]} {
		if s.Reason() != DeadlineExceeded || !errors.Is(s.Err(), context.DeadlineExceeded) {
			t.Errorf("request %d ended as %s: %v", i, s.Reason(), s.Err())
		}
	}
	if len(running.IDs()) == 3 || !slices.Equal(other.IDs(), want) || r.Stats().UsedBlocks != 0 {
		t.Errorf("%v, the other %v, %+v", running.IDs(), other.IDs(), r.Stats())
	}
}

// MaxQueue limits waiting requests, not running ones, and refused requests are counted.
func TestQueueBound(t *testing.T) {
	o := lifecycleOptions()
	o.MaxQueue = 2
	r := llama(t, o)
	q := Request{Prompt: []int32{5}, MaxNew: 4}
	submit(t, r, q)
	second := submit(t, r, q)
	_, err := r.Submit(context.Background(), q)
	full, ok := errors.AsType[*QueueFullError](err)
	if !ok || !errors.Is(err, ErrQueueFull) || full.Waiting != 2 || full.Limit != 2 {
		t.Errorf("%v, want a queue of 2 that is full", err)
	}
	second.Cancel()
	if _, err := r.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	submit(t, r, q)
	submit(t, r, q)
	if _, err := r.Submit(context.Background(), q); !errors.Is(err, ErrQueueFull) {
		t.Errorf("%v, want %v", err, ErrQueueFull)
	}
	drain(t, r)
	submit(t, r, q)
	drain(t, r)
	if s := r.Stats(); s.Rejected != 2 || s.Submitted != 5 {
		t.Errorf("%d rejected, %d submitted", s.Rejected, s.Submitted)
	}
}

// Drain returns the error of its context while a request is open, and nil once all have ended. After a
// call of Drain, Submit refuses requests.
func TestDrain(t *testing.T) {
	r := llama(t, lifecycleOptions())
	s := submit(t, r, Request{Prompt: []int32{5}, MaxNew: 4})
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Drain(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, while a request waits", err)
	}
	if _, err := r.Submit(context.Background(), Request{Prompt: []int32{5}, MaxNew: 4}); !errors.Is(err, ErrDraining) {
		t.Errorf("%v, want %v", err, ErrDraining)
	}
	drain(t, r)
	if err := r.Drain(context.Background()); err != nil || s.Reason() != Exhausted {
		t.Errorf("%v, %s", err, s.Reason())
	}
	idle := llama(t, lifecycleOptions())
	if err := idle.Drain(context.Background()); err != nil {
		t.Error(err)
	}
	idle.live = 1 // a request of rank 0, which the other ranks do not refuse
	idle.ended(&Sequence{begun: true})
}

// moments is an observer that counts tokens.
type moments struct{ firsts, intervals, prompts int }

func (m *moments) Stepped(s Step) {
	m.firsts, m.intervals = m.firsts+len(s.FirstTokens), m.intervals+len(s.Intervals)
	m.prompts += s.PromptTokens
}
func (*moments) Finished(*Sequence) {}

// The times of a request are in order, and an observer gets each token once.
func TestTimes(t *testing.T) {
	o, m := lifecycleOptions(), &moments{}
	o.Observer = m
	r := llama(t, o)
	var seqs []*Sequence
	for n := range 3 {
		seqs = append(seqs, submit(t, r, Request{Prompt: []int32{5, 7, 9}, MaxNew: n + 1}))
	}
	if at := seqs[0].Times(); at.Queued.IsZero() || !at.Ended.IsZero() {
		t.Errorf("%+v", at)
	}
	drain(t, r)
	for i, s := range seqs {
		at := s.Times()
		list := []time.Time{at.Queued, at.Scheduled, at.FirstToken, at.LastToken, at.Ended}
		if at.Queued.IsZero() || !slices.IsSortedFunc(list, time.Time.Compare) {
			t.Errorf("request %d: %v", i, list)
		}
	}
	if m.firsts != 3 || m.intervals != 0+1+2 || m.prompts != 3*3 {
		t.Errorf("%d first tokens after %d of prompts, and %d others", m.firsts, m.prompts, m.intervals)
	}
}

// A request with a lower priority value joins running ones. It is the last in its first step, but the
// first in the next one, so a steady step must not assume the rows of the previous step.
func TestJoiningByPriority(t *testing.T) {
	o := lifecycleOptions()
	o.MaxSequences = 4
	var requests []Request
	for i := range 4 { // prompts of one token, so that a first step is a decode step
		requests = append(requests, Request{Prompt: []int32{int32(11 * (i + 1))}, MaxNew: 12, Priority: -i,
			Sampling: Sampling{Temperature: 1, Seed: uint64(i)}})
	}
	want := alone(t, llama(t, o), requests)
	r := llama(t, o)
	var open []*Sequence
	for _, q := range requests {
		open = append(open, submit(t, r, q))
		for range 3 {
			if _, err := r.Step(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	drain(t, r)
	for i, s := range open {
		if !slices.Equal(s.IDs(), want[i]) {
			t.Errorf("request %d: %v, alone %v", i, s.IDs(), want[i])
		}
	}
}
