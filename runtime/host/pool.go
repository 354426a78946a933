package host

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// job is work in parts that may run in any order and at the same time. What a
// part computes does not depend on which lane runs it.
type job interface {
	run(part int64, l *lane)
}

// pool is the device's workers. They live as long as the device, and sleep if no kernel
// follows within spinFor. Calling them for a job allocates nothing.
//
// Each helper has a state of its own, and a job calls the first helpers, in order: they ran the
// kernels before and still spin. One channel for all helpers would hand the job to those that have
// slept longest, and wake a thread for each.
type pool struct {
	mu      sync.Mutex // one job at a time
	job     job
	parts   int64
	stop    *interrupt // of the stream whose job it is
	closed  bool       // guarded by mu
	helpers []helper
	ended   sync.WaitGroup
	unit    *unit
	imports *imports // of the device

	_    cacheLine
	next atomic.Int64 // parts that are taken
	_    cacheLine
	left atomic.Int32 // helpers that have not finished, and the caller
	done chan struct{}
}

// cacheLine separates what different workers write: two lines, since processors fetch lines in pairs.
type cacheLine [128]byte

// helper is a goroutine that runs parts of jobs, as the caller does.
type helper struct {
	state atomic.Int32
	wake  chan struct{} // a token for each change from asleep
	_     cacheLine
}

// States of a helper. A job changes spinning and asleep to called, and called back to spinning
// if it is done before the helper looks. pool.close changes spinning and asleep to closing. The
// helper makes all other changes.
const (
	spinning int32 = iota
	asleep
	called
	working
	closing // the pool is closed
)

// newPool returns a pool with so many helpers, which it starts.
func newPool(helpers int, m *imports) *pool {
	p := &pool{helpers: make([]helper, helpers), unit: bestUnit(), imports: m, done: make(chan struct{}, 1)}
	p.ended.Add(helpers)
	for i := range p.helpers {
		h := &p.helpers[i]
		h.wake = make(chan struct{}, 1)
		go p.work(h)
	}
	return p
}

// close ends the helpers and waits for them. No job may be running.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for i := range p.helpers {
		if h := &p.helpers[i]; !h.state.CompareAndSwap(spinning, closing) {
			h.wakeFor(closing)
		}
	}
	p.ended.Wait()
}

// A helper spins before it sleeps: a step is a sequence of kernels, between them short ones that the caller
// runs alone, and waking a thread takes as long as a short kernel. A spinning helper calls the
// scheduler, so that other goroutines run, but rarely: with idle processors each such call
// wakes a thread that looks for work (goschedImpl of the Go runtime), and all calls take one lock.
const (
	spinFor   = 60 * time.Microsecond
	yieldEach = 10 * time.Microsecond
	looks     = 256 // between looks at the clock
)

// await spins until ready returns true, for spinFor at most.
func await(ready func() bool) {
	start := time.Now()
	for yielded := time.Duration(0); ; {
		for range looks {
			if ready() {
				return
			}
		}
		switch since := time.Since(start); {
		case since > spinFor:
			return
		case since-yielded > yieldEach:
			runtime.Gosched()
			yielded = since
		}
	}
}

// wakeFor changes the state of a helper that sleeps, and wakes it. A sleeping helper does not change its
// state.
func (h *helper) wakeFor(to int32) {
	h.state.Store(to)
	h.wake <- struct{}{}
}

func (p *pool) work(h *helper) {
	defer p.ended.Done()
	l := lane{imports: p.imports}
	isCalled := func() bool { return h.state.Load() != spinning }
	for {
		await(isCalled)
		if h.state.CompareAndSwap(spinning, asleep) {
			<-h.wake
		}
		if h.state.Load() == closing {
			return
		}
		if !h.state.CompareAndSwap(called, working) {
			continue // the job was done before
		}
		l.stop = p.stop
		p.drain(&l)
		h.state.Store(spinning)
		p.finish(1)
	}
}

// finish counts workers that have finished.
func (p *pool) finish(workers int32) {
	if p.left.Add(-workers) == 0 {
		p.done <- struct{}{}
	}
}

func (p *pool) drain(l *lane) {
	defer l.caught(protect())
	for {
		part := p.next.Add(1) - 1
		if part >= p.parts || l.stop.look() {
			return
		}
		p.job.run(part, l)
	}
}

// run runs all parts of j and returns when they are done. The caller runs all parts itself if there
// is one part or no helper, if another stream uses the workers, or if the pool is closed.
func (p *pool) run(j job, parts int64, own *lane) {
	helpers := p.helpers[:max(0, min(int64(len(p.helpers)), parts-1))]
	if len(helpers) == 0 || !p.mu.TryLock() {
		runHere(j, parts, own)
		return
	}
	defer p.mu.Unlock()
	if p.closed {
		runHere(j, parts, own)
		return
	}
	p.job, p.parts, p.stop = j, parts, own.stop
	p.next.Store(0)
	asked := len(helpers)
	p.left.Store(int32(asked) + 1)
	helpers = p.call(helpers)
	p.drain(own)
	// A helper that has not looked yet would find no part: the caller does not wait for it.
	finished := int32(asked - len(helpers) + 1)
	for i := range helpers {
		if helpers[i].state.CompareAndSwap(called, spinning) {
			finished++
		}
	}
	p.finish(finished)
	// Parts are short, and so is the wait; a sleeping caller would wake late.
	await(p.isDone)
	<-p.done
	p.job, p.stop = nil, nil
}

// call calls helpers for the job and returns those that it called: once all parts are taken it wakes
// no further helper.
func (p *pool) call(helpers []helper) []helper {
	for i := range helpers {
		h := &helpers[i]
		if h.state.CompareAndSwap(spinning, called) {
			continue
		}
		if p.next.Load() >= p.parts {
			return helpers[:i]
		}
		h.wakeFor(called)
	}
	return helpers
}

func (p *pool) isDone() bool { return len(p.done) > 0 }

func runHere(j job, parts int64, l *lane) {
	defer l.caught(protect())
	for part := range parts {
		if l.stop.look() {
			return
		}
		j.run(part, l)
	}
}
