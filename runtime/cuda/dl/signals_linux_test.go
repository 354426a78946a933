//go:build linux && (amd64 || arm64)

package dl

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestSignals: a handler without SA_ONSTACK is replaced by the handler before it, during a call and at
// its end. A signal that the program ignores meanwhile stays ignored.
func TestSignals(t *testing.T) {
	arrived := make(chan os.Signal, 1)
	signal.Notify(arrived, syscall.SIGUSR1)
	defer signal.Stop(arrived)
	var before action
	sigaction(int(syscall.SIGUSR1), nil, &before)
	bad := before
	bad.flags &^= onStack

	var s Signals
	is := func(want action) bool {
		var now action
		sigaction(int(syscall.SIGUSR1), nil, &now)
		return now == want
	}
	for range 2 {
		s.Enter()
		s.Enter()
		sigaction(int(syscall.SIGUSR1), &bad, nil)
		for !is(before) {
			time.Sleep(watchEvery)
		}
		s.Leave()
		sigaction(int(syscall.SIGUSR1), &bad, nil)
		s.Leave()
		if !is(before) {
			t.Fatal("the handler was not put back")
		}
	}
	s.Enter()
	signal.Ignore(syscall.SIGUSR1)
	time.Sleep(3 * watchEvery)
	s.Leave()
	if !signal.Ignored(syscall.SIGUSR1) || is(before) {
		t.Error("the setting of the program did not stay")
	}
	var ignored action
	sigaction(int(syscall.SIGUSR1), nil, &ignored)
	s.Enter()
	sigaction(int(syscall.SIGUSR1), &bad, nil)
	s.Leave()
	if is(before) {
		t.Error("Leave put back a handler that the program had removed before Enter")
	}
	sigaction(int(syscall.SIGUSR1), &ignored, nil)
	signal.Notify(arrived, syscall.SIGUSR1)
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	<-arrived

	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				s.Enter()
				s.Leave()
			}
		})
	}
	all.Wait()
	if !is(before) {
		t.Error("concurrent calls changed the handler")
	}
}
