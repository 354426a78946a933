package cuda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"pwc/collective"
	"pwc/ir/dtype"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/nccl"
	"pwc/runtime/device"
)

// errUnreached is why a group has no peer memory: its GPUs do not reach each other's.
var errUnreached = errors.New("the GPUs do not reach each other's memory")

// communicator is a rank's membership of a group in NCCL.
type communicator struct {
	api   nccl.API
	from  int64 // NCCL computes calls whose part has at least so many bytes
	heart *heart

	enqueuing sync.Mutex // while calls are enqueued: NCCL takes them from one thread at a time
	handle    nccl.Comm
	gone      atomic.Bool // it was aborted, so its kernels ended without a result, or destroyed
}

// Bytes of a heart, in memory that streams fill and the host reads. Around each call of NCCL, the stream
// sets heartIdle to 0 before the call, and both bytes to 1 after it. The host sets heartProgress to 0.
const (
	heartIdle     = 0
	heartProgress = 1
	heartSize     = 2
)

// heart tells the host whether a call of NCCL is under way, and whether one ended: NCCL's kernels
// wait for other ranks without a limit of their own.
type heart struct {
	host   device.HostMemory
	mapped device.Memory // the same memory, for fills of streams
	since  time.Time     // when stalled first saw that a call is under way, if no call has ended since
}

// newHeart takes the memory of a heart.
func newHeart(dev *cuda.Device) (*heart, error) {
	h := new(heart)
	var err error
	if h.host, err = dev.AllocHost(heartSize); err != nil {
		return nil, err
	}
	address, err := dev.HostPointer(h.host)
	if err == nil {
		h.mapped, err = dev.WrapMemory(address, heartSize)
	}
	if err != nil {
		return nil, errors.Join(err, h.host.Free())
	}
	h.host.Bytes()[heartIdle] = 1
	return h, nil
}

// free releases the memory, if the device does not.
func (h *heart) free() error { return errors.Join(h.mapped.Free(), h.host.Free()) }

// around enqueues the fill before a call, the call, and the fill after it.
func (h *heart) around(s *cuda.Stream, call func() error) error {
	at := device.Buffer{Memory: h.mapped, Size: heartSize}
	if err := s.Fill(at.Slice(heartIdle, 1), 0); err != nil {
		return err
	}
	if err := call(); err != nil {
		return err
	}
	return s.Fill(at, 1)
}

// stalled reports whether a call has been under way for longer than timeout. One goroutine calls it.
func (h *heart) stalled(timeout time.Duration, now time.Time) bool {
	word := (*[heartSize]byte)(unsafe.Pointer(unsafe.SliceData(h.host.Bytes())))
	progress := word[heartProgress] != 0
	word[heartProgress] = 0
	switch {
	case word[heartIdle] != 0 || progress:
		h.since = time.Time{}
	case h.since.IsZero():
		h.since = now
	}
	return !h.since.IsZero() && now.Sub(h.since) > timeout
}

// enlistment is the message of a rank to the others before they make a communicator.
type enlistment struct {
	Version int    `json:"version"` // of NCCL
	ID      []byte `json:"id"`      // of the communicator; only rank 0 gives it
	Err     string `json:"err"`     // why the rank has no NCCL; "" if it has
}

// enlist opens NCCL, and returns the message of this rank to the others.
func (l *library) enlist(g *collective.Group) (e enlistment, api nccl.API, err error) {
	if l.options.NCCL == nil {
		return e, nil, errors.New("NCCL is not used (collective/cuda.Options.NCCL)")
	}
	if api, err = l.options.NCCL(); err != nil {
		return e, nil, err
	}
	e.Version = api.Version()
	if g.Rank() == 0 {
		var id nccl.ID
		if err := l.dev.Do(func() (err error) { id, err = api.UniqueID(); return err }); err != nil {
			return e, nil, err
		}
		e.ID = id[:]
	}
	return e, api, nil
}

// connect makes the communicator of a group. unreached is the reason why the group has no peer memory:
// then a rank without NCCL is an error. It is nil if the group has peer memory: then the group does
// not use NCCL if a rank lacks it. All ranks decide alike.
func (l *library) connect(ctx context.Context, r *joined, unreached error) error {
	g := r.group
	if unreached == nil && r.recv.ncclBytes == 0 {
		return nil
	}
	mine, api, err := l.enlist(g)
	if err != nil {
		mine.Err = err.Error()
	}
	all, err := share(ctx, g, "versions of NCCL", mine)
	if err != nil {
		return err
	}
	for rank, e := range all {
		switch {
		case e.Err != "" && unreached == nil:
			return nil
		case e.Err != "":
			return fmt.Errorf("%w; and rank %d has no NCCL, which such a group needs: %s", unreached, rank, e.Err)
		case e.Version != all[0].Version:
			return fmt.Errorf("collective: group %q: rank 0 has NCCL %s, and rank %d %s; all ranks need one version", g.Name(),
				nccl.FormatVersion(all[0].Version), rank, nccl.FormatVersion(e.Version))
		}
	}
	c := &communicator{api: api}
	if unreached == nil {
		c.from = r.recv.ncclBytes
	}
	if len(all[0].ID) != len(nccl.ID{}) {
		return fmt.Errorf("collective: group %q: rank 0 gave an id of %d bytes for NCCL, want %d", g.Name(), len(all[0].ID), len(nccl.ID{}))
	}
	if err := l.initialize(ctx, r, c, nccl.ID(all[0].ID)); err != nil {
		err = fmt.Errorf("collective: group %q: %w", g.Name(), err)
		g.Fail(err)
		return err
	}
	r.comm = c
	return nil
}

// connectWithin is how long ranks wait for each other while they make a communicator.
const connectWithin = time.Minute

// initialize makes the communicator, and calls all routines: NCCL connects the ranks at the first call
// of a routine, which all ranks must make.
func (l *library) initialize(ctx context.Context, r *joined, c *communicator, id nccl.ID) (err error) {
	if c.heart, err = newHeart(l.dev); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	made := make(chan error, 1)
	go func() {
		made <- l.dev.Do(func() (err error) {
			c.handle, err = c.api.Init(r.group.Size(), r.group.Rank(), id)
			return err
		})
	}()
	select {
	case err = <-made:
	case <-r.group.Done():
		err = r.group.Err()
	case <-ctx.Done():
		err = fmt.Errorf("a communicator of NCCL was not made: a rank did not come within %s, or the context ended before (%w); a thread still waits in NCCL, so end the process", connectWithin, context.Cause(ctx))
	}
	if err != nil {
		return errors.Join(err, c.heart.free())
	}
	if err := l.rehearse(ctx, r.group, c); err != nil {
		return errors.Join(err, c.abort(), c.heart.free())
	}
	return nil
}

// rehearsed are the bytes of the parts of the first calls: NCCL makes different connections for
// large parts and small ones.
var rehearsed = [...]int64{1 << 10, 256 << 10, 4 << 20}

// rehearse calls all routines, and waits for them.
func (l *library) rehearse(ctx context.Context, g *collective.Group, c *communicator) (err error) {
	size := int64(g.Size())
	m, err := l.dev.Alloc(2 * size * rehearsed[len(rehearsed)-1])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Free()) }()
	stream, err := l.dev.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	s := stream.(*cuda.Stream)
	all := device.Buffer{Memory: m, Size: m.Size()}
	if err := s.Fill(all, 0); err != nil {
		return err
	}
	for _, k := range collective.Kinds {
		for _, n := range rehearsed {
			call := collective.Call{Kind: k, Size: g.Size(), DType: dtype.F32, Bytes: n}
			dst, src := all.Slice(0, size*n), all.Slice(size*n, size*n)
			if err := c.enqueue(s, call, dst, src); err != nil {
				return err
			}
		}
	}
	done, err := l.dev.NewEvent()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done.Close()) }()
	if err := s.Record(done); err != nil {
		return err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if ended, err := done.Query(); ended || err != nil {
			return err
		}
		select {
		case <-tick.C:
			continue
		case <-g.Done():
			err = g.Err()
		case <-ctx.Done():
			err = fmt.Errorf("the first calls of NCCL did not end: a rank did not make them: %w", context.Cause(ctx))
		}
		return errors.Join(err, c.abort(), s.Synchronize())
	}
}

// takes reports whether NCCL computes a call.
func (r *joined) takes(c collective.Call) bool {
	return r.comm != nil && (r.recv == nil || c.Bytes >= r.comm.from)
}

// enqueue issues a call on the stream, or records it if the stream captures.
func (c *communicator) enqueue(s *cuda.Stream, call collective.Call, dst, src device.Buffer) error {
	dev := s.Device().(*cuda.Device)
	to, err := dev.Pointer(dst)
	if err != nil {
		return err
	}
	from, err := dev.Pointer(src)
	if err != nil {
		return err
	}
	dt := call.DType
	if !call.Kind.Sums() {
		dt = dtype.I8
	}
	n := nccl.Call{Op: ops[call.Kind], Comm: c.handle, Dst: to, Src: from, Count: call.Bytes / dt.Bytes(1), DType: dt, Root: call.Root}
	c.enqueuing.Lock()
	defer c.enqueuing.Unlock()
	if c.gone.Load() {
		return errors.New("NCCL's communicator was aborted")
	}
	return c.heart.around(s, func() error {
		return s.CallLibrary(cuda.LibraryNodes{Kernels: 1, Open: true}, func(stream uintptr) error {
			n.Stream = stream
			return c.api.Enqueue(n)
		})
	})
}

// ops are the operations of NCCL by routine.
var ops = [...]nccl.Op{
	collective.AllReduce: nccl.AllReduce, collective.AllGather: nccl.AllGather, collective.ReduceScatter: nccl.ReduceScatter,
	collective.Broadcast: nccl.Broadcast,
}

// abortAfter is how long abort waits for a thread that is in a call of NCCL. If the thread waits there
// for a lost rank, only the abort ends its call.
const abortAfter = time.Second

// abort ends kernels that wait for other ranks. It blocks until no graph has calls of the
// communicator.
func (c *communicator) abort() error {
	if c.gone.Swap(true) {
		return nil
	}
	for until := time.Now().Add(abortAfter); !c.enqueuing.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			return c.api.Abort(c.handle)
		}
	}
	defer c.enqueuing.Unlock()
	return c.api.Abort(c.handle)
}

// destroy destroys the communicator, whose calls are done. The context is current.
func (c *communicator) destroy() error {
	if c.gone.Swap(true) {
		return nil
	}
	return c.api.Destroy(c.handle)
}

// beat ends the group if a call of NCCL failed or waits for longer than Options.Timeout.
func (l *library) beat(r *joined) {
	c := r.comm
	if err := c.api.AsyncError(c.handle); err != nil {
		r.group.Fail(err)
		return
	}
	if !c.heart.stalled(l.options.Timeout, time.Now()) {
		return
	}
	if r.group.Size() == 2 {
		r.group.Lose(1-r.group.Rank(), "a call of NCCL", l.options.Timeout)
		return
	}
	r.group.Fail(fmt.Errorf("its call of NCCL did not end within %s: another rank has not made the call", l.options.Timeout))
}

// share gives a value to all ranks, and returns theirs.
func share[T any](ctx context.Context, g *collective.Group, what string, v T) ([]T, error) {
	mine, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	all := make([]T, g.Size())
	err = g.Exchange(ctx, what, mine, func(given [][]byte) error {
		for i, b := range given {
			if err := json.Unmarshal(b, &all[i]); err != nil {
				return fmt.Errorf("message of rank %d: %w", i, err)
			}
		}
		return nil
	})
	return all, err
}
