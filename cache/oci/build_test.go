package oci

import (
	"testing"

	"pwc/cache"
	"pwc/compile/host"
	"pwc/ir"
	"pwc/pieces"
	"pwc/split"
)

const model = `pwc 1
module "toy" {
  sym N in [1, 512] batch
  op "silly::attention"(tensor, mut tensor) split
  func @forward(%x: f32[N, 4]) -> (f32[N, 4]) {
    %a = add(%x, 1)
    %o = empty_like(%a)
    call "silly::attention"(%a, %o)
    %b = mul(%o, %o)
    return %b
  }
}
`

// TestBuild compiles on one machine and pushes. Another machine loads by a pull or entry by entry, and compiles
// nothing. The programs are the same.
func TestBuild(t *testing.T) {
	m, err := ir.Parse("toy.ir", []byte(model))
	if err != nil {
		t.Fatal(err)
	}
	p, err := split.Split(m, m.Funcs[0], []string{"silly::attention"})
	if err != nil {
		t.Fatal(err)
	}
	run := func(s pieces.Store, frozen bool) *pieces.Result {
		t.Helper()
		r, err := pieces.Build(t.Context(), []*split.Plan{p}, pieces.Options{Compiler: pieces.Pipeline{Backend: host.New(), Tools: "vec"}, Store: s, Frozen: frozen})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Warnings) > 0 {
			t.Errorf("warnings: %v", r.Warnings)
		}
		return r
	}
	from, _ := newStore(t)
	compiled := run(from, false)
	if compiled.Counters.Compiled == 0 {
		t.Fatalf("%+v", compiled.Counters)
	}
	srv := newServer(t)
	mustPush(t, from, srv.ref("v1"))

	pulled, _ := newStore(t)
	if _, err := Pull(t.Context(), pulled, srv.ref("v1"), plain()); err != nil {
		t.Fatal(err)
	}
	missed, _ := newStore(t)
	for name, s := range map[string]pieces.Store{"pulled": pulled, "missed": Layer(missed, newRemote(t, srv, "v1"), true)} {
		r := run(s, true)
		if r.Counters.Compiled != 0 || r.Counters.Loaded != compiled.Counters.Compiled || r.Counters.Bytes != compiled.Counters.Bytes {
			t.Errorf("%s: %+v; compiled were %+v", name, r.Counters, compiled.Counters)
		}
		for i, a := range r.Artifacts {
			if a.Program.String() != compiled.Artifacts[i].Program.String() {
				t.Errorf("%s: program %d is another", name, i)
			}
		}
	}
	// Both caches list the model as if it was compiled here.
	want, err := from.Find(t.Context(), "toy")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*cache.Store{pulled, missed} {
		if got, err := s.Find(t.Context(), "toy"); err != nil || got.ID != want.ID || got.Bytes != want.Bytes {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
		wantWhole(t, s, compiled.Counters.Compiled, 1)
	}
	if sent := mustPush(t, missed, srv.ref("v2")); sent.Written != 0 {
		t.Errorf("%+v; want the same artifact", sent)
	}
}

// TestNoPaths checks that the directory of the weights does not change the artifact.
func TestNoPaths(t *testing.T) {
	var digests []cache.Digest
	for _, dir := range []string{"", "/home/me/secret/checkpoint", "/mnt"} {
		m, err := ir.Parse("toy.ir", []byte(model))
		if err != nil {
			t.Fatal(err)
		}
		m.WeightsFrom = dir
		p, err := split.Split(m, m.Funcs[0], []string{"silly::attention"})
		if err != nil {
			t.Fatal(err)
		}
		s, _ := newStore(t)
		if _, err := pieces.Build(t.Context(), []*split.Plan{p}, pieces.Options{Compiler: pieces.Pipeline{Backend: host.New()}, Store: s}); err != nil {
			t.Fatal(err)
		}
		a, err := pack(t.Context(), s, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, a.sent().Digest)
	}
	if digests[0] != digests[1] || digests[0] != digests[2] {
		t.Errorf("%s", digests)
	}
}
