package pieces

import (
	"bytes"
	"context"
	"sync"

	"pwc/cache"
)

// Store keeps artifacts. All methods may be called concurrently. Blobs are not
// changed after they are given or taken.
type Store interface {
	// Get returns the artifact of a key, and false where there is none. An error
	// means that there is one that cannot be used: it is reported, compiled again
	// and put, which repairs it. A [cache.UntrustedError] is a miss with a reason.
	Get(ctx context.Context, key cache.Key) ([]byte, bool, error)

	// Put adds or replaces the artifact of a key.
	Put(ctx context.Context, key cache.Key, blob []byte, p cache.Provenance) error

	// Lock waits until nobody else, in any process, makes the artifact of this
	// key; unlock lets the next one. It saves work and guards nothing: a store
	// that cannot lock returns at once. It fails only when ctx ends.
	Lock(ctx context.Context, key cache.Key) (unlock func(), err error)
}

// MemoryStore is a Store in memory, for builds of one process. The zero value
// is empty and ready.
type MemoryStore struct {
	mu    sync.Mutex
	blobs map[cache.Key][]byte
	locks map[cache.Key]chan struct{} // closed when the holder is done
}

// NewMemoryStore returns an empty store.
func NewMemoryStore() *MemoryStore { return &MemoryStore{} }

// Get implements [Store].
func (s *MemoryStore) Get(_ context.Context, key cache.Key) ([]byte, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	blob, ok := s.blobs[key]
	return blob, ok, nil
}

// Put implements [Store].
func (s *MemoryStore) Put(_ context.Context, key cache.Key, blob []byte, _ cache.Provenance) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blobs == nil {
		s.blobs = map[cache.Key][]byte{}
	}
	s.blobs[key] = bytes.Clone(blob)
	return nil
}

// Lock implements [Store].
func (s *MemoryStore) Lock(ctx context.Context, key cache.Key) (func(), error) {
	for {
		s.mu.Lock()
		held, taken := s.locks[key]
		if !taken {
			if s.locks == nil {
				s.locks = map[cache.Key]chan struct{}{}
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
