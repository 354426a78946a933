package cuda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"pwc/collective"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// AllReduceTime has the times that an all_reduce took on the slowest rank, by both ways.
type AllReduceTime struct {
	Bytes int64 // of the source
	Peer  time.Duration
	NCCL  time.Duration
}

// An all_reduce is timed as timedCalls calls in one graph, each of which depends on the one before. The result is the
// least time of timedLaunches launches of the graph, divided by timedCalls.
const (
	timedCalls    = 16
	timedLaunches = 5
)

// TimeAllReduce measures all_reduces of bf16 over peer memory and by NCCL. All ranks of the group call it at the same
// time, and get the same times. sizes are in bytes, multiples of 2. The group needs peer memory and NCCL. An error may
// end the group; otherwise it can still be used. The device does not get the routines.
func TimeAllReduce(ctx context.Context, dev *cuda.Device, o Options, g *collective.Group, sizes []int64) (out []AllReduceTime, err error) {
	o.NCCLBytes = 1
	l, err := newLibrary(dev, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Do(l.close), l.free()) }()
	if err := l.join(ctx, g); err != nil {
		return nil, err
	}
	x := l.groups[g.Name()]
	l.watching.Go(func() { l.watch(x) })
	if x.recv == nil || x.comm == nil {
		err := fmt.Errorf("collective: group %q has at most one way to compute, so there is nothing to compare: it has one rank or more than %d, its GPUs do not reach each other's memory, or a rank has no NCCL", g.Name(), MaxRanks)
		g.Fail(err)
		return nil, err
	}
	t, err := newTimer(l, x, sizes)
	if err != nil {
		g.Fail(err)
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := g.Barrier(ctx); err != nil { // a rank that loads kernels may invalidate the captures of others
		return nil, err
	}
	for _, size := range sizes {
		mine := AllReduceTime{Bytes: size}
		for _, way := range []struct {
			from int64
			took *time.Duration
		}{{math.MaxInt64, &mine.Peer}, {1, &mine.NCCL}} {
			x.comm.from = way.from
			if *way.took, err = t.time(ctx, size); err != nil {
				g.Fail(err)
				return nil, err
			}
		}
		all, err := share(ctx, g, "times", mine)
		if err != nil {
			return nil, err
		}
		for _, other := range all {
			mine.Peer, mine.NCCL = max(mine.Peer, other.Peer), max(mine.NCCL, other.NCCL)
		}
		out = append(out, mine)
	}
	return out, nil
}

// ncclMargin is the part of the time that NCCL has to save: repeated measurements of one call differ by as much, and
// with NCCL programs may lose their fused kernels.
const ncclMargin = 0.03

// LeastNCCL returns the least size from which on NCCL was faster at every size, for Options.NCCLBytes; 0: it was not
// faster at the largest size. times ascend by size. NCCL counts as faster if it took less than 97 % of the time.
func LeastNCCL(times []AllReduceTime) int64 {
	least := int64(0)
	for _, t := range times {
		switch {
		case float64(t.NCCL) >= (1-ncclMargin)*float64(t.Peer):
			least = 0
		case least == 0:
			least = t.Bytes
		}
	}
	return least
}

// timer times calls of a group.
type timer struct {
	routine    *routine
	group      *joined
	stream     *cuda.Stream
	memory     device.Memory // two halves, each a source and a destination
	start, end device.Event
}

func newTimer(l *library, x *joined, sizes []int64) (t *timer, err error) {
	t = &timer{routine: &routine{collective.AllReduce, l}, group: x}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	most := int64(0)
	for _, n := range sizes {
		most = max(most, n)
	}
	if t.memory, err = l.dev.Alloc(2 * most); err != nil {
		return t, err
	}
	s, err := l.dev.NewStream()
	if err != nil {
		return t, err
	}
	t.stream = s.(*cuda.Stream)
	if t.start, err = l.dev.NewTimedEvent(); err != nil {
		return t, err
	}
	if t.end, err = l.dev.NewTimedEvent(); err != nil {
		return t, err
	}
	x.comm.from = math.MaxInt64
	for _, size := range sizes { // loads the kernels
		if c := t.call(size); err == nil {
			_, err = t.routine.ScratchBytes(c.Args, c.Attrs)
		}
	}
	return t, errors.Join(err, t.stream.Fill(device.Buffer{Memory: t.memory, Size: 2 * most}, 0))
}

// call returns a call of so many bytes.
func (t *timer) call(size int64) *device.OpCall {
	g, half := t.group.group, t.memory.Size()/2
	tensor := func(at int64) device.Tensor {
		return device.Tensor{Buffer: device.Buffer{Memory: t.memory, Offset: at, Size: size}, DType: dtype.BF16, Shape: []int64{size / 2}}
	}
	return &device.OpCall{Args: []device.Tensor{tensor(0), tensor(half)}, Attrs: []program.Attr{
		{Name: collective.AttrGroup, Kind: program.AttrString, Str: g.Name()}, {Name: collective.AttrSize, Dim: dim.Const(int64(g.Size()))}}}
}

func (t *timer) close() error {
	var errs []error
	if t.stream != nil {
		errs = append(errs, t.stream.Synchronize(), t.stream.Close())
	}
	for _, e := range []device.Event{t.start, t.end} {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	if t.memory != nil {
		errs = append(errs, t.memory.Free())
	}
	return errors.Join(errs...)
}

// time returns the least time of a call.
func (t *timer) time(ctx context.Context, size int64) (least time.Duration, err error) {
	call := t.call(size)
	if err := errors.Join(t.stream.Synchronize(), t.stream.BeginCapture(device.CaptureThreadLocal)); err != nil {
		return 0, err
	}
	for range timedCalls {
		err = errors.Join(err, t.stream.LaunchOp(t.routine, call))
		call.Args[0], call.Args[1] = call.Args[1], call.Args[0]
	}
	graph, endErr := t.stream.EndCapture()
	if err := errors.Join(err, endErr); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, t.stream.Synchronize(), graph.Close()) }()
	least = math.MaxInt64
	for range timedLaunches {
		if err := errors.Join(t.stream.Synchronize(), t.group.group.Barrier(ctx)); err != nil {
			return 0, err
		}
		if err := errors.Join(t.stream.Record(t.start), t.stream.LaunchGraph(graph), t.stream.Record(t.end), t.end.Synchronize()); err != nil {
			return 0, err
		}
		d, err := t.routine.lib.dev.Elapsed(t.start, t.end)
		if err != nil {
			return 0, err
		}
		least = min(least, d/timedCalls)
	}
	return least, nil
}
