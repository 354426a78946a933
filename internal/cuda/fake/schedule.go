package fake

import (
	"math/rand/v2"
)

// Schedule decides which stream executes its next operation, and which node of a graph executes
// next if several may. It is called with the driver locked.
type Schedule interface {
	// Pick returns the index of one of n streams whose next operation may execute. If
	// needed is -1, it may return -1: no stream executes now. Otherwise a call waits for
	// the stream with index needed, and Pick must return an index. For the nodes of a graph,
	// needed is 0.
	Pick(n, needed int) int
}

// ScheduleFunc is a function as a Schedule.
type ScheduleFunc func(n, needed int) int

// Pick calls the function.
func (f ScheduleFunc) Pick(n, needed int) int { return f(n, needed) }

// Lazy executes only work that a call waits for and, while a kernel in it waits for other devices, their
// work. It has no state.
const Lazy = lazy(0)

// Eager executes work as soon as streams and events allow. It has no state.
const Eager = eager(0)

type (
	lazy  int
	eager int
)

// Pick returns needed.
func (lazy) Pick(_, needed int) int { return needed }

// Pick returns the first.
func (eager) Pick(int, int) int { return 0 }

// Random executes in a random order, which the seed determines.
func Random(seed uint64) Schedule {
	r := rand.New(rand.NewPCG(seed, 0))
	return ScheduleFunc(func(n, needed int) int {
		if needed < 0 {
			return r.IntN(n+1) - 1
		}
		return r.IntN(n)
	})
}
