package collective

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// A process that ends closes its connections; the other side sees this at once. A stopped process
// (SIGSTOP) and a host that is down send no beats: their connections fail after the duration silence. A
// rank that hangs in a running process still sends beats; [Options.Limit] bounds the wait for its calls.
//
// All ranks know of a loss within ten seconds (C22): one process within silence, the others within
// sendLimit after that, which bounds a call that is blocked in a write, too.
const (
	beatEvery = time.Second
	silence   = 6 * time.Second
	sendLimit = 3 * time.Second // for a frame of any size; the largest has MaxExchange bytes for each rank
)

// link is a connection between two processes of a group. Any goroutine may call write.
type link struct {
	conn net.Conn
	size int // ranks of the group

	mu sync.Mutex // of writes
}

// write sends a frame, and fails if the other process does not take it within sendLimit.
func (l *link) write(k frameKind, payload []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(sendLimit)); err != nil {
		return err
	}
	_, err := l.conn.Write(appendFrame(nil, k, payload))
	return explain(err, "it did not take a message within", sendLimit)
}

// read returns the next frame that is not a beat.
func (l *link) read() (frame, error) {
	for {
		f, err := readFrame(patient{l.conn}, l.size)
		if err != nil {
			return f, explain(err, unheard, silence)
		}
		if f.kind != frameBeat {
			return f, nil
		}
	}
}

// patient is a connection whose Read fails if no byte arrives for the duration silence.
type patient struct{ conn net.Conn }

// Read sets a new deadline for each call.
func (p patient) Read(b []byte) (int, error) {
	if err := p.conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return 0, err
	}
	return p.conn.Read(b)
}

// unheard is the cause if a read timed out.
const unheard = "nothing was heard of it for"

// explain wraps an error of a connection with its likely cause in the other process: the process ended,
// or the text late, if limit was exceeded. Other errors are returned as they are.
func explain(err error, late string, limit time.Duration) error {
	var timeout net.Error
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("its process or its connection ended: %w", err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s %s: %w", late, limit, err)
	}
	return err
}

// beat sends beats until stop is closed.
func (l *link) beat(stop <-chan struct{}) {
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
			if l.write(frameBeat, nil) != nil {
				return // the reader of the link says why
			}
		}
	}
}
