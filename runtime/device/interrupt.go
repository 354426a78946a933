package device

import "context"

// Interruptible is a [Stream] that works while it is called, as the host's does, so that its
// caller would otherwise wait for all of the work after a context has ended.
type Interruptible interface {
	Stream

	// Until has operations give up once ctx has ended. It holds until it is called again;
	// context.Background() ends it. An operation that gives up returns the cause of ctx, and so
	// does each one after it; what they were to write is undefined. It allocates nothing.
	Until(ctx context.Context)

	// Ended returns the cause of the context if an operation gave up since Until was called,
	// an extern op's own work included.
	Ended() error
}
