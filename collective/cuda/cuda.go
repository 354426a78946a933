// Package cuda computes the routines of package collective on NVIDIA GPUs of one host, over peer
// memory: a kernel for each call, without work of the host, so that calls can be captured.
// Package peer has the kernels and explains their protocol. Kernels of programs may compute an
// all_reduce themselves, in the same receive buffers: runtime/cuda.Device.AddPeers gives the device
// their parameters. NCCL computes all calls if the GPUs do not reach each other's memory or are more than
// MaxRanks, and large calls if Options.NCCLBytes says so (nccl.go).
//
// Ranks are devices of one process, a goroutine each, or of several processes. All ranks make the
// same calls in the same order, eagerly or from graphs of any sizes; calls of a device must not overlap on two
// streams. If one goroutine launches the work of several ranks, it must not wait for a device between these launches.
//
// A kernel that waits for a rank longer than Options.Timeout, or finds that the group has ended,
// ends without a result. Waits for the device then return why the group has ended, such as a
// collective.LostError (C22), and Launch refuses further calls. A GPU that writes to memory of a process that was killed may be lost:
// the error is then a device.LostError too, and the process must restart.
package cuda

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"pwc/collective"
	"pwc/collective/cuda/peer"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/nccl"
	"pwc/runtime/device"
)

// Options configure the routines. All ranks use the same options.
type Options struct {
	// Code returns the kernel of a Variant. It is called when the first call that needs the kernel
	// is planned.
	Code Code

	// Timeout is how long a kernel waits for another rank. 0: one minute.
	Timeout time.Duration

	// NCCL opens NCCL, in the same version on all ranks; nil: NCCL is not used. It is called if NCCL
	// has calls to compute: all calls of a group whose GPUs do not reach each other's memory, or
	// are more than MaxRanks, and calls of NCCLBytes or more of other groups.
	NCCL func() (nccl.API, error)

	// NCCLBytes is the least size of one rank's part for which NCCL computes a call in groups
	// with peer memory. 0: such groups do not use NCCL. If ranks have different values, rank 0's counts.
	NCCLBytes int64

	// Counts, if it is not nil, counts the calls that were enqueued or captured.
	Counts *Counts
}

// Counts has the numbers of calls by the code that computes them.
type Counts struct {
	Peer  atomic.Int64 // kernels over peer memory
	Fused atomic.Int64 // kernels of programs, which compute an all_reduce and more
	NCCL  atomic.Int64
}

// Words of the memory that kernels share with the host, as in peer.cu.
const (
	controlEnd  = 0
	controlLost = 1
	lostBefore  = 1<<32 - 1 // in controlLost: a kernel ended without a result, as the group had ended
	controlSize = 64        // bytes
)

// Parameters of the kernels.
const (
	argDst = iota
	argSrc
	argBytes
	argTotal
	argRoot
	argDepth
	argPeers
	argCount = argPeers + peer.ValueCount
)

// Add gives a device the routines for groups that its rank has joined. Call it before the device loads programs. All
// ranks of each group must call it. All get an error if a rank fails while they meet, or if the group can use neither
// peer memory nor NCCL. The caller closes the groups. The work of all ranks must be done before a rank closes its
// device: synchronize the streams, then call Group.Barrier.
func Add(ctx context.Context, dev *cuda.Device, o Options, groups ...*collective.Group) error {
	l, err := newLibrary(dev, o)
	if err != nil {
		return err
	}
	for _, g := range groups {
		if err := l.join(ctx, g); err != nil {
			return errors.Join(err, l.free())
		}
	}
	if err := l.async.open(dev); err != nil {
		return errors.Join(err, l.free())
	}
	routines := device.OpSet{}
	for _, k := range collective.Kinds {
		routines[k.Name()] = &routine{k, l}
	}
	routines[program.CollectiveWait] = &waiting{l}
	if err := dev.AddLibrary(routines, 0, l.close); err != nil {
		return errors.Join(err, l.free())
	}
	dev.AddCheck(l.check)
	for name, r := range l.groups {
		if r.recv != nil && r.recv.nvlinked && (r.comm == nil || r.comm.from > fusedBytes) {
			params := peer.Values(r.control, uint64(l.options.Timeout), r.group.Rank(), r.recv.address)
			if err := dev.AddPeers(name, r.group.Size(), params, &l.options.Counts.Fused); err != nil {
				return err
			}
		}
	}
	for _, r := range l.groups {
		l.watching.Go(func() { l.watch(r) })
	}
	return nil
}

// fusedBytes is the size of 128 rows of 16,384 elements of bf16: most kernels with a fused all_reduce sum less. If NCCL
// computes calls of this size, programs use the routine instead of such kernels.
const fusedBytes = 4 << 20

// newLibrary returns a library without groups.
func newLibrary(dev *cuda.Device, o Options) (*library, error) {
	if o.Code == nil {
		return nil, errors.New("collective: Options.Code is needed")
	}
	if o.Timeout <= 0 {
		o.Timeout = time.Minute
	}
	if o.Counts == nil {
		o.Counts = new(Counts)
	}
	return &library{dev: dev, options: o, groups: map[string]*joined{}, stop: make(chan struct{})}, nil
}

// library is the routines of a device.
type library struct {
	dev      *cuda.Device
	options  Options
	groups   map[string]*joined // by group
	stop     chan struct{}      // closed by close
	watching sync.WaitGroup

	async asyncStream

	mu      sync.Mutex
	kernels map[kernelKey]*cuda.KernelCall
	failed  error // of aborts
}

// joined has the resources of a group that the rank of the device has joined.
type joined struct {
	group   *collective.Group
	recv    *recvBuffers      // receive buffers; nil: a group of one rank, or without peer memory
	comm    *communicator     // nil: NCCL is not used
	shared  device.HostMemory // the control words
	control uint64            // address of shared for kernels
}

// kernelKey identifies a loaded kernel of a group.
type kernelKey struct {
	group        string
	variant      Variant
	programmatic bool
}

// join meets the other ranks of a group.
func (l *library) join(ctx context.Context, g *collective.Group) error {
	if l.groups[g.Name()] != nil {
		return fmt.Errorf("collective: two groups are named %q", g.Name())
	}
	r := &joined{group: g}
	l.groups[g.Name()] = r
	if g.Size() == 1 {
		return nil
	}
	var err error
	if r.shared, err = l.dev.AllocHost(controlSize); err != nil {
		g.Fail(err) // the others wait for this rank
		return err
	}
	clear(r.shared.Bytes())
	if r.control, err = l.dev.HostPointer(r.shared); err != nil {
		g.Fail(err)
		return err
	}
	var unreached error
	if g.Size() > MaxRanks {
		unreached = fmt.Errorf("collective: group %q has %d ranks; kernels over peer memory serve up to %d", g.Name(), g.Size(), MaxRanks)
	} else if r.recv, err = meet(ctx, l.dev, g, l.options.NCCLBytes); err != nil {
		r.recv = nil // meet has freed it
		if unreached = err; !errors.Is(err, errUnreached) {
			return err
		}
	}
	return l.connect(ctx, r, unreached)
}

// word returns a word that kernels share with the host.
func (r *joined) word(i int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&r.shared.Bytes()[4*i]))
}

// watchEvery is how often the host looks whether a kernel gave up.
const watchEvery = 100 * time.Millisecond

// watch tells kernels that the group has ended, and the group that a kernel gave up.
func (l *library) watch(r *joined) {
	if r.shared == nil {
		return
	}
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-r.group.Done():
			r.word(controlEnd).Store(1)
			if r.comm != nil {
				l.aborted(r.comm.abort())
			}
			return
		case <-t.C:
			l.lost(r)
			if r.comm != nil {
				l.beat(r)
			}
		}
	}
}

// lost ends the group if a kernel waited too long for a rank, and reports whether a kernel ended
// without a result.
func (l *library) lost(r *joined) bool {
	v := r.word(controlLost).Load()
	if v != 0 && v != lostBefore {
		r.group.Lose(int(v-1), "a kernel", l.options.Timeout)
	}
	return v != 0 || r.comm != nil && r.comm.gone.Load()
}

// toldWithin is how long a rank whose kernels ended without a result, or whose device is lost, waits
// for the reason from the group: longer than the 6 s after which the group loses a stopped process.
const toldWithin = 7 * time.Second

// check is the function for cuda.Device.AddCheck.
func (l *library) check(gone error) error {
	for _, r := range l.groups {
		if r.shared == nil || gone == nil && !l.lost(r) {
			continue
		}
		select {
		case <-r.group.Done():
		case <-time.After(toldWithin):
			if gone == nil {
				gone = errors.New("its kernels ended without a result")
			}
			r.group.Fail(gone)
		}
		return r.group.Err()
	}
	return nil
}

// free frees the memory and destroys the communicators of all groups, if the device does not get the routines. Loaded
// kernels and streams remain until the device is closed.
func (l *library) free() error {
	var errs []error
	for _, r := range l.groups {
		if r.recv != nil {
			errs = append(errs, r.recv.free())
		}
		if r.comm != nil {
			errs = append(errs, l.dev.Do(r.comm.destroy), r.comm.heart.free())
		}
		if r.shared != nil {
			errs = append(errs, r.shared.Free())
		}
	}
	return errors.Join(errs...)
}

// close ends the watches and destroys the communicators. The device calls it when it closes, after it
// destroyed its graphs, and releases memory and kernels itself.
func (l *library) close() error {
	close(l.stop)
	l.watching.Wait()
	errs := []error{l.failed}
	for _, r := range l.groups {
		if r.comm != nil {
			errs = append(errs, r.comm.destroy())
		}
	}
	return errors.Join(errs...)
}

// aborted keeps the error of an abort for close to return.
func (l *library) aborted(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = errors.Join(l.failed, err)
}

// routine is one of collective.Kinds.
type routine struct {
	kind collective.Kind
	lib  *library
}

var _ device.Op = (*routine)(nil)

// Signature implements [device.Op].
func (r *routine) Signature() device.Signature { return r.kind.Signature("1") }

// parse checks a call and finds its group.
func (r *routine) parse(args []device.Tensor, attrs []program.Attr) (collective.Call, *joined, error) {
	c, err := collective.Parse(r.kind, args, attrs)
	if err != nil {
		return c, nil, err
	}
	x := r.lib.groups[c.Group]
	if x == nil {
		return c, nil, c.Check(nil)
	}
	return c, x, c.Check(x.group)
}

// ScratchBytes implements [device.Op]. It loads the kernel of a call over peer memory, and returns 0.
func (r *routine) ScratchBytes(args []device.Tensor, attrs []program.Attr) (int64, error) {
	c, x, err := r.parse(args, attrs)
	if err != nil || c.Size == 1 || c.Bytes == 0 {
		return 0, err
	}
	if x.takes(c) {
		return 0, nil
	}
	p := plan(c, x.recv.nvlinked)
	_, err = r.lib.kernel(x, p.variant, p.programmatic)
	return 0, err
}

// kernel returns a kernel, loaded, with the arguments that all calls have.
func (l *library) kernel(x *joined, v Variant, programmatic bool) (*cuda.KernelCall, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := kernelKey{x.group.Name(), v, programmatic}
	if k := l.kernels[key]; k != nil {
		return k, nil
	}
	code, err := l.options.Code(context.Background(), v)
	if err != nil {
		return nil, err
	}
	m, err := l.dev.LoadModule(code)
	if err != nil {
		return nil, fmt.Errorf("collective: %s: %w", v, err)
	}
	f, err := m.Function(entry)
	if err != nil {
		return nil, fmt.Errorf("collective: %s: %w", v, err)
	}
	k, err := f.NewCall(argCount, cuda.LaunchOptions{Programmatic: programmatic})
	if err != nil {
		return nil, fmt.Errorf("collective: %s: %w", v, err)
	}
	for i, v := range peer.Values(x.control, uint64(l.options.Timeout), x.group.Rank(), x.recv.address) {
		k.SetArg(argPeers+i, v)
	}
	if l.kernels == nil {
		l.kernels = map[kernelKey]*cuda.KernelCall{}
	}
	l.kernels[key] = k
	return k, nil
}

// Launch implements [device.Op].
func (r *routine) Launch(oc *device.OpCall) error {
	s, err := r.lib.stream(r.kind.Name(), oc)
	if err != nil {
		return err
	}
	c, x, err := r.parse(oc.Args, oc.Attrs)
	if err != nil {
		return err
	}
	if err := x.group.Err(); err != nil {
		return err
	}
	if c.Bytes == 0 {
		return nil
	}
	dst, src := oc.Args[0].Buffer, oc.Args[1].Buffer
	if c.Async && c.Size > 1 {
		return r.lib.async.call(s, dst, func(s *cuda.Stream) error { return r.enqueue(s, c, x, dst, src) })
	}
	if err := r.lib.async.joinAll(s); err != nil {
		return fmt.Errorf("%s: %w", r.kind.Name(), err)
	}
	return r.enqueue(s, c, x, dst, src)
}

// stream returns the stream of a call.
func (l *library) stream(name string, oc *device.OpCall) (*cuda.Stream, error) {
	s, ok := oc.Stream.(*cuda.Stream)
	if !ok || s.Device() != device.Device(l.dev) {
		return nil, fmt.Errorf("%s: %w", name, device.ErrForeignStream)
	}
	return s, nil
}

// enqueue enqueues a call of x's group on a stream.
func (r *routine) enqueue(s *cuda.Stream, c collective.Call, x *joined, dst, src device.Buffer) error {
	switch {
	case c.Size == 1:
		if dst == src {
			return nil
		}
		return s.Copy(dst, src)
	case x.takes(c):
		r.lib.options.Counts.NCCL.Add(1)
		return x.comm.enqueue(s, c, dst, src)
	}
	r.lib.options.Counts.Peer.Add(1)
	p := plan(c, x.recv.nvlinked)
	k, err := r.lib.kernel(x, p.variant, p.programmatic)
	if err != nil {
		return err
	}
	r.lib.mu.Lock()
	defer r.lib.mu.Unlock()
	k.Grid, k.Block = [3]uint32{uint32(p.blocks), 1, 1}, [3]uint32{uint32(p.threads), 1, 1}
	if err := errors.Join(k.SetBuffer(argDst, dst), k.SetBuffer(argSrc, src)); err != nil {
		return fmt.Errorf("%s: %w", r.kind.Name(), err)
	}
	k.SetArg(argBytes, uint64(p.bytes))
	k.SetArg(argTotal, uint64(p.total))
	k.SetArg(argRoot, uint64(c.Root))
	k.SetArg(argDepth, uint64(p.depth))
	return s.LaunchKernel(k)
}
