package collective

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(rankVariable) != "" {
		os.Exit(rankProcess())
	}
	goleak.VerifyTestMain(m)
}

// meetings are the ways of ranks to meet. Each returns the groups of all ranks.
var meetings = map[string]func(t *testing.T, size int, o Options) []*Group{
	"one process": func(t *testing.T, size int, o Options) []*Group {
		groups, err := Local("tp", size, o)
		if err != nil {
			t.Fatal(err)
		}
		return groups
	},
	"tcp": func(t *testing.T, size int, o Options) []*Group { return joined(t, size, freeAddress(t), o) },
	"file": func(t *testing.T, size int, o Options) []*Group {
		name := filepath.Join(t.TempDir(), "meeting")
		groups := joined(t, size, FileScheme+name, o)
		if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the file is left: %v", err)
		}
		return groups
	},
}

// freeAddress returns an address that nobody listens at.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func joined(t *testing.T, size int, address string, o Options) []*Group {
	t.Helper()
	groups, errs := make([]*Group, size), make([]error, size)
	var all sync.WaitGroup
	for rank := range size {
		all.Go(func() { groups[rank], errs[rank] = Join(t.Context(), "tp", rank, size, address, o) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return groups
}

// each runs f for each rank, and closes the groups.
func each(t *testing.T, groups []*Group, f func(g *Group) error) []error {
	t.Helper()
	errs := make([]error, len(groups))
	var all sync.WaitGroup
	for rank, g := range groups {
		all.Go(func() { errs[rank] = f(g) })
	}
	all.Wait()
	for _, g := range groups {
		all.Go(func() {
			if err := g.Close(); err != nil && !errors.Is(err, ErrClosed) {
				t.Errorf("close of rank %d: %v", g.Rank(), err)
			}
		})
	}
	all.Wait()
	return errs
}

// TestExchange: all ranks get the bytes of each rank, fewer than 3000, in rank order, also if ranks come late.
func TestExchange(t *testing.T) {
	for name, meet := range meetings {
		for _, size := range []int{1, 2, 3, 5} {
			errs := each(t, meet(t, size, Options{}), func(g *Group) error {
				random, late := rand.New(rand.NewPCG(7, 0)), rand.New(rand.NewPCG(7, uint64(g.Rank())))
				for i := range 30 {
					given := make([][]byte, size)
					for r := range given {
						given[r] = make([]byte, random.IntN(3000))
						for j := range given[r] {
							given[r][j] = byte(random.Uint32())
						}
					}
					if late.IntN(4) == 0 {
						time.Sleep(time.Duration(late.IntN(1000)) * time.Microsecond)
					}
					err := g.Exchange(t.Context(), fmt.Sprintf("exchange %d", i), given[g.Rank()], func(all [][]byte) error {
						for r := range all {
							if !bytes.Equal(all[r], given[r]) {
								return fmt.Errorf("exchange %d: rank %d gave %d bytes, and other ones came", i, r, len(given[r]))
							}
						}
						return nil
					})
					if err != nil {
						return err
					}
				}
				return nil
			})
			if err := errors.Join(errs...); err != nil {
				t.Fatalf("%s, %d ranks: %v", name, size, err)
			}
		}
	}
}

// TestEnds pins the errors of all ranks if one rank does something else than the others.
func TestEnds(t *testing.T) {
	barrier := func(g *Group) error { return g.Barrier(context.Background()) }
	for _, c := range []struct {
		name string
		of2  func(g *Group) error // rank 2; the others are at a barrier, except for rank 1 in "its context"
		want string
		is   error
	}{
		{"missing", func(g *Group) error { time.Sleep(400 * time.Millisecond); return g.Err() }, "rank 2 is lost in barrier after a wait of 200ms", ErrMissing},
		{"failed", func(g *Group) error { g.Fail(errors.New("no memory")); return g.Err() }, "rank 2 is lost: no memory", ErrLost},
		{"left", func(g *Group) error { _ = g.Close(); return nil }, "rank 2 is lost", ErrLeft},
		{"its context", func(g *Group) error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			return g.Exchange(ctx, "barrier", nil, nil)
		}, "rank 2 is lost in barrier: context deadline exceeded", ErrLost},
		{"another call", func(g *Group) error { return g.Exchange(context.Background(), "x", nil, nil) }, `calls x`, nil},
	} {
		for name, meet := range meetings {
			groups := meet(t, 3, Options{Limit: 200 * time.Millisecond})
			errs := each(t, groups, func(g *Group) error {
				if g.Rank() == 2 {
					return c.of2(g)
				}
				if c.name == "its context" && g.Rank() == 1 {
					<-g.Done() // without a call, so that rank 2 waits for this rank
					return g.Err()
				}
				return barrier(g)
			})
			for rank, err := range errs {
				if rank == 2 && c.is == ErrLeft {
					continue
				}
				if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
					t.Errorf("%s, %s: rank %d: %v, want %q", c.name, name, rank, err, c.want)
				}
				var mismatch *MismatchError
				if c.is == nil && !errors.As(err, &mismatch) {
					t.Errorf("%s, %s: rank %d: %T", c.name, name, rank, err)
				}
			}
		}
	}
}

// TestMisuse: wrong calls are errors, and change nothing.
func TestMisuse(t *testing.T) {
	for _, c := range []struct {
		name       string
		rank, size int
	}{{"", 0, 1}, {strings.Repeat("x", 65), 0, 1}, {"tp", -1, 2}, {"tp", 2, 2}, {"tp", 0, 0}, {"tp", 0, MaxSize + 1}} {
		if _, err := Join(t.Context(), c.name, c.rank, c.size, "127.0.0.1:0", Options{}); err == nil {
			t.Errorf("%+v joined", c)
		}
	}
	for name, meet := range meetings {
		for _, err := range each(t, meet(t, 2, Options{}), func(g *Group) error {
			if err := g.Exchange(t.Context(), "x", make([]byte, MaxExchange+1), nil); err == nil {
				return errors.New("too many bytes")
			}
			if err := g.Exchange(t.Context(), strings.Repeat("x", maxWhat+1), nil, nil); err == nil {
				return errors.New("too long a description")
			}
			if err := g.Barrier(t.Context()); err != nil {
				return err
			}
			own := errors.New("use")
			if err := g.Exchange(t.Context(), "x", nil, func([][]byte) error { return own }); err != own {
				return fmt.Errorf("the error of use is %w", err)
			}
			return g.Barrier(t.Context())
		}) {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestRefused: processes that are not of the group are told why, and the group forms without them.
func TestRefused(t *testing.T) {
	address := freeAddress(t)
	o := Options{Token: "secret", JoinLimit: 5 * time.Second}
	var all sync.WaitGroup
	groups, errs := make([]*Group, 2), make([]error, 2)
	all.Go(func() { groups[0], errs[0] = Join(t.Context(), "tp", 0, 2, address, o) })
	for _, c := range []struct {
		name       string
		rank, size int
		token      string
		want       string
	}{
		{"tp", 1, 2, "other", "the token differs"},
		{"tp", 1, 3, "secret", `gathers group "tp" of 2 ranks, not "tp" of 3`},
		{"dp", 1, 2, "secret", `not "dp"`},
	} {
		other := o
		other.Token = c.token
		if _, err := Join(t.Context(), c.name, c.rank, c.size, address, other); err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `\"`, `"`), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, garbage := range []string{"GET / HTTP/1.1\r\n\r\n", "", string(appendFrame(nil, frameHello, []byte("x"))), string(appendFrame(nil, frameGive, nil))} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Write([]byte(garbage))
		if err := errors.Join(err, conn.Close()); err != nil {
			t.Fatal(err)
		}
	}
	all.Go(func() { groups[1], errs[1] = Join(t.Context(), "tp", 1, 2, address, o) })
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, err := range each(t, groups, func(g *Group) error { return g.Barrier(t.Context()) }) {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestRendezvousLimit: ranks that wait for others that do not come get errors that name those, and a file that is
// left is refused.
func TestRendezvousLimit(t *testing.T) {
	address := freeAddress(t)
	o := Options{JoinLimit: 300 * time.Millisecond}
	errs := make([]error, 4)
	var all sync.WaitGroup
	for _, rank := range []int{0, 2} {
		all.Go(func() { _, errs[rank] = Join(t.Context(), "tp", rank, 4, address, o) })
	}
	all.Wait()
	if err := errs[0]; err == nil || !strings.Contains(err.Error(), "ranks 1, 3 are lost in the rendezvous") || !errors.Is(err, ErrMissing) {
		t.Errorf("rank 0: %v", err)
	}
	if err := errs[2]; err == nil || !strings.Contains(err.Error(), "ranks 1, 3 are lost in the rendezvous") {
		t.Errorf("rank 2: %v", err)
	}
	if _, err := Join(t.Context(), "tp", 1, 2, freeAddress(t), o); err == nil || !strings.Contains(err.Error(), "rank 0 was not reached") {
		t.Errorf("without a rank 0: %v", err)
	}
	testRefusedAreNamed(t)
	name := filepath.Join(t.TempDir(), "meeting")
	if err := os.WriteFile(name, []byte("left\n127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Join(t.Context(), "tp", 0, 2, FileScheme+name, o); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("a file that is there: %v", err)
	}
}

// TestRendezvousFileRemoved removes the file of a rendezvous after rank 1 has read it. If no other rank is missing,
// the group forms. Otherwise the errors of ranks 0 and 1 name the file. Rank 2, which comes later, gets an error that says
// that the file was removed, unless another run wrote a file there meanwhile. Rank 0 does not remove such a file.
func TestRendezvousFileRemoved(t *testing.T) {
	for _, size := range []int{2, 3} {
		testFileRemoved(t, size, false)
		testFileRemoved(t, size, true)
	}
}

func testFileRemoved(t *testing.T, size int, replaced bool) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "meeting")
	groups, errs := make([]*Group, 2), make([]error, 2)
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	var all sync.WaitGroup
	all.Go(func() { groups[0], errs[0] = Join(ctx, "tp", 0, size, FileScheme+name, Options{}) })
	secret, addresses, err := readMeeting(name)
	for ; errors.Is(err, os.ErrNotExist); secret, addresses, err = readMeeting(name) {
		time.Sleep(time.Millisecond)
	}
	if err := errors.Join(err, os.Remove(name)); err != nil {
		t.Fatal(err)
	}
	if replaced {
		if err := os.WriteFile(name, []byte("other\n127.0.0.1:1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all.Go(func() {
		defer giveUp() // rank 0 would wait for a minute if it refused rank 1
		groups[1], errs[1] = Join(t.Context(), "tp", 1, size, addresses[0], Options{Token: secret})
	})
	if size == 3 { // rank 2 does not come in time
		_, err := Join(t.Context(), "tp", 2, size, FileScheme+name, Options{JoinLimit: time.Second})
		if err == nil || replaced == strings.Contains(err.Error(), "the file was removed") {
			t.Errorf("rank 2, replaced %t: %v", replaced, err)
		}
		giveUp()
	}
	all.Wait()
	if _, err := os.Stat(name); replaced != (err == nil) {
		t.Errorf("%d ranks, replaced %t: the file: %v", size, replaced, err)
	}
	if size == 2 {
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(each(t, groups, func(g *Group) error { return g.Barrier(t.Context()) })...); err != nil {
			t.Error(err)
		}
		return
	}
	for rank, err := range errs {
		if !errors.Is(err, ErrMissing) {
			t.Fatalf("rank %d, replaced %t: %v, want ErrMissing", rank, replaced, err)
		}
		for _, want := range []string{"rank 2 is lost in the rendezvous", "during the rendezvous", name} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d, replaced %t: %v, want %q", rank, replaced, err, want)
			}
		}
	}
}

// TestRendezvousFileOfAnotherHost: if the file has the name of another host, a rank does not use the loopback address.
func TestRendezvousFileOfAnotherHost(t *testing.T) {
	if name, err := os.Hostname(); err != nil || name == "localhost" {
		t.Skipf("the host's name is %q (%v); the test needs another name than localhost", name, err)
	}
	foreign, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	_, port, _ := net.SplitHostPort(freeAddress(t))
	at := net.JoinHostPort("localhost", port)
	file := filepath.Join(t.TempDir(), "meeting")
	if err := os.WriteFile(file, []byte("secret\n"+foreign.Addr().String()+"\n"+at+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	groups, errs := make([]*Group, 2), make([]error, 2)
	var all sync.WaitGroup
	limit := 5 * time.Second
	all.Go(func() {
		groups[0], errs[0] = Join(t.Context(), "tp", 0, 2, at, Options{JoinLimit: limit, Token: "secret"})
	})
	all.Go(func() {
		groups[1], errs[1] = Join(t.Context(), "tp", 1, 2, FileScheme+file, Options{JoinLimit: limit})
	})
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(each(t, groups, func(g *Group) error { return g.Barrier(t.Context()) })...); err != nil {
		t.Error(err)
	}
}

// unready is a listener whose first calls of Accept fail.
type unready struct {
	net.Listener
	failures atomic.Int32
}

func (l *unready) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		return nil, syscall.EMFILE
	}
	return l.Listener.Accept()
}

// TestAcceptFails: if rank 0 cannot accept a connection at first, the group forms later. If it never can, its error
// says why.
func TestAcceptFails(t *testing.T) {
	for _, c := range []struct {
		failures int32
		limit    time.Duration
	}{{2, 10 * time.Second}, {math.MaxInt32, 200 * time.Millisecond}} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := &unready{Listener: listener}
		l.failures.Store(c.failures)
		ctx, cancel := context.WithTimeout(t.Context(), c.limit)
		var all sync.WaitGroup
		all.Go(func() {
			if g, err := Join(ctx, "tp", 1, 2, listener.Addr().String(), Options{}); err == nil {
				_ = g.Close()
			}
		})
		s := &server{local: local{newHub("tp", 2, time.Second), 0}, links: make([]*link, 2)}
		err = s.gather(ctx, hello{0, 2, "tp", ""}, l)
		switch {
		case c.failures == 2:
			if err := errors.Join(err, s.welcome()); err != nil {
				t.Errorf("after two failures: %v", err)
			}
		case !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "could not accept a connection: "+syscall.EMFILE.Error()):
			t.Errorf("failures only: %v, want ErrMissing with the reason", err)
		}
		all.Wait()
		cancel()
		_ = s.dismiss(ErrClosed)
	}
}

// testRefusedAreNamed: a process with another token is refused at once; the error of rank 0 has the address of the
// process, and why it was refused.
func testRefusedAreNamed(t *testing.T) {
	address := freeAddress(t)
	right, wrong := Options{Token: "right"}, Options{Token: "wrong"}
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	var all sync.WaitGroup
	var missing error
	all.Go(func() { _, missing = Join(ctx, "tp", 0, 2, address, right) })
	for range shownRefusals + 2 {
		if _, err := Join(t.Context(), "tp", 1, 2, address, wrong); err == nil || !strings.Contains(err.Error(), "the token differs") {
			t.Errorf("the wrong token: %v", err)
		}
	}
	giveUp()
	all.Wait()
	if missing == nil || !errors.Is(missing, ErrMissing) {
		t.Fatalf("rank 0: %v, want ErrMissing", missing)
	}
	host, _, _ := net.SplitHostPort(address)
	for _, want := range []string{"rank 1 is lost in the rendezvous", "rank 0 refused a process at " + host + ":", "the token differs", "and 2 more"} {
		if !strings.Contains(missing.Error(), want) {
			t.Errorf("rank 0: %v, want %q", missing, want)
		}
	}
}

// TestLongToken: ranks join at a file with the longest token, which is sent together with the file's secret.
func TestLongToken(t *testing.T) {
	for _, err := range each(t, meetings["file"](t, 2, Options{Token: strings.Repeat("t", MaxToken)}), func(g *Group) error {
		return g.Barrier(t.Context())
	}) {
		if err != nil {
			t.Error(err)
		}
	}
}

// sumOf exchanges numbers and checks them.
func sumOf(ctx context.Context, g *Group, i int) error {
	mine := binary.LittleEndian.AppendUint64(nil, uint64(i*(g.Rank()+1)))
	return g.Exchange(ctx, "sum", mine, func(all [][]byte) error {
		for r, b := range all {
			if got := binary.LittleEndian.Uint64(b); got != uint64(i*(r+1)) {
				return fmt.Errorf("rank %d gave %d in exchange %d", r, got, i)
			}
		}
		return nil
	})
}

// TestCloseDuringACall: if a rank of another process has closed the group when its call reaches the hub, the error of
// the call is a LostError that names the rank and matches ErrLeft.
func TestCloseDuringACall(t *testing.T) {
	s := &server{local: local{newHub("tp", 2, time.Second), 0}}
	if err := s.hub.leave(1); err != nil {
		t.Fatal(err)
	}
	var lost *LostError
	if _, err := s.exchangeFor(1, encodeGive("sum", nil)); !errors.As(err, &lost) || !errors.Is(err, ErrLeft) || len(lost.Ranks) != 1 || lost.Ranks[0] != 1 {
		t.Errorf("%v, want a LostError of rank 1 that matches ErrLeft", err)
	}
}
