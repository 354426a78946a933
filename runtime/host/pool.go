package host

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// job is work in parts that may run in any order and at the same time. What a
// part computes does not depend on which lane runs it.
type job interface {
	run(part int64, l *lane)
}

// pool is the device's workers. They live as long as the device and sleep
// where no kernel follows soon; handing a job out allocates nothing.
type pool struct {
	mu      sync.Mutex // one job at a time
	job     job
	parts   int64
	stop    *interrupt // of the stream whose job it is
	next    atomic.Int64
	left    atomic.Int32 // helpers that have not finished
	wake    chan struct{}
	done    chan struct{}
	helpers int
	ended   sync.WaitGroup
	closed  bool // guarded by mu
	unit    *unit
	imports *imports // of the device
}

// newPool starts helpers, which run jobs beside the caller.
func newPool(helpers int, m *imports) *pool {
	p := &pool{helpers: helpers, unit: bestUnit(), imports: m, wake: make(chan struct{}, helpers), done: make(chan struct{}, 1)}
	p.ended.Add(helpers)
	for range helpers {
		go p.work()
	}
	return p
}

// close ends the helpers and waits for them. No job may be running.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	close(p.wake)
	p.ended.Wait()
}

// A helper looks for the next job so many times before it sleeps, which takes some 50 µs: a step
// is a row of kernels, with short ones that the caller runs alone between them, and waking up takes
// about as long as a short kernel.
const (
	looks        = 256 // each with a call of the scheduler, so that other goroutines run
	looksBetween = 64  // at the channel alone
)

// await looks for a job for a while. It may return before there is one.
func (p *pool) await() {
	for range looks {
		for range looksBetween {
			if len(p.wake) > 0 {
				return
			}
		}
		runtime.Gosched()
	}
}

func (p *pool) work() {
	defer p.ended.Done()
	l := lane{imports: p.imports}
	for range p.wake {
		l.stop = p.stop
		p.drain(&l)
		if p.left.Add(-1) == 0 {
			p.done <- struct{}{}
		}
		p.await()
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

// run runs all parts of j and returns when they are done: on the caller alone
// if there is one part or another stream keeps the workers busy.
func (p *pool) run(j job, parts int64, own *lane) {
	helpers := int(min(int64(p.helpers), parts-1))
	if helpers <= 0 || !p.mu.TryLock() {
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
	p.left.Store(int32(helpers) + 1)
	for range helpers {
		p.wake <- struct{}{}
	}
	p.drain(own)
	// Helpers that have not woken up find nothing to do: take their calls back
	// instead of waiting for them.
	took := int32(1)
	for taking := true; taking; {
		select {
		case <-p.wake:
			took++
		default:
			taking = false
		}
	}
	if p.left.Add(-took) > 0 {
		// Parts are short, and so is the wait; a sleeping caller would wake late.
		for range 100 {
			if len(p.done) > 0 {
				break
			}
			runtime.Gosched()
		}
		<-p.done
	}
	p.job, p.stop = nil, nil
}

func runHere(j job, parts int64, l *lane) {
	defer l.caught(protect())
	for part := range parts {
		if l.stop.look() {
			return
		}
		j.run(part, l)
	}
}
