package collective

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"time"
)

// server is rank 0 of a group of processes: the hub, and for each other rank a link with a
// goroutine that calls the hub for it.
type server struct {
	local
	refused refusals
	links   []*link // by rank; nil: rank 0
	closed  chan struct{}
	running sync.WaitGroup
	told    chan struct{} // closed when all links have been told of the group's end, or are gone
	once    sync.Once
}

// serve waits until all ranks have joined.
func serve(ctx context.Context, me hello, address string, o Options) (member, error) {
	ctx, cancel := context.WithTimeout(ctx, o.joinLimit())
	defer cancel()
	l, token, forget, err := listen(ctx, address, o.Token)
	if err != nil {
		return nil, err
	}
	me.token = token
	s := &server{local: local{newHub(me.name, me.size, o.limit()), 0}, links: make([]*link, me.size), closed: make(chan struct{}), told: make(chan struct{})}
	err = s.gather(ctx, me, l)
	var lost *LostError
	switch gone := forget(); {
	case err == nil && errors.Is(gone, fs.ErrNotExist): // all ranks have read the file
	case gone != nil && errors.As(err, &lost):
		lost.Cause = fmt.Errorf("%w; %w", lost.Cause, gone)
	default:
		err = errors.Join(err, gone)
	}
	if err == nil {
		err = s.welcome()
	}
	if err != nil {
		return nil, errors.Join(err, s.dismiss(err))
	}
	var telling sync.WaitGroup
	for rank, k := range s.links {
		if k != nil {
			telling.Add(1)
			s.attend(rank, k, sync.OnceFunc(telling.Done))
		}
	}
	s.running.Go(func() {
		telling.Wait()
		close(s.told)
	})
	return s, nil
}

// arrival is a connection that has sent a hello.
type arrival struct {
	rank int
	link *link
}

// gather accepts connections until all ranks have joined, and closes the listener. It refuses
// connections of other groups; a refusal has no effect on the rendezvous.
func (s *server) gather(ctx context.Context, me hello, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	arrivals := make(chan arrival)
	var greeting sync.WaitGroup
	greeting.Go(func() {
		s.accept(ctx, l, func(conn net.Conn) { greeting.Go(func() { s.greet(ctx, me, conn, arrivals) }) })
	})
	var err error
	for missing := me.size - 1; missing > 0 && err == nil; {
		select {
		case a := <-arrivals:
			if s.links[a.rank] != nil {
				s.refuse(a.link, fmt.Errorf("rank %d has joined already", a.rank))
				_ = a.link.conn.Close()
				continue
			}
			s.links[a.rank] = a.link
			missing--
		case <-ctx.Done():
			err = s.absent(ctx)
		}
	}
	cancel()
	err = errors.Join(err, l.Close())
	greeting.Wait()
	return err
}

// accept passes connections to greet until the listener is closed or ctx ends. Other errors of Accept, such as too many
// open files, may pass: accept notes them for the error of a rendezvous that fails, and tries again.
func (s *server) accept(ctx context.Context, l net.Listener, greet func(net.Conn)) {
	for ctx.Err() == nil {
		conn, err := l.Accept()
		switch {
		case err == nil:
			greet(conn)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			s.refused.missed(err)
			select {
			case <-ctx.Done():
			case <-time.After(retryEvery):
			}
		}
	}
}

// dismiss tells the ranks that have joined why the rendezvous failed, and closes their connections.
func (s *server) dismiss(why error) error {
	var errs []error
	for _, k := range s.links {
		if k != nil {
			_ = k.write(frameEnd, encodeEnding(why)) // fails if the rank is gone, which needs no message
			errs = append(errs, k.conn.Close())
		}
	}
	return errors.Join(errs...)
}

// absent returns the error that names the ranks that did not join.
func (s *server) absent(ctx context.Context) error {
	e := &LostError{Group: s.hub.name, What: "the rendezvous", Cause: fmt.Errorf("%w: %w%s", ErrMissing, context.Cause(ctx), s.refused.text())}
	for rank, k := range s.links {
		if rank > 0 && k == nil {
			e.Ranks = append(e.Ranks, rank)
		}
	}
	return e
}

// greet reads a hello and passes the connection to gather.
func (s *server) greet(ctx context.Context, me hello, conn net.Conn, arrivals chan<- arrival) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	k := &link{conn: conn, size: me.size}
	h, err := hear(k)
	if err == nil {
		err = me.admits(h)
	}
	if err != nil && ctx.Err() == nil {
		s.refuse(k, err)
	}
	if !stop() || err != nil {
		_ = conn.Close()
		return
	}
	select {
	case arrivals <- arrival{h.rank, k}:
	case <-ctx.Done():
		_ = conn.Close()
	}
}

// refuse tells the process of a connection why it may not join, and notes it for the error of a rendezvous that fails.
func (s *server) refuse(k *link, why error) {
	s.refused.add(k.conn.RemoteAddr().String(), why)              // first: the end of the refused process may cancel this rendezvous
	_ = k.write(frameRefuse, []byte(cut(why.Error(), maxText-8))) // fails if the process is gone, which needs no message
}

// hear reads a hello from a connection.
func hear(k *link) (hello, error) {
	f, err := k.read()
	if err != nil {
		return hello{}, err
	}
	if f.kind != frameHello {
		return hello{}, fmt.Errorf("%w: message of kind %d, want a hello", errFrame, f.kind)
	}
	return decodeHello(f.payload)
}

// admits returns why a rank may not join; nil if it may.
func (h hello) admits(o hello) error {
	switch {
	case subtle.ConstantTimeCompare([]byte(h.token), []byte(o.token)) == 0:
		return errors.New("the token differs: set the same Options.Token on all ranks, and remove rendezvous files of earlier runs")
	case o.name != h.name || o.size != h.size:
		return fmt.Errorf("rank 0 gathers group %q of %d ranks, not %q of %d", h.name, h.size, o.name, o.size)
	case o.rank == 0:
		return errors.New("rank 0 is the one that listens")
	}
	return nil
}

// welcome tells all ranks that all have joined.
func (s *server) welcome() error {
	var errs []error
	for rank, k := range s.links {
		if k == nil {
			continue
		}
		if err := k.write(frameWelcome, nil); err != nil {
			errs = append(errs, &LostError{Group: s.hub.name, Ranks: []int{rank}, What: "the rendezvous", Cause: err})
		}
	}
	return errors.Join(errs...)
}

// attend starts the goroutines of a rank: one sends beats, one reads, so that it notices the end of the
// connection during a call, too, and one makes the rank's calls of the hub.
func (s *server) attend(rank int, k *link, told func()) {
	gives, gone := make(chan []byte, 1), make(chan struct{})
	s.running.Go(func() { k.beat(gone) })
	s.running.Go(func() {
		defer close(gone)
		defer close(gives)
		if err := s.read(rank, k, gives); err != nil {
			s.hub.end(&LostError{Group: s.hub.name, Ranks: []int{rank}, Cause: err})
		}
	})
	s.running.Go(func() {
		defer told()
		defer func() { _ = k.conn.Close() }()
		s.meetFor(rank, k, gives, gone, told)
	})
}

// read passes on the exchanges of the rank until it leaves.
func (s *server) read(rank int, k *link, gives chan<- []byte) error {
	for {
		f, err := k.read()
		if err != nil {
			return err
		}
		switch f.kind {
		case frameGive:
			select {
			case gives <- f.payload:
			default:
				return fmt.Errorf("%w: an exchange before the one before was answered", errFrame)
			}
		case frameEnd:
			s.hub.end(decodeEnding(s.hub.name, k.size, rank, f.payload))
		case frameLeave:
			_ = s.hub.leave(rank) // cannot fail: read returns after it, so a rank leaves once
			return nil
		default:
			return fmt.Errorf("%w: kind %d of a rank that has joined", errFrame, f.kind)
		}
	}
}

// exchange calls the hub for rank 0. Before it returns an error that ends the group, it waits up to linger until
// the other ranks were told: otherwise the end of this process would look like the cause.
func (s *server) exchange(ctx context.Context, what string, mine []byte, use func(all [][]byte) error) error {
	err := s.local.exchange(ctx, what, mine, use)
	if err != nil && s.hub.reason() != nil {
		select {
		case <-s.told:
		case <-time.After(linger):
		}
	}
	return err
}

// meetFor makes the calls of a rank until its connection ends. It calls told when the rank was told
// of the group's end.
func (s *server) meetFor(rank int, k *link, gives <-chan []byte, gone <-chan struct{}, told func()) {
	ended, closed := s.hub.ended, s.closed
	for {
		select {
		case g, ok := <-gives:
			if !ok {
				return
			}
			answer, err := s.exchangeFor(rank, g)
			if err != nil {
				s.hub.end(err) // no effect if the group has ended; otherwise the rank's own error
				ended = s.hub.ended
				continue
			}
			if err := k.write(frameAll, answer); err != nil {
				s.hub.end(&LostError{Group: s.hub.name, Ranks: []int{rank}, Cause: err})
			}
		case <-ended:
			_ = k.write(frameEnd, encodeEnding(s.hub.reason()))
			told()
			ended = nil // the rank reads it and leaves, or closes
			defer time.AfterFunc(linger, func() { _ = k.conn.SetReadDeadline(time.Unix(1, 0)) }).Stop()
		case <-closed:
			_ = k.write(frameLeave, nil)
			closed = nil
			defer time.AfterFunc(linger, func() { _ = k.conn.Close() }).Stop()
		case <-gone:
			return
		}
	}
}

// linger is how long rank 0 waits after the group's end: for the ranks to be told, and for each to close its
// connection. In a rendezvous, the other ranks wait for its answer for as long after the limit.
const linger = 2 * time.Second

// exchangeFor makes an exchange for a rank, and encodes the bytes of all ranks.
func (s *server) exchangeFor(rank int, give []byte) (answer []byte, err error) {
	what, data, err := decodeGive(give)
	if err == nil && len(data) > MaxExchange {
		err = fmt.Errorf("%w: an exchange of %d bytes", errFrame, len(data))
	}
	if err != nil {
		return nil, &LostError{Group: s.hub.name, Ranks: []int{rank}, Cause: err}
	}
	err = s.hub.exchange(context.Background(), rank, what, data, func(all [][]byte) error {
		answer = encodeAll(all)
		return nil
	})
	if errors.Is(err, ErrClosed) { // the rank closed the group during its call
		err = &LostError{Group: s.hub.name, Ranks: []int{rank}, What: what, Cause: ErrLeft}
	}
	return answer, err
}

// leave closes the group on rank 0, and waits until the goroutines of all other ranks have ended.
func (s *server) leave() error {
	err := s.local.leave()
	s.once.Do(func() {
		close(s.closed)
		s.running.Wait()
	})
	return err
}
