package cli

import (
	"context"
	"sync"
	"time"
)

// holdKey is the context key of a mutex. [Main] locks it before it exits without waiting for a
// command that does not end in time after a signal.
type holdKey struct{}

// withHold returns a context whose commands can delay the end of the process.
func withHold(ctx context.Context) (context.Context, *sync.Mutex) {
	mu := &sync.Mutex{}
	return context.WithValue(ctx, holdKey{}, mu), mu
}

// whenReleased locks the mutex of [withHold] when no work holds it. After work that held it, the command gets the time
// grace again, to end on its own.
func whenReleased(held *sync.Mutex, grace time.Duration) {
	for !held.TryLock() {
		held.Lock()
		rest := time.After(grace)
		held.Unlock()
		<-rest
	}
}

// hold keeps the first signal from ending the process until release is called. It is for work that may
// take longer than grace and must be complete, such as a checkpoint. Calls must not be nested.
func hold(ctx context.Context) (release func()) {
	mu, ok := ctx.Value(holdKey{}).(*sync.Mutex)
	if !ok {
		return func() {}
	}
	mu.Lock()
	return mu.Unlock
}
