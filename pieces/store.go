package pieces

import (
	"bytes"
	"context"
	"sync"

	"pwc/cache"
)

// Store keeps artifacts. All methods are safe for concurrent use. Neither the store nor its
// caller changes a blob after Get or Put.
type Store interface {
	// Get returns the artifact of a key; false if there is none. An error means that the artifact
	// cannot be used: the build reports it, compiles again, and repairs it by Put. A
	// [cache.UntrustedError] is a miss with a reason.
	Get(ctx context.Context, key cache.Key) ([]byte, bool, error)

	// Put adds or replaces the artifact of a key.
	Put(ctx context.Context, key cache.Key, blob []byte, p cache.Provenance) error

	// Lock waits until no other process or goroutine makes the artifact of the key; unlock
	// releases it. It saves work, and correctness does not depend on it: a store without locks
	// returns at once. It fails only if ctx ends.
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
