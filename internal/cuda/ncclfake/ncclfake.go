// Package ncclfake is NCCL without a GPU, for tests, over devices of one internal/cuda/fake driver.
// Calls execute in streams and graphs, and wait there for the calls of all other ranks, as NCCL's
// kernels do.
package ncclfake

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"

	"pwc/internal/cuda/fake"
	"pwc/ir/dtype"
	"pwc/runtime/cuda/nccl"
)

// Library is the library. Its fields may change between calls.
type Library struct {
	Number int   // its version
	Fail   error // of Init
	Async  error // of AsyncError

	drv *fake.Driver

	mu      sync.Mutex
	changed sync.Cond
	ids     byte
	groups  map[nccl.ID]*group
	ranks   map[nccl.Comm]*rank
	live    map[nccl.Comm]bool
}

var _ nccl.API = (*Library)(nil)

// group is the state that the communicators of all ranks share.
type group struct {
	joined  []bool
	rounds  []*round // calls in the order of their execution
	aborted bool
}

// round is one call of all ranks.
type round struct {
	calls   []*nccl.Call // by rank; nil: the rank's call has not executed
	sources [][]byte
}

// rank is a rank's communicator.
type rank struct {
	group *group
	rank  int
	next  int // the round of the next call that executes
}

// New returns the library for the devices of a driver.
func New(drv *fake.Driver) *Library {
	l := &Library{Number: 22809, drv: drv, groups: map[nccl.ID]*group{}, ranks: map[nccl.Comm]*rank{}, live: map[nccl.Comm]bool{}}
	l.changed.L = &l.mu
	return l
}

// Version implements [nccl.API].
func (l *Library) Version() int { return l.Number }

// UniqueID implements [nccl.API].
func (l *Library) UniqueID() (nccl.ID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids++
	return nccl.ID{l.ids}, nil
}

// Init implements [nccl.API]: it waits for all ranks.
func (l *Library) Init(ranks, number int, id nccl.ID) (nccl.Comm, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Fail != nil {
		return 0, l.Fail
	}
	g := l.groups[id]
	if g == nil {
		g = &group{joined: make([]bool, ranks)}
		l.groups[id] = g
	}
	if len(g.joined) != ranks || g.joined[number] {
		return 0, &nccl.StatusError{Call: "CommInitRankScalable", Status: 4}
	}
	g.joined[number] = true
	l.changed.Broadcast()
	for slices.Contains(g.joined, false) {
		l.changed.Wait()
	}
	c := nccl.Comm(len(l.ranks) + 1)
	l.live[c] = true
	l.ranks[c] = &rank{group: g, rank: number}
	return c, nil
}

// AsyncError implements [nccl.API].
func (l *Library) AsyncError(nccl.Comm) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Async
}

// Abort implements [nccl.API].
func (l *Library) Abort(c nccl.Comm) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ranks[c].group.aborted = true
	return l.gone(c)
}

// Destroy implements [nccl.API].
func (l *Library) Destroy(c nccl.Comm) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone(c)
}

func (l *Library) gone(c nccl.Comm) error {
	if !l.live[c] {
		return &nccl.StatusError{Call: "CommDestroy", Status: 4}
	}
	delete(l.live, c)
	return nil
}

// Live returns the number of communicators that are neither destroyed nor aborted.
func (l *Library) Live() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.live)
}

// Enqueue implements [nccl.API]. Like NCCL it enqueues a host function too.
func (l *Library) Enqueue(c nccl.Call) error {
	l.mu.Lock()
	r := l.ranks[c.Comm]
	l.mu.Unlock()
	if err := l.drv.Meeting(c.Stream, func() func() bool { return l.begin(r, &c) }); err != nil {
		return err
	}
	return l.drv.HostFunc(c.Stream)
}

// begin stores the source of a rank's call. It returns a function that, once all ranks' calls have
// executed, writes the result and returns true. If the group was aborted, it returns true without a result.
func (l *Library) begin(r *rank, c *nccl.Call) func() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	g, size := r.group, len(r.group.joined)
	for len(g.rounds) <= r.next {
		g.rounds = append(g.rounds, &round{make([]*nccl.Call, size), make([][]byte, size)})
	}
	x := g.rounds[r.next]
	r.next++
	n := c.DType.Bytes(c.Count)
	if c.Op == nccl.ReduceScatter {
		n *= int64(size)
	}
	x.calls[r.rank], x.sources[r.rank] = c, slices.Clone(l.drv.Bytes(c.Src, n))
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if g.aborted {
			return true
		}
		if slices.Contains(x.calls, nil) {
			return false
		}
		l.finish(x, r.rank, c)
		return true
	}
}

// finish writes a rank's result.
func (l *Library) finish(x *round, number int, c *nccl.Call) {
	for _, o := range x.calls {
		if o.Op != c.Op || o.Count != c.Count || o.DType != c.DType || o.Root != c.Root {
			panic(fmt.Sprintf("ncclfake: ranks make different calls: %+v and %+v", *o, *c))
		}
	}
	n := c.DType.Bytes(c.Count)
	switch c.Op {
	case nccl.AllReduce:
		sum(c.DType, l.drv.Bytes(c.Dst, n), x.sources, 0)
	case nccl.ReduceScatter:
		sum(c.DType, l.drv.Bytes(c.Dst, n), x.sources, n*int64(number))
	case nccl.AllGather:
		copy(l.drv.Bytes(c.Dst, n*int64(len(x.sources))), slices.Concat(x.sources...))
	case nccl.Broadcast:
		copy(l.drv.Bytes(c.Dst, n), x.sources[c.Root])
	}
}

// sum sets dst to the sums of all sources from byte from on, in rank order.
func sum(dt dtype.DType, dst []byte, sources [][]byte, from int64) {
	width := dt.Bytes(1)
	for i := int64(0); i*width < int64(len(dst)); i++ {
		total := float32(0)
		for _, s := range sources {
			total += decode(dt, s[from+i*width:])
		}
		encode(dt, dst[i*width:], total)
	}
}

func decode(dt dtype.DType, b []byte) float32 {
	switch dt {
	case dtype.F16:
		return dtype.F16ToF32(binary.LittleEndian.Uint16(b))
	case dtype.BF16:
		return dtype.BF16ToF32(binary.LittleEndian.Uint16(b))
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

func encode(dt dtype.DType, b []byte, v float32) {
	switch dt {
	case dtype.F16:
		binary.LittleEndian.PutUint16(b, dtype.F32ToF16(v))
	case dtype.BF16:
		binary.LittleEndian.PutUint16(b, dtype.F32ToBF16(v))
	default:
		binary.LittleEndian.PutUint32(b, math.Float32bits(v))
	}
}
