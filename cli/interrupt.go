package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// interrupts has the handler of the next interrupt, for a command that ends only a part of its work
// at an interrupt.
type interrupts struct {
	mu sync.Mutex
	to func() // nil: an interrupt ends the command
}

// interruptsKey is the key of the interrupts in a context that [Main] makes.
type interruptsKey struct{}

// withSignals returns a context that an interrupt or SIGTERM cancels. The cause names the signal.
func withSignals(ctx context.Context) (_ context.Context, stop func()) {
	in := &interrupts{}
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, interruptsKey{}, in))
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for {
			select {
			case s := <-signals:
				if s == os.Interrupt && in.take() {
					continue
				}
				cancel(fmt.Errorf("%v signal received", s))
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// take calls the handler of onInterrupt, if there is one, and removes it: the next interrupt ends
// the command even if the handler had no effect.
func (in *interrupts) take() bool {
	in.mu.Lock()
	to := in.to
	in.to = nil
	in.mu.Unlock()
	if to != nil {
		to()
	}
	return to != nil
}

// onInterrupt makes the next interrupt call f instead of ending the command, until release is called.
func onInterrupt(ctx context.Context, f func()) (release func()) {
	in, ok := ctx.Value(interruptsKey{}).(*interrupts)
	if !ok {
		return func() {}
	}
	set := func(to func()) {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.to = to
	}
	set(f)
	return func() { set(nil) }
}
