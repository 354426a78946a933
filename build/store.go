package build

import (
	"bytes"
	"context"
	"sync"
	"time"
)

// Provenance is where an artifact came from: what people want to know of it and
// no look-up depends on.
type Provenance struct {
	Compiler string        // versions of the tools behind the target
	Origin   string        // "@forward item 2 (model.layers.0.mlp)", the first use
	Duration time.Duration // of compilation
}

// Store keeps artifacts. All methods may be called concurrently. Blobs are not
// changed after they are given or taken.
type Store interface {
	// Get returns the artifact of a key, and false where there is none. An error
	// means that there is one that cannot be used: it is reported, compiled again
	// and put, which repairs it.
	Get(ctx context.Context, key Key) ([]byte, bool, error)

	// Put adds or replaces the artifact of a key.
	Put(ctx context.Context, key Key, blob []byte, p Provenance) error

	// Lock waits until nobody else, in any process, makes the artifact of this
	// key; unlock lets the next one. It saves work and guards nothing: a store
	// that cannot lock returns at once. It fails only when ctx ends.
	Lock(ctx context.Context, key Key) (unlock func(), err error)
}

// MemoryStore is a Store in memory, for builds of one process. The zero value
// is empty and ready.
type MemoryStore struct {
	mu    sync.Mutex
	blobs map[Key][]byte
	locks map[Key]chan struct{} // closed when the holder is done
}

// NewMemoryStore returns an empty store.
func NewMemoryStore() *MemoryStore { return &MemoryStore{} }

// Get implements [Store].
func (s *MemoryStore) Get(_ context.Context, key Key) ([]byte, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	blob, ok := s.blobs[key]
	return blob, ok, nil
}

// Put implements [Store].
func (s *MemoryStore) Put(_ context.Context, key Key, blob []byte, _ Provenance) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blobs == nil {
		s.blobs = map[Key][]byte{}
	}
	s.blobs[key] = bytes.Clone(blob)
	return nil
}

// Lock implements [Store].
func (s *MemoryStore) Lock(ctx context.Context, key Key) (func(), error) {
	for {
		s.mu.Lock()
		held, taken := s.locks[key]
		if !taken {
			if s.locks == nil {
				s.locks = map[Key]chan struct{}{}
			}
			mine := make(chan struct{})
			s.locks[key] = mine
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.locks, key)
				s.mu.Unlock()
				close(mine)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Len returns the number of artifacts.
func (s *MemoryStore) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.blobs)
}
