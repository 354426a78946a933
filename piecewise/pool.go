package piecewise

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"pwc/runtime/device"
	"pwc/runtime/mem"
)

// Pool is the memory and the stream of backends that run one after the other on
// one device. They share the arena, so a run of one backend overwrites the
// intermediate results of another (C6). Only one run may be issued at a time; a
// second one gets [ErrBusy].
type Pool struct {
	dev    device.Device
	stream device.Stream
	pin    device.ThreadPinner // the stream, if it implements this; else nil
	alloc  *mem.Allocator
	mem    *mem.Pool // private: the arena and workspaces, which graphs overwrite
	busy   atomic.Bool
	until  device.Interruptible // the stream, if its calls execute the work; else nil
	limit  int64                // bytes of segments; 0: only the device's limit

	mu     sync.Mutex
	arena  device.Buffer // the current one
	work   device.Buffer // of library routines
	loaded int           // backends
	closed bool
	blocks []mem.Block // the workspace and all arenas: graphs may contain addresses of earlier ones
}

// NewPool makes a pool with a stream of its own on the device. limit is the maximum
// size of its segments together, in bytes; 0: only the device limits them.
func NewPool(dev device.Device, limit int64) (*Pool, error) {
	if dev == nil {
		return nil, fmt.Errorf("%w: NewPool was given nil", ErrNoDevice)
	}
	s, err := dev.NewStream()
	if err != nil {
		return nil, fmt.Errorf("piecewise: a stream for the pool: %w", err)
	}
	a := mem.New(mem.OverDevice(dev), mem.Options{Limit: limit})
	p := &Pool{dev: dev, stream: s, alloc: a, mem: a.NewPool("graphs"), limit: limit}
	p.pin, _ = s.(device.ThreadPinner)
	p.until, _ = s.(device.Interruptible)
	return p, nil
}

// Stream returns the stream of all work of the pool's backends.
func (p *Pool) Stream() device.Stream { return p.stream }

// Stats returns counters of the pool's device memory.
func (p *Pool) Stats() mem.Stats { return p.alloc.Stats() }

// Enter locks the calling goroutine to its thread until Leave, and makes the device's
// CUDA context current there once, not for each call: use it around several runs and
// the work that is enqueued between them. Calls nest. Only one goroutine at a time may
// enter a pool, and it must not use another device before Leave. On a device without
// such contexts it does nothing. After an error, do not call Leave.
func (p *Pool) Enter() error {
	if p.pin == nil {
		return nil
	}
	return p.pin.Enter()
}

// Leave ends what Enter began.
func (p *Pool) Leave() {
	if p.pin != nil {
		p.pin.Leave()
	}
}

// obey makes operations of a [device.Interruptible] stream stop when ctx ends, until settle.
func (p *Pool) obey(ctx context.Context) {
	if p.until != nil {
		p.until.Until(ctx)
	}
}

// settle ends obey. It returns err, or if that is nil and an operation stopped, the cause of ctx.
func (p *Pool) settle(err error) error {
	if p.until == nil {
		return err
	}
	if ended := p.until.Ended(); err == nil && ended != nil {
		err = fmt.Errorf("piecewise: %w", ended)
	}
	p.until.Until(context.Background())
	return err
}

// acquire marks the pool as busy until release.
func (p *Pool) acquire() error {
	if !p.busy.CompareAndSwap(false, true) {
		return ErrBusy
	}
	return nil
}

func (p *Pool) release() { p.busy.Store(false) }

// take allocates memory for weights, inputs and results from the default pool, without a
// stream: it is not reused in stream order. Graphs contain its addresses, but residents free it
// only after the graphs.
func (p *Pool) take(bytes int64, what string) (mem.Block, device.Buffer, error) {
	return p.takeFrom(p.alloc.Default(), nil, bytes, what)
}

// takeWork allocates memory that graphs of all backends share, for use on the pool's stream.
func (p *Pool) takeWork(bytes int64, what string) (mem.Block, device.Buffer, error) {
	return p.takeFrom(p.mem, p.stream, bytes, what)
}

func (p *Pool) takeFrom(from *mem.Pool, s device.Stream, bytes int64, what string) (mem.Block, device.Buffer, error) {
	if bytes == 0 {
		return mem.Block{}, device.Buffer{}, nil
	}
	b, err := from.Alloc(s, bytes)
	if err != nil {
		return b, device.Buffer{}, fmt.Errorf("piecewise: %d bytes for %s: %w", bytes, what, err)
	}
	buf, err := b.Buffer()
	return b, buf, err
}

// reserve returns an arena of at least so many bytes: the current one if it is large enough, so
// that backends share it, else a new one. Graphs hold addresses of the old one, so it stays until
// the pool closes. If the largest model is loaded first, there is one arena.
func (p *Pool) reserve(bytes int64) (device.Buffer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.arena.Size >= bytes {
		return p.arena, nil
	}
	block, b, err := p.takeWork(bytes, "the arena")
	if err != nil {
		return b, err
	}
	p.arena, p.blocks = b, append(p.blocks, block)
	return b, nil
}

// workspace allocates the workspace of the stream's library routines. It never
// grows, because all programs of a device need one size.
func (p *Pool) workspace(bytes int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.stream.(device.LibraryStream)
	if bytes == 0 || p.work.Size >= bytes || !ok {
		return nil
	}
	block, b, err := p.takeWork(bytes, "the workspace of library routines")
	if err != nil {
		return err
	}
	if err := s.UseWorkspace(b); err != nil {
		return errors.Join(err, p.mem.Free(block))
	}
	p.work, p.blocks = b, append(p.blocks, block)
	return nil
}

// count adds n to the number of loaded backends.
func (p *Pool) count(n int) {
	p.mu.Lock()
	p.loaded += n
	p.mu.Unlock()
}

// Close frees the pool's memory and closes its stream. While a backend that uses the
// pool is loaded, or has blocks of the pool during its Load or Close, it changes nothing and returns a
// [*mem.InUseError]. If a capture on the device forbids to free memory, the error matches [device.ErrCapturing], and Close can be called again. After another
// error of the device the pool is closed, too. A second Close does nothing.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := int64(len(p.blocks))
	// The pool itself is one of the uses. With a [Canary], a loaded backend may have no blocks.
	if n, live := p.mem.Uses()-1, p.alloc.Stats().ActiveBlocks.Now; p.loaded > 0 || n > 0 || live > own {
		why := fmt.Sprintf("%d loaded backends use the pool (close them)", p.loaded)
		if p.loaded == 0 {
			why = "no loaded backend uses the pool, but a Load or Close of a backend has not finished (wait for it, and close the backend)"
		}
		return fmt.Errorf("piecewise: %s: %w", why, &mem.InUseError{Pool: p.mem.Name(), Captures: n, Blocks: live - own})
	}
	if p.closed {
		return nil
	}
	p.closed = true
	var errs []error
	for _, b := range p.blocks {
		errs = append(errs, p.mem.Free(b))
	}
	p.blocks, p.arena, p.work = nil, device.Buffer{}, device.Buffer{}
	err := p.alloc.Close()
	errs = append(errs, err)
	if errors.Is(err, device.ErrCapturing) {
		p.closed = false
		return errors.Join(errs...)
	}
	errs = append(errs, p.stream.Close())
	return errors.Join(errs...)
}
