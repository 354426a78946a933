package collective

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pwc/internal/openfile"
)

// FileScheme is the prefix of an address that is a file: "file:/shared/run1". Rank 0 writes to it
// the TCP addresses that it listens at, and a secret that the other ranks send.
const FileScheme = "file:"

// Join joins a group of processes as one of its ranks, and returns when all have joined. address is
// the same on all ranks: "host:port", where rank 0 listens, or FileScheme and the name of a file
// that all ranks can read. The file must not exist: rank 0 creates it, and removes it before its Join
// returns. Nobody else may remove it: a rank that has not read it cannot join then.
//
// Rank 0 refuses a process with another token or group, or a rank that has joined, and continues to wait: otherwise any
// process that reaches its port could end the run. If ranks do not join within Options.JoinLimit, the error of rank 0
// names them, and the first four processes that it refused.
func Join(ctx context.Context, name string, rank, size int, address string, o Options) (*Group, error) {
	if err := checkGroup(name, rank, size); err != nil {
		return nil, err
	}
	if len(o.Token) > MaxToken {
		return nil, fmt.Errorf("collective: group %q: a token of %d bytes, the most is %d", name, len(o.Token), MaxToken)
	}
	me := hello{rank, size, name, o.Token}
	var m member
	var err error
	if rank == 0 {
		m, err = serve(ctx, me, address, o)
	} else {
		m, err = dial(ctx, me, address, o)
	}
	if err != nil {
		return nil, fmt.Errorf("collective: group %q: rank %d of %d joins at %s: %w", name, rank, size, address, err)
	}
	return &Group{name, rank, size, address, m}, nil
}

// listen returns a listener for an address, and the token that ranks must send: Options.Token, with the
// secret of the file if the address is one. forget removes that file; its error matches fs.ErrNotExist if
// the file was removed or replaced meanwhile.
func listen(ctx context.Context, address, token string) (l net.Listener, expected string, forget func() error, err error) {
	forget = func() error { return nil }
	file, isFile := strings.CutPrefix(address, FileScheme)
	if !isFile {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", address)
		return l, token, forget, err
	}
	if l, err = new(net.ListenConfig).Listen(ctx, "tcp", ":0"); err != nil {
		return nil, "", nil, err
	}
	secret := rand.Text()
	if err := writeMeeting(file, l.Addr().(*net.TCPAddr).Port, secret); err != nil {
		return nil, "", nil, errors.Join(err, l.Close())
	}
	return l, token + secret, func() error { return removeMeeting(file, secret) }, nil
}

// removeMeeting removes the file that writeMeeting wrote, and leaves a file that another run has written since.
func removeMeeting(file, secret string) error {
	if now, _, err := readMeeting(file); err == nil && now != secret {
		return fmt.Errorf("%s was replaced during the rendezvous and has the addresses of another run: %w", file, fs.ErrNotExist)
	}
	err := os.Remove(file)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("the file was removed during the rendezvous, so ranks that came later could not read it: %w", err)
	}
	return err
}

// loopback is the first address of a file, for ranks on the host of rank 0: they need no name service.
const loopback = "127.0.0.1"

// writeMeeting writes a file with the addresses of this host and a secret. The file appears complete,
// and it is an error if it exists.
func writeMeeting(file string, port int, secret string) error {
	hosts := []string{loopback}
	if name, err := os.Hostname(); err == nil && strings.IndexFunc(name, func(r rune) bool { return r <= ' ' }) < 0 {
		hosts = append(hosts, name)
	}
	text := secret + "\n"
	for _, h := range hosts {
		text += net.JoinHostPort(h, fmt.Sprint(port)) + "\n"
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".meeting")
	if err != nil {
		return err
	}
	_, err = tmp.WriteString(text)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Link(tmp.Name(), file) // fails if the file exists; a rename would replace it
	}
	err = errors.Join(err, os.Remove(tmp.Name()))
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%w: another run uses the file, or one that ended left it: remove it or choose another", err)
	}
	return err
}

const (
	maxMeeting = 4 << 10 // bytes of a file for a rendezvous
	maxSecret  = 64      // bytes of its secret, which is sent behind Options.Token
)

// readMeeting returns the secret and the addresses of a file.
func readMeeting(file string) (secret string, addresses []string, err error) {
	b, err := openfile.Read(file, maxMeeting)
	if err != nil {
		return "", nil, err
	}
	return parseMeeting(file, b)
}

func parseMeeting(file string, b []byte) (secret string, addresses []string, err error) {
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	if len(b) > maxMeeting || len(lines) < 2 || len(lines) > 16 || lines[0] == "" || len(lines[0]) > maxSecret {
		return "", nil, fmt.Errorf("%s: its %d bytes are not a secret and addresses, which rank 0 of a group writes; choose another file", file, len(b))
	}
	for _, a := range lines[1:] {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return "", nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return lines[0], lines[1:], nil
}

// reachable returns the addresses of a file at which this host reaches rank 0: without the loopback address if the file
// has the name of another host. Another program may listen at that port here, and would get the secret.
func reachable(addresses []string) []string {
	name, _ := os.Hostname()
	others := slices.DeleteFunc(slices.Clone(addresses), func(a string) bool { return hostOf(a) == loopback })
	if len(others) == 0 || slices.ContainsFunc(others, func(a string) bool { return hostOf(a) == name }) {
		return addresses
	}
	return others
}

// hostOf returns the host of an address of a file.
func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address) // parseMeeting has checked it
	return host
}

// retryEvery is the pause after an attempt to reach rank 0, or to accept a connection, that failed.
const retryEvery = 50 * time.Millisecond

// meet connects to rank 0, which may not listen yet.
func meet(ctx context.Context, me hello, address string) (net.Conn, hello, error) {
	for {
		conn, shown, err := try(ctx, me, address)
		if err == nil {
			return conn, shown, nil
		}
		select {
		case <-ctx.Done():
			return nil, me, fmt.Errorf("rank 0 was not reached: %w", err)
		case <-time.After(retryEvery):
		}
	}
}

// try connects once. shown has the token that the address asks for.
func try(ctx context.Context, me hello, address string) (conn net.Conn, shown hello, err error) {
	addresses := []string{address}
	if file, ok := strings.CutPrefix(address, FileScheme); ok {
		secret, found, err := readMeeting(file)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("it has not written the file, or the file was removed: %w", err)
		}
		if err != nil {
			return nil, me, err
		}
		me.token += secret
		addresses = reachable(found)
	}
	var errs []error
	for _, a := range addresses {
		conn, err := (&net.Dialer{Timeout: silence}).DialContext(ctx, "tcp", a)
		if err == nil {
			return conn, me, nil
		}
		errs = append(errs, err)
	}
	return nil, me, errors.Join(errs...)
}
