package piecewise_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pwc/attention"
	attnhost "pwc/attention/host"
	"pwc/compile/host"
	"pwc/internal/testkit"
	"pwc/ir/dim"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// Without a device a module is compiled and planned as with one, except for the
// scratch of its ops. Load, Capture and Seal fail.
func TestPlanWithoutDevice(t *testing.T) {
	g := openGolden(t, "llama")
	o := piecewise.Options{Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1, 8, 24}},
		Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"B": kvBlocks}, Max: map[string]int64{"N": 24, "M": 24}}}
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

// If a size in a plan exceeds int64, New fails with ErrTooLarge or ErrOverflow and the name of a
// weight, state or input.
func TestPlanTooLarge(t *testing.T) {
	const half = 1<<60 - 1 // of f32: just below 2^62 bytes
	decl := func(kind string, sizes ...int64) string {
		var text strings.Builder
		for i, n := range sizes {
			fmt.Fprintf(&text, "  %s @%s%d : f32[%d]\n", kind, kind, i, n)
		}
		return text.String()
	}
	for what, tc := range map[string]struct {
		text string
		want error
	}{
		"states":             {decl("state", half, half, half), program.ErrTooLarge},
		"a state to round":   {decl("state", 1<<61-1), program.ErrTooLarge},
		"one state":          {decl("state", 1<<61), dim.ErrOverflow},
		"weights":            {decl("weight", half, half, half), program.ErrTooLarge},
		"weights and states": {decl("weight", half) + decl("state", half, half), program.ErrTooLarge},
	} {
		for _, dev := range []device.Device{nil, openHost(t)} {
			o := piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}}
			_, err := piecewise.New(t.Context(), testkit.Parse(t, strings.Replace(plain, "  func", tc.text+"  func", 1)), o)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), "@") {
				t.Errorf("%s: %v, want %v with a name", what, err, tc.want)
			}
		}
	}
	text := strings.Replace(plain, "[1, 64]", "[1, 1152921504606846975]", 1)
	o := piecewise.Options{Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Memory: piecewise.MemoryOptions{StagingSlots: 3}}
	if _, err := piecewise.New(t.Context(), testkit.Parse(t, text), o); !errors.Is(err, program.ErrTooLarge) || !strings.Contains(err.Error(), "%x") {
		t.Errorf("slots: %v", err)
	}
}
