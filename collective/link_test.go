package collective

import (
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLinkFailures: a process that reads nothing and one that sends nothing have different errors. A blocked write
// ends in time for C22, also while the process still sends beats.
func TestLinkFailures(t *testing.T) {
	for _, c := range []struct {
		name, want string
		limit      time.Duration
		fail       func(l *link, other net.Conn) error
	}{
		{"unread", "it did not take a message within 3s: ", 10*time.Second - silence, func(l *link, _ net.Conn) error {
			return l.write(frameBeat, nil)
		}},
		{"unread while it sends", "it did not take a message within 3s: ", 10*time.Second - silence, func(l *link, other net.Conn) error {
			stop, read := make(chan struct{}), make(chan error)
			go (&link{conn: other, size: 2}).beat(stop)
			go func() { _, err := l.read(); read <- err }()
			err := l.write(frameBeat, nil)
			close(stop)
			l.conn.Close()
			<-read
			return err
		}},
		{"silent", "nothing was heard of it for 6s: ", silence, func(l *link, _ net.Conn) error {
			_, err := l.read()
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mine, other := net.Pipe()
				defer mine.Close()
				defer other.Close()
				start := time.Now()
				err := c.fail(&link{conn: mine, size: 2}, other)
				if err == nil || !strings.HasPrefix(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				if took := time.Since(start); took > c.limit {
					t.Errorf("failed after %s, want %s at most", took, c.limit)
				}
			})
		})
	}
}

// TestLinkEnd: after the other process ended, a read and a write report this end.
func TestLinkEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mine, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	k := &link{conn: mine, size: 2}
	const want = "its process or its connection ended: "
	if _, err := k.read(); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("read: %v, want %q", err, want)
	}
	for range 1000 {
		if err = k.write(frameGive, make([]byte, MaxExchange)); err != nil {
			break
		}
	}
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("write: %v, want %q", err, want)
	}
}
