package nvrtc

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A compilation waits while as many run as may, and no longer than its context.
func TestCompileWaits(t *testing.T) {
	c := new(Library).Compiler()
	for range cap(c.slots) {
		c.slots <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, _, err := c.Compile(ctx, "", "k.cu", "not an architecture")
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatal("did not wait: ", err)
	case <-time.After(20 * time.Millisecond):
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	<-c.slots
	if _, _, err := c.Compile(t.Context(), "", "k.cu", "not an architecture"); err == nil || len(c.slots) != cap(c.slots)-1 {
		t.Errorf("%v, %d slots taken", err, len(c.slots))
	}
}
