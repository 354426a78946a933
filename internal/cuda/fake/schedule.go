package fake

import (
	"math/rand/v2"
)

// Schedule decides what executes next, in any order that streams and events
// allow. It is called with the driver locked.
type Schedule interface {
	// Pick returns which of n streams executes its next operation, or -1: none
	// for now. needed is -1, or one that a call waits for: then one of them must
	// be picked.
	Pick(n, needed int) int
}

// ScheduleFunc is a function as a Schedule.
type ScheduleFunc func(n, needed int) int

// Pick calls the function.
func (f ScheduleFunc) Pick(n, needed int) int { return f(n, needed) }

// Lazy executes only what a call waits for. It keeps nothing.
const Lazy = lazy(0)

// Eager executes everything as soon as it may. It keeps nothing.
const Eager = eager(0)

type (
	lazy  int
	eager int
)

// Pick returns needed.
func (lazy) Pick(_, needed int) int { return needed }

// Pick returns the first.
func (eager) Pick(int, int) int { return 0 }

// Random executes at random, the same for the same seed.
func Random(seed uint64) Schedule {
	r := rand.New(rand.NewPCG(seed, 0))
	return ScheduleFunc(func(n, needed int) int {
		if needed < 0 {
			return r.IntN(n+1) - 1
		}
		return r.IntN(n)
	})
}
