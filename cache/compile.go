package cache

import (
	"context"
	"errors"
)

// flight is a key that a goroutine of this process looks up and compiles.
type flight struct {
	done chan struct{} // closed when res and err are set
	res  Result
	err  error
}

// Result is what GetOrCompile found or made.
type Result struct {
	Blob []byte // shared by all who asked for the key at once: not to be written

	// Hit: this call compiled nothing. The blob was stored, or another
	// goroutine made it meanwhile.
	Hit bool

	// NotCached is why the compiled blob was not kept: a *NotCachedError, nil
	// if it was. It was logged.
	NotCached error
}

// GetOrCompile returns the blob of a key, calling compile if there is none, and
// keeps what it makes. One compile per key runs at a time, over all goroutines
// and processes that share the directory: the others wait for it and take what
// it stored. If the wait fails or is too long they compile too.
//
// accept, if not nil, checks what a hit means (program.Decode): a blob that it
// refuses is a damaged entry. What compile makes is the caller's to check.
//
// An error is that of compile, of ctx, or of factors or provenance that cannot
// be an entry. It is returned to all who wait, except that the end of one
// caller's ctx ends that caller alone.
func (s *Store) GetOrCompile(ctx context.Context, f Factors, accept func(blob []byte) error,
	compile func(ctx context.Context) ([]byte, Provenance, error)) (Result, error) {
	k := f.Key()
	if err := f.Validate(); err != nil {
		return Result{}, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return Result{}, err
		}
		s.mu.Lock()
		fl := s.flights[k]
		if fl == nil {
			fl = &flight{done: make(chan struct{}), err: errAbandoned}
			s.flights[k] = fl
			s.mu.Unlock()
			return s.fly(ctx, fl, k, f, accept, compile)
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return Result{}, ctx.Err()
		case <-fl.done:
		}
		if fl.err == nil {
			s.count.hits.Add(1)
			return Result{Blob: fl.res.Blob, Hit: true, NotCached: fl.res.NotCached}, nil
		}
		if !errors.Is(fl.err, errAbandoned) {
			return Result{}, fl.err
		}
	}
}

// errAbandoned is the outcome of a flight whose caller gave up: its context
// ended or compile panicked. Those who waited try themselves.
var errAbandoned = errors.New("cache: the compilation was abandoned")

// fly runs a flight and lands it, also when compile panics.
func (s *Store) fly(ctx context.Context, fl *flight, k Key, f Factors, accept func([]byte) error,
	compile func(ctx context.Context) ([]byte, Provenance, error)) (Result, error) {
	defer func() {
		s.mu.Lock()
		delete(s.flights, k)
		s.mu.Unlock()
		close(fl.done)
	}()
	res, err := s.getOrCompile(ctx, k, f, accept, compile)
	if err == nil || ctx.Err() == nil {
		fl.res, fl.err = res, err
	}
	return res, err
}

func (s *Store) getOrCompile(ctx context.Context, k Key, f Factors, accept func([]byte) error,
	compile func(ctx context.Context) ([]byte, Provenance, error)) (Result, error) {
	blob, err := s.lookup(k, accept, s.damaged)
	if err == nil {
		s.count.hits.Add(1)
		return Result{Blob: blob, Hit: true}, nil
	}
	release, err := s.lockKey(ctx, k)
	if err != nil {
		return Result{}, err
	}
	defer release()
	// Another process may have made it during the wait. What is still damaged
	// was reported above.
	if blob, err := s.lookup(k, accept, func(error) {}); err == nil {
		s.count.hits.Add(1)
		return Result{Blob: blob, Hit: true}, nil
	}
	s.count.misses.Add(1)
	blob, p, err := compile(ctx)
	if err != nil {
		return Result{}, err
	}
	res := Result{Blob: blob}
	if err := s.Put(ctx, f, blob, p); err != nil {
		if _, ok := errors.AsType[*NotCachedError](err); !ok {
			return Result{}, err
		}
		res.NotCached = err
	}
	return res, nil
}

// lockKey takes the lock on a key. The error is that of ctx; a lock that cannot
// be had is not needed.
func (s *Store) lockKey(ctx context.Context, k Key) (release func(), err error) {
	t, err := s.dir.create()
	if err != nil {
		return func() {}, nil // the Put will fail in the same way, and say so
	}
	unlock, err := t.lock(ctx, k.String(), false, true, s.lockTimeout)
	if err != nil {
		t.Close()
		if errors.Is(err, ctx.Err()) {
			return nil, err
		}
		s.noLock(err)
		return func() {}, nil
	}
	return func() { unlock(); t.Close() }, nil
}
