package piecewise

import (
	"errors"
	"fmt"
	"sync"

	"pwc/runtime/device"
)

// stage is the last step of the lifecycle that a backend has completed.
type stage uint8

const (
	compiled stage = iota
	loaded
	warm
	capturedAll
	sealed
	closed
)

var stageNames = [...]string{"not loaded", "loaded", "warm", "captured", "sealed", "closed"}

// lifecycle is the stage of a backend, and the device fault (C13) that ended it. Any goroutine may read it.
type lifecycle struct {
	mu    sync.Mutex
	stage stage
	lost  error // the device fault that ended the backend (C13)
}

// at returns the stage.
func (l *lifecycle) at() stage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stage
}

// close sets the stage closed, and returns the one before.
func (l *lifecycle) close() stage {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.stage
	l.stage = closed
	return was
}

// enter acquires the pool for a call that is legal from stage lo to stage hi. The caller releases the
// pool unless enter fails.
func (b *Backend) enter(lo, hi stage) error {
	if b.pool == nil {
		return ErrNoDevice
	}
	if err := b.pool.acquire(); err != nil {
		return err
	}
	b.mu.Lock()
	s, lost := b.stage, b.lost
	b.mu.Unlock()
	if lost != nil || s == closed || s < lo || s > hi {
		b.pool.release()
		if s == closed {
			return ErrClosed
		}
		if lost != nil {
			return lost
		}
		return fmt.Errorf("%w: the order is New, Load, Warmup, Capture, Seal, and runs after Load; the backend is %s", ErrOrder, stageNames[s])
	}
	return nil
}

// deviceLost returns the first error that is [device.ErrDeviceLost], or nil.
func (l *lifecycle) deviceLost() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// note returns err. If err is [device.ErrDeviceLost] it is kept: later calls return it
// at once; Close still frees what it can.
func (l *lifecycle) note(err error) error {
	if errors.Is(err, device.ErrDeviceLost) {
		l.mu.Lock()
		if l.lost == nil {
			l.lost = err
		}
		l.mu.Unlock()
	}
	return err
}

func (l *lifecycle) advance(s stage) {
	l.mu.Lock()
	l.stage = max(l.stage, s)
	l.mu.Unlock()
}
