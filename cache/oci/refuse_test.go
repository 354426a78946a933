package oci

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/cache"
	"pwc/program"
)

// fleet pushes an artifact for two GPUs and the host.
func fleet(t testing.TB, srv *server) {
	t.Helper()
	s, _ := newStore(t)
	fill(t, s, "toy", "host", 0, 2)
	fill(t, s, "toy 80", "cuda:sm_80", 0, 2)
	fill(t, s, "toy 90", "cuda:sm_90", 0, 3)
	o := plain()
	o.MinDriver = func(target, compiler string) string {
		if compiler != "vec 1" {
			t.Errorf("compiler %q", compiler)
		}
		return map[string]string{"cuda:sm_80": "450.80.2", "cuda:sm_90": "525.60.13"}[target]
	}
	if _, err := Push(t.Context(), s, nil, srv.ref("v1"), o); err != nil {
		t.Fatal(err)
	}
	srv.counts()
}

func TestRefusals(t *testing.T) {
	srv := newServer(t)
	fleet(t, srv)
	tests := map[string]struct {
		machine Machine
		targets []string
		modules int
		refused map[string]string // reason by module
	}{
		"host": {Machine{Targets: []string{"host"}}, nil, 1, map[string]string{
			"toy 80": `this machine runs ["host"]`, "toy 90": `this machine runs ["host"]`}},
		"gpu": {Machine{Targets: []string{"host", "cuda:sm_90"}, Driver: "550.54.15"}, nil, 2, map[string]string{
			"toy 80": `this machine runs ["host" "cuda:sm_90"]`}},
		"old driver": {Machine{Targets: []string{"cuda:sm_90", "cuda:sm_80"}, Driver: "525.60.9"}, nil, 1, map[string]string{
			"toy": `this machine runs ["cuda:sm_90" "cuda:sm_80"]`, "toy 90": "it needs driver 525.60.13, this machine has 525.60.9"}},
		"no driver": {Machine{Targets: []string{"cuda:sm_90"}}, nil, 0, map[string]string{
			"toy": `this machine runs ["cuda:sm_90"]`, "toy 80": `this machine runs ["cuda:sm_90"]`, "toy 90": "it needs driver 525.60.13, this machine has none"}},
		"no version": {Machine{Targets: []string{"cuda:sm_90"}, Driver: "new"}, nil, 0, map[string]string{
			"toy": `this machine runs ["cuda:sm_90"]`, "toy 80": `this machine runs ["cuda:sm_90"]`, "toy 90": `this machine's driver "new" is not up to eight numbers separated by dots`}},
		"nothing": {Machine{}, nil, 0, map[string]string{
			"toy": "this machine runs no target", "toy 80": "this machine runs no target", "toy 90": "this machine runs no target"}},
		"for others": {Machine{Targets: []string{"host"}}, []string{"cuda:sm_80", "cuda:sm_90"}, 2, map[string]string{
			"toy": `not one of the requested targets (["cuda:sm_80" "cuda:sm_90"])`}},
		"for nobody": {Machine{Targets: []string{"host"}}, []string{"cuda:sm_70"}, 0, map[string]string{
			"toy": `not one of the requested targets (["cuda:sm_70"])`, "toy 80": `not one of the requested targets (["cuda:sm_70"])`, "toy 90": `not one of the requested targets (["cuda:sm_70"])`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			to, _ := newStore(t)
			o := plain()
			o.Machine, o.Targets = test.machine, test.targets
			o.Trust = trusts(srv)
			got, err := Pull(t.Context(), to, srv.ref("v1"), o)
			refused := map[string]string{}
			add := func(list []Refusal) {
				for _, r := range list {
					refused[r.Module] = r.Reason
				}
			}
			if test.modules == 0 {
				var r *RefusedError
				if !errors.As(err, &r) {
					t.Fatalf("%v; want a refusal", err)
				}
				add(r.Refusals)
				for _, reason := range test.refused {
					wantErr(t, err, reason, srv.ref("v1"))
				}
				if want, n := map[string]int{"HEAD manifests": 1, "GET manifests": 1, "GET blobs": 1}, srv.counts(); !cmp.Equal(n, want) {
					t.Errorf("%v; want only the manifest and the config", n)
				}
			} else {
				if err != nil {
					t.Fatal(err)
				}
				add(got.Refused)
				if len(got.Modules) != test.modules {
					t.Errorf("%d modules, want %d", len(got.Modules), test.modules)
				}
				if v, err := to.Verify(t.Context()); err != nil || len(v.Problems) > 0 || v.Entries != got.Entries {
					t.Errorf("%+v, %v", v, err)
				}
				srv.counts()
			}
			if diff := cmp.Diff(test.refused, refused); diff != "" {
				t.Error(diff)
			}
			info, err := Inspect(t.Context(), srv.ref("v1"), o)
			if err != nil {
				t.Fatal(err)
			}
			if modules, r := info.Usable(o); len(modules) != test.modules || len(r) != len(test.refused) {
				t.Errorf("Usable: %d modules, %d refused", len(modules), len(r))
			}
			srv.counts()
		})
	}
}

// TestRefusesFormat checks that programs of another format are refused, even if Options.Targets names their target.
func TestRefusesFormat(t *testing.T) {
	srv := newServer(t)
	from, _ := newStore(t)
	key := testKey(0, "host")
	key.Format = program.FormatVersion + 1
	if err := from.Put(t.Context(), key, []byte("of the future"), cache.Provenance{}); err != nil {
		t.Fatal(err)
	}
	if err := from.PutModule(t.Context(), cache.Module{Name: "toy", Hash: [32]byte{1}, Target: "host", Entries: []cache.ModuleEntry{{ID: key.Sum(), Size: 13}}}); err != nil {
		t.Fatal(err)
	}
	mustPush(t, from, srv.ref("v1"))
	to, _ := newStore(t)
	o := plain()
	o.Targets = []string{"host"}
	_, err := Pull(t.Context(), to, srv.ref("v1"), o)
	var r *RefusedError
	if !errors.As(err, &r) {
		t.Fatalf("%v; want a refusal", err)
	}
	wantErr(t, err, fmt.Sprintf("its programs have format %d; this version of pwc loads format %d", program.FormatVersion+1, program.FormatVersion))
	wantWhole(t, to, 0, 0)
}

func TestMaxBytes(t *testing.T) {
	srv := newServer(t)
	sent := mustPush(t, filled(t, 4), srv.ref("v1"))
	info, err := Inspect(t.Context(), srv.ref("v1"), plain())
	if err != nil || info.Digest != sent.Digest {
		t.Fatalf("%+v, %v", info, err)
	}
	to, _ := newStore(t)
	o := plain()
	o.MaxBytes = info.Config.Bytes - 1
	_, err = Pull(t.Context(), to, srv.ref("v1"), o)
	wantErr(t, err, "above the limit")
	wantWhole(t, to, 0, 0)
	o.MaxBytes++
	if _, err := Pull(t.Context(), to, srv.ref("v1"), o); err != nil {
		t.Error(err)
	}
}

func TestVersions(t *testing.T) {
	for _, bad := range []string{"", "1.", ".1", "1..2", "a", "1.x", "-1", "+1", "1 ", "1.2.3.4.5.6.7.8.9", "99999999999999999999"} {
		if v, err := parseVersion(bad); err == nil {
			t.Errorf("%q is %v", bad, v)
		}
	}
	rising := []string{"9", "9.1", "10", "450.80.2", "525.60.9", "525.60.13", "525.100", "570"}
	for i, a := range rising {
		for j, b := range rising {
			va, _ := parseVersion(a)
			vb, _ := parseVersion(b)
			if got := olderVersion(va, vb); got != (i < j) {
				t.Errorf("%s older than %s: %v", a, b, got)
			}
		}
	}
	twelve, _ := parseVersion("12")
	zero, _ := parseVersion("12.0.0")
	if olderVersion(twelve, zero) || olderVersion(zero, twelve) {
		t.Error("12 is not 12.0.0")
	}
}

// TestMinDriver checks that the minimum driver of a target is the newest that one of its entries needs.
func TestMinDriver(t *testing.T) {
	for _, order := range [][]string{{"450.80", "525.60.13", "", "525.60"}, {"525.60.13", "9", "450.80"}} {
		drivers := map[string]string{}
		for _, v := range order {
			if err := newestDriver(drivers, "cuda:sm_90", v); err != nil {
				t.Fatal(err)
			}
		}
		if got := drivers["cuda:sm_90"]; got != "525.60.13" {
			t.Errorf("%q of %q", got, order)
		}
	}
}
