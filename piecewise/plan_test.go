package piecewise_test

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"pwc/attention"
	attnhost "pwc/attention/host"
	"pwc/build"
	"pwc/compile/host"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// Without a device a module is compiled and planned as with one, but for the
// scratch of its ops, and nothing else is possible.
func TestPlanWithoutDevice(t *testing.T) {
	g := openGolden(t, "llama")
	o := piecewise.Options{Target: build.Pipeline{Backend: host.New()}, Mode: piecewise.Piecewise, CaptureSizes: []int64{1, 8, 24},
		Symbols: map[string]int64{"B": kvBlocks}, Max: map[string]int64{"N": 24, "M": 24}}
	b, err := piecewise.New(t.Context(), g.model.Module, o)
	if err != nil {
		t.Fatal(err)
	}
	dev := hostdev.Open(hostdev.Options{})
	o.Device, o.Ops = dev, []device.Op{attnhost.New(dev)}
	with, err := piecewise.New(t.Context(), g.model.Module, o)
	if err != nil {
		t.Fatal(err)
	}
	p, want := b.Plan(), with.Plan()
	if !slices.Equal(p.Unplanned, []string{attention.Name}) || want.Unplanned != nil {
		t.Errorf("unplanned %v, with a device %v", p.Unplanned, want.Unplanned)
	}
	for size, n := range p.ArenaBytes {
		if n <= 0 || n > want.ArenaBytes[size] {
			t.Errorf("size %d: an arena of %d bytes, with a device %d", size, n, want.ArenaBytes[size])
		}
	}
	p.ArenaBytes, p.PeakArenaBytes, want.ArenaBytes, want.PeakArenaBytes = nil, 0, nil, 0
	if p.Total() != want.Total() || p.Graphs != want.Graphs || p.StagingBytes != want.StagingBytes {
		t.Errorf("plan %+v, with a device %+v", p, want)
	}
	if s, w := b.Stats(), with.Stats(); s.Compiled != w.Compiled || s.PiecewiseGraphsSeen != w.PiecewiseGraphsSeen || !maps.Equal(s.OpCalls, w.OpCalls) {
		t.Errorf("stats %+v, with a device %+v", s, w)
	}
	for what, err := range map[string]error{"Load": b.Load(t.Context(), g.source, nil), "Capture": b.Capture(t.Context()), "Seal": b.Seal()} {
		if !errors.Is(err, piecewise.ErrNoDevice) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := errors.Join(b.Close(), b.Close(), with.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}
