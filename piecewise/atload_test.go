package piecewise_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"pwc/cache"
	"pwc/compile/host"
	"pwc/internal/testkit"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
)

// translating is a device that reports that it compiles programs when it loads them.
type translating struct {
	device.Device
	reason func(p *program.Program) string // "": the device does not compile the program
}

func (d translating) CompilesAtLoad(p *program.Program) string { return d.reason(p) }

// TestCompiledAtLoad pins that programs and kernels of ops that the device compiles at load
// are counted by reason, each distinct one once, and logged, and that a frozen backend refuses
// them.
func TestCompiledAtLoad(t *testing.T) {
	var log bytes.Buffer
	o := piecewise.Options{
		Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}, Store: pieces.NewMemoryStore(),
			Extras: []pieces.Extra{{Key: cache.Key{Piece: [32]byte{1}, Target: "host", Pipeline: "kernel", Format: program.FormatVersion}, Origin: "kernel k",
				Compile: func(context.Context) (*program.Program, error) { return &program.Program{Target: "host"}, nil }}}}, Ops: []device.Op{&silent{sum3{}}}, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{4}},
		Observe: piecewise.ObserveOptions{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))},
	}
	on := func(what func(p *program.Program) string) piecewise.Options {
		o := o
		o.Device = translating{openHost(t), what}
		return o
	}
	nothing := on(func(*program.Program) string { return "" })
	b := create(t, layers(3), nothing)
	s := b.Stats()
	if s.Compiled != 3 || len(s.CompiledAtLoad) > 0 || s.CompiledAtLoad == nil || log.Len() > 0 {
		t.Errorf("a device that compiles nothing: %+v, says %q", s, &log)
	}
	some := on(func(p *program.Program) string {
		if len(p.Steps) == 0 {
			return "a kernel"
		}
		return "text"
	})
	b = create(t, layers(3), some)
	s = b.Stats()
	if s.Loaded != 3 || len(s.CompiledAtLoad) != 2 || s.CompiledAtLoad["text"] != 2 || s.CompiledAtLoad["a kernel"] != 1 {
		t.Errorf("%+v", s)
	}
	if out := log.String(); strings.Count(out, "\n") != 2 || !strings.Contains(out, "programs=2 what=text") {
		t.Errorf("says %q", out)
	}
	some.Frozen, nothing.Frozen = true, true
	create(t, layers(3), nothing)
	_, err := piecewise.New(context.Background(), testkit.Parse(t, layers(3)), some)
	if !errors.Is(err, piecewise.ErrFrozen) || !strings.Contains(err.Error(), "1 with a kernel, 2 with text") {
		t.Errorf("frozen: %v", err)
	}
}
