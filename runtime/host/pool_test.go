package host

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// jobOf is a test's job.
type jobOf func(part int64)

func (f jobOf) run(part int64, _ *lane) { f(part) }

// sleeping waits until all helpers sleep.
func (p *pool) sleeping(t *testing.T) {
	t.Helper()
	for range 10_000 {
		n := 0
		for i := range p.helpers {
			if p.helpers[i].state.Load() == asleep {
				n++
			}
		}
		if n == len(p.helpers) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("helpers that have no job do not sleep")
}

// TestFewPartsCallFewHelpers: jobs of two parts use one helper, always the same, and the others
// sleep on. The parts of a job wait for each other, so that each job needs a helper.
func TestFewPartsCallFewHelpers(t *testing.T) {
	d := openDevice(t, 8)
	d.pool.sleeping(t)
	l := lane{stop: &interrupt{}}
	for n := range 50 {
		var both sync.WaitGroup
		both.Add(2)
		d.pool.run(jobOf(func(int64) { both.Done(); both.Wait() }), 2, &l)
		for i := range d.pool.helpers[1:] {
			if s := d.pool.helpers[1+i].state.Load(); s != asleep {
				t.Fatalf("job %d of two parts: helper %d is in state %d, not asleep", n, 1+i, s)
			}
		}
	}
}

// TestEveryPartRunsOnce runs jobs of random sizes from two goroutines, with pauses in which helpers sleep or
// are about to sleep: every part runs once, before run returns.
func TestEveryPartRunsOnce(t *testing.T) {
	d := openDevice(t, 4)
	var streams sync.WaitGroup
	for s := range 2 {
		streams.Go(func() {
			r := rand.New(rand.NewPCG(uint64(s), 43))
			l := lane{stop: &interrupt{}}
			ran := make([]atomic.Int32, 64)
			for range 3000 {
				parts := r.Int64N(int64(len(ran)))
				d.pool.run(jobOf(func(part int64) { ran[part].Add(1) }), parts, &l)
				for i := range ran {
					if got := ran[i].Swap(0); int64(i) < parts && got != 1 || int64(i) >= parts && got != 0 {
						t.Errorf("part %d of %d ran %d times, want each part once", i, parts, got)
						return
					}
				}
				switch r.IntN(8) {
				case 0:
					time.Sleep(time.Duration(r.Int64N(int64(2 * spinFor))))
				case 1:
					await(func() bool { return r.IntN(1000) == 0 })
				}
			}
		})
	}
	streams.Wait()
}

// TestPoolsCloseInAnyState: close ends helpers that spin, sleep or are about to sleep. Later jobs run on the
// caller.
func TestPoolsCloseInAnyState(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 43))
	l := lane{stop: &interrupt{}}
	for range 200 {
		p := newPool(3, &imports{})
		p.run(jobOf(func(int64) {}), r.Int64N(6), &l)
		time.Sleep(time.Duration(r.Int64N(int64(3 * spinFor))))
		p.close()
		ran := 0
		p.run(jobOf(func(int64) { ran++ }), 5, &l)
		if ran != 5 {
			t.Fatalf("a closed pool runs %d of 5 parts", ran)
		}
	}
}
