//go:build linux && (amd64 || arm64)

package dl

import (
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// lastSignal is the last standard signal; real-time signals follow.
const lastSignal = 31

// onStack is SA_ONSTACK: the handler runs on an alternate signal stack.
const onStack = 0x08000000

// action is the kernel's struct sigaction.
type action struct {
	handler, flags, restorer, mask uint64
}

// handles reports whether there is a handler: the addresses 0 and 1 are SIG_DFL and SIG_IGN.
func (a action) handles() bool { return a.handler > 1 }

// fit reports whether the handler uses the alternate signal stack. Otherwise it runs on the
// stack of the goroutine that the signal interrupts, and the Go runtime ends the process
// (os/signal, "Go programs that use cgo or SWIG").
func (a action) fit() bool { return a.flags&onStack != 0 }

func sigaction(sig int, to, was *action) {
	syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(was)), unsafe.Sizeof(was.mask), 0, 0)
}

// watchEvery is the time between two checks of the handlers.
const watchEvery = time.Millisecond

// Signals restores the process's signal handlers while functions of a library run that
// replace them. Every millisecond, and at the end of each call, the handler that a signal had
// before the calls replaces a handler without SA_ONSTACK. Handlers that a Go program sets
// meanwhile stay.
// The zero value is ready, for any number of goroutines.
type Signals struct {
	mu    sync.Mutex
	calls int
	kept  [lastSignal + 1]action // of signals with a handler
	stop  chan struct{}
	done  chan struct{}
}

// Enter begins a call that may replace handlers.
func (s *Signals) Enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls++; s.calls > 1 {
		return
	}
	for sig := 1; sig <= lastSignal; sig++ {
		var now action
		sigaction(sig, nil, &now)
		switch {
		case !now.handles(): // forget the handler of an earlier call
			s.kept[sig] = action{}
		case now.fit():
			s.kept[sig] = now
		}
	}
	s.stop, s.done = make(chan struct{}), make(chan struct{})
	go s.watch(s.stop, s.done)
}

// Leave ends a call that Enter began.
func (s *Signals) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls--; s.calls == 0 {
		close(s.stop)
		<-s.done
	}
	s.putBack()
}

func (s *Signals) watch(stop, done chan struct{}) {
	defer close(done)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			s.putBack()
		}
	}
}

// putBack replaces handlers without SA_ONSTACK by the kept ones.
func (s *Signals) putBack() {
	for sig := 1; sig <= lastSignal; sig++ {
		if !s.kept[sig].handles() {
			continue
		}
		var now action
		if sigaction(sig, nil, &now); now.handles() && !now.fit() {
			sigaction(sig, &s.kept[sig], nil)
		}
	}
}
