package collective

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// client is a rank other than 0 of a group of processes.
type client struct {
	link    *link
	me      hello
	limit   time.Duration
	all     chan []byte   // answers to the exchanges of this rank
	stop    chan struct{} // closed when the rank leaves
	ended   chan struct{} // closed when reason is set
	running sync.WaitGroup

	mu     sync.Mutex
	reason error
	left   bool
}

// dial joins at the address of rank 0.
func dial(ctx context.Context, me hello, address string, o Options) (member, error) {
	until := time.Now().Add(o.joinLimit())
	reach, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	conn, shown, err := meet(reach, me, address)
	if err != nil {
		return nil, err
	}
	// Wait longer than rank 0 does: its answer names the missing ranks.
	ctx, cancelJoin := context.WithDeadline(ctx, until.Add(linger))
	defer cancelJoin()
	c := &client{link: &link{conn: conn, size: me.size}, me: me, limit: o.limit(), all: make(chan []byte, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	if err := c.introduce(ctx, shown); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c.running.Go(c.read)
	c.running.Go(func() { c.link.beat(c.stop) })
	return c, nil
}

// introduce sends the hello and waits until all ranks have joined.
func (c *client) introduce(ctx context.Context, shown hello) error {
	gone := func(err error) error {
		return &LostError{Group: c.me.name, Ranks: []int{0}, What: "the rendezvous", Cause: err}
	}
	if err := c.link.write(frameHello, shown.encode()); err != nil {
		return gone(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.link.conn.SetDeadline(time.Unix(1, 0)) })
	f, err := readFrame(c.link.conn, c.me.size) // ctx bounds the wait: others may join later
	if !stop() {
		return fmt.Errorf("not all ranks came: %w", context.Cause(ctx))
	}
	if err != nil {
		return gone(explain(err, unheard, silence))
	}
	switch f.kind {
	case frameWelcome:
		return nil
	case frameRefuse:
		return fmt.Errorf("rank 0 refuses: %q", f.payload)
	case frameEnd:
		return decodeEnding(c.me.name, c.me.size, 0, f.payload)
	}
	return fmt.Errorf("%w: message of kind %d, want a welcome", errFrame, f.kind)
}

// read handles the frames of rank 0 until the connection ends.
func (c *client) read() {
	for {
		f, err := c.link.read()
		if err != nil {
			c.fail(&LostError{Group: c.me.name, Ranks: []int{0}, Cause: err})
			return
		}
		switch f.kind {
		case frameAll:
			select {
			case c.all <- f.payload:
			default:
				c.fail(&LostError{Group: c.me.name, Ranks: []int{0}, Cause: fmt.Errorf("%w: an answer without an exchange", errFrame)})
			}
		case frameEnd:
			c.fail(decodeEnding(c.me.name, c.me.size, 0, f.payload))
		case frameLeave:
			c.fail(&LostError{Group: c.me.name, Ranks: []int{0}, Cause: ErrLeft})
		default:
			c.fail(&LostError{Group: c.me.name, Ranks: []int{0}, Cause: fmt.Errorf("%w: kind %d of rank 0", errFrame, f.kind)})
		}
	}
}

// fail ends the group on this rank. Only the first error is kept.
func (c *client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason == nil && !c.left {
		c.reason = err
		close(c.ended)
	}
}

func (c *client) exchange(ctx context.Context, what string, mine []byte, use func(all [][]byte) error) error {
	if err := c.usable(); err != nil {
		return err
	}
	if err := c.link.write(frameGive, encodeGive(what, mine)); err != nil {
		c.fail(&LostError{Group: c.me.name, Ranks: []int{0}, What: what, Cause: err})
	}
	// Wait longer than rank 0 does: its answer names the missing ranks.
	limit := time.NewTimer(c.limit + silence)
	defer limit.Stop()
	select {
	case answer := <-c.all:
		return c.use(what, answer, use)
	case <-c.ended:
		select {
		case answer := <-c.all: // it came before the end
			return c.use(what, answer, use)
		default:
		}
	case <-c.stop:
		return ErrClosed
	case <-ctx.Done():
		c.end(&LostError{Group: c.me.name, Ranks: []int{c.me.rank}, What: what, Cause: context.Cause(ctx)})
	case <-limit.C:
		c.end(&LostError{Group: c.me.name, Ranks: []int{0}, What: what, Waited: c.limit + silence, Cause: ErrMissing})
	}
	return c.err()
}

// use uses an answer of rank 0.
func (c *client) use(what string, answer []byte, use func(all [][]byte) error) error {
	all, err := decodeAll(answer, c.me.size)
	if err != nil {
		c.end(&LostError{Group: c.me.name, Ranks: []int{0}, What: what, Cause: err})
		return c.err()
	}
	return use(all)
}

func (c *client) usable() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left {
		return ErrClosed
	}
	return c.reason
}

// end ends the group and tells rank 0.
func (c *client) end(err error) {
	_ = c.link.write(frameEnd, encodeEnding(err)) // fails if rank 0 is gone, which needs no message
	c.fail(err)
}

func (c *client) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

func (c *client) done() <-chan struct{} { return c.ended }

// leave tells rank 0 and closes the connection.
func (c *client) leave() error {
	c.mu.Lock()
	if c.left {
		c.mu.Unlock()
		return ErrClosed
	}
	c.left = true
	c.mu.Unlock()
	close(c.stop)
	_ = c.link.write(frameLeave, nil) // fails if rank 0 is gone, which needs no message
	err := c.link.conn.Close()
	c.running.Wait()
	return err
}
