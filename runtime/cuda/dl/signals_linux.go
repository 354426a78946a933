//go:build linux && (amd64 || arm64)

package dl

import (
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// lastSignal is the last of the signals that are not for a program's own use.
const lastSignal = 31

// onStack is SA_ONSTACK: the handler runs on a stack of its own.
const onStack = 0x08000000

// action is the kernel's struct sigaction.
type action struct {
	handler, flags, restorer, mask uint64
}

// handles reports whether there is a handler: the first two addresses mean the
// default and to ignore the signal.
func (a action) handles() bool { return a.handler > 1 }

// fit reports whether a Go program survives the handler: it runs on the stack of
// whatever goroutine the signal meets unless it has one of its own, and the Go
// runtime then ends the process (os/signal, "Non-Go programs").
func (a action) fit() bool { return a.flags&onStack != 0 }

func sigaction(sig int, to, was *action) {
	syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(was)), unsafe.Sizeof(was.mask), 0, 0)
}

// watchEvery is how long a library's own handler stays at most.
const watchEvery = time.Millisecond

// Signals keeps the process's handlers of signals while functions of a library run
// that replace them. A handler that has no stack of its own gives way to the one
// that was there before, within a millisecond and when the call has ended; handlers
// that a Go program sets meanwhile stay. The zero value is ready, for any number of
// goroutines.
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
		case !now.handles(): // the program may have had one at an earlier call
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

// putBack replaces handlers that a Go program does not survive.
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
