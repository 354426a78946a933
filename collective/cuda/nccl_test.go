package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"pwc/collective"
	collectivecuda "pwc/collective/cuda"
	"pwc/collective/internal/cases"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/cuda/ncclfake"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/nccl"
)

// withNCCL opens n devices, and returns options with which NCCL computes all calls. The devices are GPUs of the
// machine, with its NCCL. If it has fewer or emulated is true, they are emulated ones that do not reach each other's
// memory, with a fake of NCCL, which is returned.
func withNCCL(t *testing.T, n int, emulated bool) ([]*cudatest.Opened, *ncclfake.Library, collectivecuda.Options) {
	t.Helper()
	f := fake.New(fake.Options{Devices: n, NoPeers: true})
	library := ncclfake.New(f)
	var devices []*cudatest.Opened
	if !emulated {
		if devices = cudatest.Several(t, n, fake.Options{}); !devices[0].Emulated {
			if l, err := nccl.Open(nccl.Options{}); err != nil {
				t.Skip(err)
			} else {
				t.Logf("NCCL %s of %s", nccl.FormatVersion(l.Version()), l.Path())
			}
			open := func() (nccl.API, error) { return nccl.Open(nccl.Options{}) }
			return devices, nil, collectivecuda.Options{NCCL: open, NCCLBytes: 1, Counts: new(collectivecuda.Counts)}
		}
		devices = nil
	}
	for i := range n {
		d, err := cuda.Open(cuda.Options{Ordinal: i, Driver: f})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			if i == 0 && library.Live() > 0 { // device 0 is closed last
				t.Errorf("%d communicators are left", library.Live())
			}
		})
		devices = append(devices, &cudatest.Opened{Device: d, Emulated: true})
	}
	never := func(context.Context, collectivecuda.Variant) (*program.Program, error) {
		return nil, errors.New("a kernel over peer memory was asked for")
	}
	return devices, library, collectivecuda.Options{Code: never, NCCL: func() (nccl.API, error) { return library, nil }, Counts: new(collectivecuda.Counts)}
}

// TestNCCLRoutines compares results that NCCL computes with those of integers, eagerly and in a graph; NCCL
// computes all calls, and all are counted.
func TestNCCLRoutines(t *testing.T) {
	for _, size := range []int{2, 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			devices, _, o := withNCCL(t, size, false)
			var made atomic.Int64
			must(t, eachRank(t, devices, o, func(r *rank) error {
				calls := routineCalls(size, r.Emulated)
				made.Add(2 * int64(len(calls))) // eagerly and captured
				return r.run(calls)
			}))
			if got := o.Counts.NCCL.Load(); got != made.Load() || o.Counts.Peer.Load() != 0 {
				t.Errorf("NCCL computed %d calls and kernels %d, want %d and 0", got, o.Counts.Peer.Load(), made.Load())
			}
		})
	}
}

// reachedNCCL opens two emulated devices that reach each other's memory, and a library for them.
func reachedNCCL(t *testing.T) (devices []*cudatest.Opened, library *ncclfake.Library) {
	t.Helper()
	if !cudatest.Several(t, 2, fake.Options{})[0].Emulated {
		t.Skip("NCCL of GPUs is tested by TestNCCLRoutines")
	}
	f := fake.New(fake.Options{Devices: 2})
	for i := range 2 {
		d, err := cuda.Open(cuda.Options{Ordinal: i, Driver: f})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		devices = append(devices, &cudatest.Opened{Device: d, Emulated: true})
	}
	return devices, ncclfake.New(f)
}

// TestNCCLBytes: if GPUs reach each other's memory, NCCL computes only calls of Options.NCCLBytes and more.
func TestNCCLBytes(t *testing.T) {
	devices, library := reachedNCCL(t)
	o := collectivecuda.Options{NCCL: func() (nccl.API, error) { return library, nil }, NCCLBytes: 1000, Counts: new(collectivecuda.Counts)}
	must(t, eachRank(t, devices, o, func(r *rank) error {
		var calls []*call
		for _, n := range []int64{249, 250, 251} {
			calls = append(calls, &call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.F32, N: n}})
		}
		return r.run(calls)
	}))
	if p, n := o.Counts.Peer.Load(), o.Counts.NCCL.Load(); p != 4 || n != 8 { // by two ranks, eagerly and captured
		t.Errorf("%d calls over peer memory and %d of NCCL, want 4 and 8", p, n)
	}
}

// TestNCCLBytesOfRank0: rank 1, whose Options.NCCLBytes is 0, uses rank 0's.
func TestNCCLBytesOfRank0(t *testing.T) {
	devices, library := reachedNCCL(t)
	groups, err := collective.Local("tp", 2, collective.Options{Limit: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	counts := new(collectivecuda.Counts)
	source := code(devices[0].Compiler(t), devices[0].Info().Target)
	var all errgroup.Group
	for i, g := range groups {
		all.Go(func() error {
			o := collectivecuda.Options{Code: source, NCCL: func() (nccl.API, error) { return library, nil }, NCCLBytes: int64(1000 * (1 - i)), Counts: counts}
			if err := collectivecuda.Add(t.Context(), devices[i].Device, o, g); err != nil {
				return err
			}
			s, err := devices[i].NewStream()
			if err != nil {
				return err
			}
			r := &rank{devices[i], g, s}
			return errors.Join(r.run([]*call{{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.F32, N: 300}}}), g.Barrier(t.Context()))
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	if p, n := counts.Peer.Load(), counts.NCCL.Load(); p != 0 || n != 4 {
		t.Errorf("%d calls over peer memory and %d of NCCL, want 0 and 4", p, n)
	}
}

// TestTimeAllReduce times both ways on all ranks, which get the same times.
func TestTimeAllReduce(t *testing.T) {
	devices, library := reachedNCCL(t)
	groups, err := collective.Local("tune", 2, collective.Options{Limit: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	counts := new(collectivecuda.Counts)
	source := code(devices[0].Compiler(t), devices[0].Info().Target)
	sizes := []int64{64, 4096}
	var times [2][]collectivecuda.AllReduceTime
	var all errgroup.Group
	for i, g := range groups {
		all.Go(func() (err error) {
			o := collectivecuda.Options{Code: source, NCCL: func() (nccl.API, error) { return library, nil }, Counts: counts}
			times[i], err = collectivecuda.TimeAllReduce(t.Context(), devices[i].Device, o, g, sizes)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(times[0], times[1]); d != "" {
		t.Errorf("ranks differ: %s", d)
	}
	for i, n := range sizes {
		if x := times[0][i]; x.Bytes != n || x.Peer <= 0 || x.NCCL <= 0 {
			t.Errorf("%+v of %d bytes", x, n)
		}
	}
	if p, n := counts.Peer.Load(), counts.NCCL.Load(); p != n || p == 0 {
		t.Errorf("%d calls over peer memory, %d of NCCL", p, n)
	}
	if library.Live() > 0 {
		t.Errorf("%d communicators are left", library.Live())
	}
	// Without NCCL there is nothing to compare.
	for i, g := range groups {
		all.Go(func() error {
			_, err := collectivecuda.TimeAllReduce(t.Context(), devices[i].Device, collectivecuda.Options{Code: source}, g, sizes)
			return err
		})
	}
	if err := all.Wait(); err == nil || !strings.Contains(err.Error(), "one way") {
		t.Errorf("without NCCL: %v", err)
	}
}

// TestLeastNCCL: NCCL takes over where it is faster at each larger size.
func TestLeastNCCL(t *testing.T) {
	for _, c := range []struct {
		nccl []time.Duration // peer memory takes 100 at 1, 2, 4 and 8 bytes
		want int64
	}{{[]time.Duration{110, 110, 110, 110}, 0}, {[]time.Duration{90, 110, 90, 90}, 4}, {[]time.Duration{90, 90, 90, 98}, 0}, {[]time.Duration{96, 96, 96, 96}, 1}} {
		var times []collectivecuda.AllReduceTime
		for i, d := range c.nccl {
			times = append(times, collectivecuda.AllReduceTime{Bytes: 1 << i, Peer: 100, NCCL: d})
		}
		if got := collectivecuda.LeastNCCL(times); got != c.want {
			t.Errorf("%v: %d, want %d", c.nccl, got, c.want)
		}
	}
}

// TestNCCLMissing: without peer memory and NCCL, the errors of all ranks say why NCCL cannot be used.
func TestNCCLMissing(t *testing.T) {
	for _, c := range []struct {
		name string
		want string
		set  func(o *collectivecuda.Options, l *ncclfake.Library)
	}{
		{"not used", "NCCL is not used", func(o *collectivecuda.Options, _ *ncclfake.Library) { o.NCCL = nil }},
		{"not there", "file does not exist", func(o *collectivecuda.Options, _ *ncclfake.Library) {
			o.NCCL = func() (nccl.API, error) { return nil, os.ErrNotExist }
		}},
		{"two versions", "all ranks need one version", func(o *collectivecuda.Options, l *ncclfake.Library) {
			other := ncclfake.New(nil)
			other.Number = 22700
			var opened atomic.Int32
			o.NCCL = func() (nccl.API, error) {
				if opened.Add(1) == 1 {
					return other, nil
				}
				return l, nil
			}
		}},
		{"it fails", "an error of the system", func(_ *collectivecuda.Options, l *ncclfake.Library) {
			l.Fail = &nccl.StatusError{Call: "CommInitRankScalable", Status: 2}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			devices, library, o := withNCCL(t, 2, true)
			c.set(&o, library)
			for rank, err := range eachRank(t, devices, o, func(*rank) error { return nil }) {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("rank %d: %v, want %q", rank, err, c.want)
				}
			}
		})
	}
}

// TestNCCLEndedGroup: a call of NCCL that waits for a rank ends when the group does, and a wait for the device
// returns the reason.
func TestNCCLEndedGroup(t *testing.T) {
	devices, _, o := withNCCL(t, 2, false)
	holdEndedGroup(t, devices, o, cases.Call{Kind: collective.AllReduce, DType: dtype.F32, N: 1000})
}

// TestNCCLMissingRank: a call that waits for a rank longer than the timeout ends the group, and the
// error names the rank.
func TestNCCLMissingRank(t *testing.T) {
	devices, _, o := withNCCL(t, 2, false)
	o.Timeout = 5 * time.Second
	errs := eachRank(t, devices, o, func(r *rank) error {
		c := &call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.F32, N: 1000}}
		if err := r.prepare(c); err != nil {
			return err
		}
		for range 3 { // a call that ends does not count as waiting
			if err := errors.Join(r.stream.LaunchOp(c.op, c.oc), r.stream.Synchronize()); err != nil {
				return err
			}
		}
		if r.group.Rank() == 1 {
			<-r.group.Done()
			return r.group.Err()
		}
		if err := r.stream.LaunchOp(c.op, c.oc); err != nil {
			return err
		}
		return r.stream.Synchronize()
	})
	for rank, err := range errs {
		if !errors.Is(err, collective.ErrLost) || !strings.Contains(err.Error(), "rank 1 is lost in a call of NCCL") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}
