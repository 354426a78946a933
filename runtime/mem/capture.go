package mem

import (
	"fmt"

	"pwc/runtime/device"
)

// Capture is the use of a pool by one graph. It begins with the capture and
// lasts until the graph is gone.
type Capture struct {
	pool   *Pool
	stream device.Stream

	// Guarded by the allocator's lock.
	ended    bool
	released bool
}

// BeginCapture counts a use of the pool by a graph that s is about to capture,
// and until End lets only s allocate. One capture at a time is under way in a
// pool: a second gets an error that matches device.ErrCapturing.
func (p *Pool) BeginCapture(s device.Stream) (*Capture, error) {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	switch {
	case p.closed:
		return nil, p.closedError()
	case p.capturing != nil:
		return nil, fmt.Errorf("mem: pool %s: a capture is under way: %w", p.name, device.ErrCapturing)
	}
	c := &Capture{pool: p, stream: s}
	p.capturing = c
	p.uses++
	p.alloc.captures++
	return c, nil
}

// End says that the stream captures no more. The graph keeps using the pool. A
// second End returns an error that matches device.ErrNotCapturing.
func (c *Capture) End() error {
	c.pool.alloc.mu.Lock()
	defer c.pool.alloc.mu.Unlock()
	if c.ended {
		return fmt.Errorf("mem: pool %s: the capture has ended: %w", c.pool.name, device.ErrNotCapturing)
	}
	c.end()
	return nil
}

func (c *Capture) end() {
	c.ended = true
	c.pool.capturing = nil
	c.pool.alloc.captures--
}

// Release says that the graph is gone, or was never made: it ends a capture
// that has not ended. The memory stays with the pool. A second Release returns
// an error that matches device.ErrClosed.
func (c *Capture) Release() error {
	c.pool.alloc.mu.Lock()
	defer c.pool.alloc.mu.Unlock()
	if c.released {
		return fmt.Errorf("mem: pool %s: the capture was released: %w", c.pool.name, device.ErrClosed)
	}
	if !c.ended {
		c.end()
	}
	c.released = true
	c.pool.uses--
	return nil
}
