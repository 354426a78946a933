// Package cuda runs "attention::paged" (package attention) on NVIDIA GPUs, from
// sm_80 on.
//
// On tensor cores, an eager call launches one kernel for requests with many rows (prefills and chunks), one for those
// with few (decodes), or both in parallel if the step has both. With more than 16 query heads per key-value head, one
// kernel computes all requests. A launch appends the step's keys and values to the cache
// and splits contexts over blocks; the last block to finish combines the parts, in their order. A
// captured call is one launch, which does not depend on the step: it reads the
// step's metadata from device memory at a fixed address. It computes any step, and is tuned for
// decodes. Products run on tensor cores if q and the cache have one 16-bit dtype and the head size is a
// multiple of 16 up to 256, as far as shared memory suffices and a cache block has less than 2 GiB; others are
// computed in float32.
//
// The order of sums does not depend on the scheduling of blocks, and there are no float atomics. A
// row's result has the same bits whatever other requests are in a step of the same size.
//
// The owner of a step calls [Op.Prepare] before its launches: only this tells the op that an
// *attention.Batch has new metadata.
package cuda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"pwc/attention"
	"pwc/internal/cuda/gpuarch"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// Options bound the steps of an op, and provide its kernels.
type Options struct {
	MaxRows     int // rows of a step, padded ones included
	MaxRequests int // requests of a step; 0: MaxRows
	MaxBlocks   int // blocks of a request: the largest Stride of a Batch

	// Code returns a kernel when a call first needs it, mostly in [Op.ScratchBytes]. Target is the
	// target of the variants: "" for the device's, or an earlier one whose programs the device runs.
	Code   Code
	Target string
}

// Op is the op for one stream of a device, with the metadata of the step that is
// next on it. Its methods may be called from several goroutines.
type Op struct {
	dev     *cuda.Device
	options Options
	sms     int
	shared  int // bytes of shared memory that a block may have on the target

	mu       sync.Mutex
	kinds    map[Variant]*kinds // by the result of variantOf
	kernels  map[Variant]*kernel
	modules  []*cuda.Module
	counters device.Buffer // for each tile the number of parts that are done; zero between launches
	step     step
	closed   bool
}

// kernel is a loaded variant. Each launch sets its arguments.
type kernel struct {
	variant Variant
	call    *cuda.KernelCall
}

// The kernel's parameters, in order.
const (
	argPartial = attention.ArgO + 2
	argScale   = argPartial + 11
	argCount   = argScale + 4
)

var (
	_ device.Op       = (*Op)(nil)
	_ device.Preparer = (*Op)(nil)
)

// New returns the op for a device. It allocates [Op.Bytes] of device memory, and pinned host memory for
// the metadata of four steps. Close it before the device.
func New(dev *cuda.Device, o Options) (*Op, error) {
	if o.MaxRequests == 0 {
		o.MaxRequests = o.MaxRows
	}
	if o.MaxRows < 1 || o.MaxRequests < 1 || o.MaxBlocks < 1 || o.Code == nil {
		return nil, fmt.Errorf("%s: options %d rows, %d requests, %d blocks: all must be positive, and there must be Code", attention.Name, o.MaxRows, o.MaxRequests, o.MaxBlocks)
	}
	info := dev.Info()
	op := &Op{dev: dev, options: o, sms: max(1, int(info.Properties["device.sms"])), kinds: map[Variant]*kinds{}, kernels: map[Variant]*kernel{}}
	if op.options.Target == "" {
		op.options.Target = info.Target
	}
	_, n, err := arch(op.options.Target)
	if err != nil {
		return nil, err
	}
	op.shared = gpuarch.SharedBytes(n)
	if err := op.allocate(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", attention.Name, err), op.free())
	}
	return op, nil
}

// allocate allocates the memory that has the same address in all launches.
func (o *Op) allocate() error {
	if err := o.step.allocate(o.dev, &o.options); err != nil {
		return err
	}
	// A counter belongs to a tile index and a key-value head. Contexts are split only if tiles times heads are at
	// most twice the blocks that run on the GPU at once. A step has more tile indices than tiles, as requests
	// start at indices of their own: for large tiles up to 2*tensorTile times as many.
	m, err := o.dev.Alloc(2 * o.counterBytes()) // two launches of a call may overlap
	if err != nil {
		return err
	}
	o.counters = device.Buffer{Memory: m, Size: m.Size()}
	s, err := o.dev.NewStream()
	if err != nil {
		return err
	}
	return errors.Join(s.Fill(o.counters, 0), s.Fill(o.step.memory, 0), s.Synchronize(), s.Close())
}

// counterBytes returns the bytes of the counters of a launch.
func (o *Op) counterBytes() int64 { return 4 * int64(maxResident*o.sms) * (1 + 2*tensorTile) }

// countersOf returns the counters of a launch.
func (o *Op) countersOf(order launchOrder) device.Buffer {
	if order == orderSecond {
		return o.counters.Slice(o.counterBytes(), o.counterBytes())
	}
	return o.counters.Slice(0, o.counterBytes())
}

// Bytes returns the device memory that the op keeps, without the scratch of calls.
func (o *Op) Bytes() int64 { return o.step.memory.Size + o.counters.Size }

// Close frees the op's memory and kernels. No launch may be in flight, and graphs with launches of
// the op fail from then on. A second call does nothing.
func (o *Op) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	o.closed = true
	return o.free()
}

func (o *Op) free() error {
	errs := []error{o.step.free()}
	if o.counters.Memory != nil {
		errs = append(errs, o.counters.Memory.Free())
	}
	for _, m := range o.modules {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Signature returns the op's declaration. It can be captured.
func (o *Op) Signature() device.Signature { return attention.Signature(true, "1") }

// ScratchBytes returns the memory for the sums of parts of contexts, for calls with at most as many
// rows as the operands have. For new shapes the op gets their kernels from Options.Code and loads
// them.
func (o *Op) ScratchBytes(args []device.Tensor, attrs []program.Attr) (int64, error) {
	s, err := attention.ParseArgs(args)
	if err != nil {
		return 0, err
	}
	p, err := attention.ParseParams(attrs, s.HeadDim)
	if err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	kinds, err := o.kindsOf(&s, &p)
	if err != nil {
		return 0, err
	}
	needed := kinds.each()
	if v, _ := o.small(&s, kinds); v == &kinds.few {
		needed = []Variant{kinds.few}
		if kinds.hasLarge(&s) {
			needed = append(needed, kinds.large)
		}
	}
	for _, v := range needed {
		if _, err := o.kernel(v); err != nil {
			return 0, err
		}
	}
	return o.scratch(&s, kinds), nil
}

// kindsOf returns the kernels for calls of a shape.
func (o *Op) kindsOf(s *attention.Shape, p *attention.Params) (*kinds, error) {
	v, err := variantOf(s, p, o.shared)
	if err != nil {
		return nil, err
	}
	k := o.kinds[v]
	if k == nil {
		made := v.kinds(o.shared)
		k = &made
		o.kinds[v] = k
	}
	return k, nil
}

// kernel returns the kernel of a variant, loaded.
func (o *Op) kernel(v Variant) (*kernel, error) {
	if o.closed {
		return nil, fmt.Errorf("%s: %w", attention.Name, device.ErrClosed)
	}
	if k := o.kernels[v]; k != nil {
		return k, nil
	}
	code, err := o.options.Code(context.Background(), v)
	if err != nil {
		return nil, err
	}
	m, err := o.dev.LoadModule(code)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", attention.Name, v, err)
	}
	o.modules = append(o.modules, m)
	f, err := m.Function("paged")
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", attention.Name, v, err)
	}
	k := &kernel{variant: v}
	if k.call, err = f.NewCall(argCount, cuda.LaunchOptions{Programmatic: true}); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", attention.Name, v, err)
	}
	k.call.Block, k.call.Shared = [3]uint32{uint32(32 * v.Warps), 1, 1}, uint32(v.shared())
	o.kernels[v] = k
	return k, nil
}

// Launch enqueues the call, or records it. An eager launch prepares its metadata, unless the last
// prepared step has the same *attention.Batch and number of rows and was validated for the call's
// shape of cache: after a change of the batch in place, call Prepare.
func (o *Op) Launch(c *device.OpCall) error { return o.enqueue(c, false) }

// enqueue enqueues or records the call; in a warm-up it launches every kernel that an eager step
// of its size can need.
func (o *Op) enqueue(c *device.OpCall, warm bool) error {
	s, err := attention.ParseArgs(c.Args)
	if err != nil {
		return err
	}
	p, err := attention.ParseParams(c.Attrs, s.HeadDim)
	if err != nil {
		return err
	}
	stream, ok := c.Stream.(*cuda.Stream)
	if !ok {
		return fmt.Errorf("%s: %w", attention.Name, device.ErrForeignStream)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return fmt.Errorf("%s: %w", attention.Name, device.ErrClosed)
	}
	kinds, err := o.kindsOf(&s, &p)
	if err != nil {
		return err
	}
	if s.Rows > o.options.MaxRows {
		return fmt.Errorf("%s: %d rows, the op was made for %d (Options.MaxRows)", attention.Name, s.Rows, o.options.MaxRows)
	}
	if s.Rows == 0 {
		return nil
	}
	if err := o.step.serve(c, stream, &s); err != nil {
		return err
	}
	of, n := o.launches(&s, kinds, stream.Capturing(), warm)
	if tiles := max(of[0].tiles, of[1].tiles); tiles > math.MaxUint16 {
		return fmt.Errorf("%s: %d rows are %d tiles, a grid has room for %d", attention.Name, s.Rows, tiles, math.MaxUint16)
	}
	for i := range of[:n] {
		if err := o.launch(c, stream, &s, &p, &of[i]); err != nil {
			return err
		}
	}
	return nil
}

// launch enqueues or records a launch of a call.
func (o *Op) launch(c *device.OpCall, stream *cuda.Stream, s *attention.Shape, p *attention.Params, l *launch) error {
	k, err := o.kernel(*l.variant)
	if err != nil {
		return err
	}
	k.call.Shared = uint32(l.variant.sharedOf(l.resident, o.shared))
	k.call.Grid = [3]uint32{uint32(s.KVHeads), uint32(l.tiles), uint32(l.parts)}
	if need := partBytes(s) * int64(s.Rows*l.partCapacity); l.partCapacity > 1 && c.Scratch.Size < need {
		return fmt.Errorf("%s: scratch of %d bytes, %d are needed", attention.Name, c.Scratch.Size, need)
	}
	buffers := [...]device.Buffer{c.Args[attention.ArgQ].Buffer, c.Args[attention.ArgK].Buffer, c.Args[attention.ArgV].Buffer,
		c.Args[attention.ArgKV].Buffer, c.Args[attention.ArgO].Buffer, o.step.memory, c.Scratch, o.countersOf(l.order)}
	for i, b := range buffers {
		if err := k.call.SetBuffer(i, b); err != nil {
			return fmt.Errorf("%s: %w", attention.Name, err)
		}
		if k.variant.Tensor && i <= attention.ArgO {
			at, err := o.dev.Pointer(b)
			if err == nil && at%16 != 0 {
				err = fmt.Errorf("operand %d is at address %#x, not a multiple of 16", i, at)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", attention.Name, err)
			}
		}
	}
	for i, v := range [...]uint64{uint64(o.options.MaxRequests), uint64(o.options.MaxRows),
		uint64(s.Rows), uint64(l.minPairs), uint64(l.maxPairs), uint64(l.split.parts), uint64(l.split.longParts), uint64(l.partCapacity), uint64(l.order),
		uint64(math.Float32bits(float32(p.Scale))), uint64(math.Float32bits(float32(p.Softcap))), uint64(p.Window), uint64(o.sms)} {
		k.call.SetArg(len(buffers)+i, v)
	}
	return stream.LaunchKernel(k.call)
}
