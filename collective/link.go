package collective

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// A process that ends closes its connections, which the other side sees at once. A process that hangs
// and a host that is down are noticed after silence. This and the time of a frame bound the time until
// all ranks know of a loss: ten seconds (C22).
const (
	beatEvery = time.Second
	silence   = 6 * time.Second
)

// link is a connection between two processes of a group. Any goroutine may call write.
type link struct {
	conn net.Conn
	size int // ranks of the group

	mu sync.Mutex // of writes
}

// write sends a frame.
func (l *link) write(k frameKind, payload []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(silence)); err != nil {
		return err
	}
	_, err := l.conn.Write(appendFrame(nil, k, payload))
	return err
}

// read returns the next frame that is not a beat.
func (l *link) read() (frame, error) {
	for {
		f, err := readFrame(patient{l.conn}, l.size)
		if err != nil {
			return f, described(err)
		}
		if f.kind != frameBeat {
			return f, nil
		}
	}
}

// patient is a connection that times out after silence without bytes.
type patient struct{ conn net.Conn }

// Read reads from the connection; each call has the whole time.
func (p patient) Read(b []byte) (int, error) {
	if err := p.conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return 0, err
	}
	return p.conn.Read(b)
}

// described adds to the error of a connection what it means for the other process.
func described(err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("its process ended, or its connection: %w", err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("nothing was heard of it for %s: %w", silence, err)
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
