package cli

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/cache"
	"pwc/collective"
	"pwc/ir"
	"pwc/piecewise"
	"pwc/runtime/host"
)

// TestLargestCollective bounds the bytes of calls by the ranges of symbols.
func TestLargestCollective(t *testing.T) {
	const head = `pwc 1
module "m" {
  sym N in [1, 100] batch
  sym r in [0, 1] load
  group tp in 2 rank r
  weight @w : f32[8, 8] = shard("w", axis=0, group=tp)
`
	for _, c := range []struct {
		name, body string
		want       int64
	}{
		{"none", "  func @f(%x: f32[N, 8]) -> (f32[N, 8]) {\n    return %x\n  }\n}\n", 0},
		{"gathered", "  func @f(%x: f32[N, 8]) -> (f32[N, 16]) {\n    %y = linear(%x, @w)\n    %z = all_gather(%y, group=tp, axis=1)\n    return %z\n  }\n}\n", 100 * 16 * 4},
	} {
		m, err := ir.Parse(c.name, []byte(head+c.body))
		if err != nil {
			t.Fatal(err)
		}
		if got := largestCollective(m); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	m, err := ir.Parse("m", []byte("pwc 1\nmodule \"m\" {\n  sym N in [1, 9223372036854775807]\n  group tp in 2\n  func @f(%x: f32[N] partial over tp) -> (f32[N]) {\n    %y = all_reduce(%x, group=tp)\n    return %y\n  }\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := largestCollective(m); got != math.MaxInt64 {
		t.Errorf("without a bound: %d", got)
	}
}

// TestTimesBeforeAnError: if measuring fails for one size of groups, the times of earlier sizes remain.
func TestTimesBeforeAnError(t *testing.T) {
	m, err := ir.Parse("m", []byte("pwc 1\nmodule \"m\" {\n  group a in 2\n  group b in 3\n  func @f(%x: f32[4]) -> (f32[4]) {\n    return %x\n  }\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	dev := &target{timeCollectives: func(_ context.Context, g *collective.Group) (tuneCollectives, error) {
		if g.Size() == 3 {
			return tuneCollectives{}, broken
		}
		return tuneCollectives{Ranks: g.Size()}, nil
	}}
	w := &world{peers: []*target{dev, dev}}
	got, err := w.timeCollectives(context.Background(), m, dev)
	if !errors.Is(err, broken) || len(got) != 1 || got[0].Ranks != 2 {
		t.Errorf("%+v and %v, want the times of 2 ranks and the error", got, err)
	}
}

// TestPrintCollectives prints the times over peer memory and NCCL, and the choice.
func TestPrintCollectives(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: &out}
	r := &tuneReport{Device: "GPU", Collectives: []tuneCollectives{{Ranks: 2, Library: "NCCL 2.28.9", NCCLBytes: 64 << 20, Times: []tuneAllReduce{{1 << 20, 6.213, 22.4}, {64 << 20, 230, 210.5}}}}}
	if err := a.printCollectives(r); err != nil {
		t.Fatal(err)
	}
	const want = `all_reduce of bf16 over 2 × GPU, µs; NCCL 2.28.9

     bytes  peer memory    NCCL
   1.0 MiB         6.21   22.40
  64.0 MiB       230.00  210.50

NCCL computes calls of 64.0 MiB and more

`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Error(d)
	}
}

// TestNothingToTune: a GPU without cuBLASLt gets the error of the search for it, other targets the flag to give.
func TestNothingToTune(t *testing.T) {
	missing := errors.New("not found")
	if err := nothingToTune(&target{name: "cuda:sm_90", untuned: missing}); !errors.Is(err, missing) {
		t.Errorf("without cuBLASLt: %v", err)
	}
	if err := nothingToTune(&target{name: "host"}); !strings.Contains(err.Error(), "--target cuda") {
		t.Errorf("on the host: %v", err)
	}
}

// TestTuneKeepsResults: the report has the results also if a record could not be written. A store without a
// directory to write is no store.
func TestTuneKeepsResults(t *testing.T) {
	m, err := ir.Parse("m", []byte("pwc 1\nmodule \"m\" {\n  func @f(%x: f32[4]) -> (f32[4]) {\n    return %x\n  }\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	full := errors.New("no space left")
	dev := host.Open(host.Options{Workers: 1})
	defer dev.Close()
	for _, c := range []struct {
		name   string
		store  *cache.Store
		err    error
		kept   bool
		unkept string
	}{
		{"written", cache.New(cache.Options{Dir: t.TempDir()}), nil, true, ""},
		{"a full disk", cache.New(cache.Options{Dir: t.TempDir()}), full, false, "some records, because of the error below"},
		{"no directory", cache.New(cache.Options{}), nil, false, "there is no cache"},
		{"off", nil, nil, false, "there is no cache"},
	} {
		tune := func(_ context.Context, _ []piecewise.Sized, s *cache.Store, _ int, _ func(done, of int)) ([]tuneGEMM, error) {
			if (s != nil) != (c.kept || c.err != nil) {
				t.Errorf("%s: the tuner got the store %v", c.name, s)
			}
			return []tuneGEMM{{Name: "gemm", library: "cuBLASLt 1"}}, c.err
		}
		r, err := new(app).measureTune(t.Context(), m, &target{dev: dev, tune: tune}, &world{}, nil, c.store, 1)
		if err != c.err || len(r.GEMMs) != 1 || r.Library != "cuBLASLt 1" || r.Kept != c.kept || r.unkept != c.unkept {
			t.Errorf("%s: %+v, %v", c.name, r, err)
		}
	}
}
