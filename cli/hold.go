package cli

import (
	"context"
	"sync"
)

// holdKey is the key of the lock in a context that [Main] takes before it leaves what does not
// end in time after a signal.
type holdKey struct{}

// withHold returns a context whose commands can put the end of the process off.
func withHold(ctx context.Context) (context.Context, *sync.Mutex) {
	mu := &sync.Mutex{}
	return context.WithValue(ctx, holdKey{}, mu), mu
}

// hold keeps a first signal from ending the process until release is called: for what takes
// longer than the grace and must be whole, such as the checkpoint of a run.
func hold(ctx context.Context) (release func()) {
	mu, ok := ctx.Value(holdKey{}).(*sync.Mutex)
	if !ok {
		return func() {}
	}
	mu.Lock()
	return mu.Unlock
}
