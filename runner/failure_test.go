package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pwc/attention"
	attnhost "pwc/attention/host"
	"pwc/compile/host"
	"pwc/ir"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// broken is an op whose next launch returns fail, if that is not nil.
type broken struct {
	device.Op
	fail error
}

func (b *broken) Launch(c *device.OpCall) error {
	if s, ok := c.Stream.(*hostdev.Stream); ok && s.Capturing() {
		return s.Call(func() error { return b.Launch(c) })
	}
	if b.fail != nil {
		err := b.fail
		b.fail = nil
		return err
	}
	return b.Op.Launch(c)
}

// A failed step ends only its own requests, also if the failed op is in a full graph. A lost device
// ends all requests.
func TestStepFails(t *testing.T) {
	for i, mode := range []piecewise.Mode{piecewise.Piecewise, piecewise.Piecewise, piecewise.FullAndPiecewise, piecewise.FullAndPiecewise} {
		lost := i%2 == 1
		m, src := checkpoint(t, "llama")
		dev := hostdev.Open(hostdev.Options{})
		op := &broken{Op: attnhost.New(dev)}
		r, err := New(context.Background(), m.Module, Options{MaxSequences: 2, MaxTokens: 8, Blocks: 40,
			Backend: piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Ops: []device.Op{op}, Capture: piecewise.CaptureOptions{Mode: mode}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Load(context.Background(), src); err != nil {
			t.Fatal(err)
		}
		a, b := submit(t, r, Request{Prompt: []int32{1}, MaxNew: 9}), submit(t, r, Request{Prompt: []int32{2}, MaxNew: 9})
		c := submit(t, r, Request{Prompt: []int32{3}, MaxNew: 9})
		for range 3 {
			if _, err := r.Step(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if whole := r.Stats().Steps[0].Mode == piecewise.RunFull; whole != (mode == piecewise.FullAndPiecewise) {
			t.Errorf("mode %s: steps are %+v", mode, r.Stats().Steps)
		}
		op.fail = errors.New("the kernel failed")
		if lost {
			op.fail = fmt.Errorf("xid: %w", device.ErrDeviceLost)
		}
		cause := op.fail
		if _, err := r.Step(context.Background()); !errors.Is(err, cause) {
			t.Errorf("the step returned %v, want %v", err, cause)
		}
		for _, s := range []*Sequence{a, b} {
			if s.Reason() != Failed || !errors.Is(s.Err(), cause) {
				t.Errorf("%s %v, want %v", s.Reason(), s.Err(), cause)
			}
		}
		if lost {
			if c.Reason() != Failed {
				t.Errorf("the third is %s", c.Reason())
			}
			if _, err := r.Step(context.Background()); !errors.Is(err, device.ErrDeviceLost) {
				t.Errorf("a step after the loss: %v", err)
			}
			soon, end := context.WithTimeout(context.Background(), 10*time.Second)
			defer end()
			if err := r.Run(soon); !errors.Is(err, device.ErrDeviceLost) {
				t.Errorf("Run after the loss: %v", err)
			}
		} else {
			drain(t, r)
			if c.Reason() != Exhausted {
				t.Errorf("the third is %s: %v", c.Reason(), c.Err())
			}
			if s := r.Stats(); s.UsedBlocks != 0 {
				t.Errorf("%d blocks are lost", s.UsedBlocks)
			}
		}
		if err := r.Close(); err != nil && !lost {
			t.Error(err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}

// poison is a language model whose logits are NaN after id 3.
func poison(t testing.TB) *ir.Module {
	return echo(t, "4", `
    %i = iota(shape=[1, 4], dtype=f32, axis=1) : f32[1, 4]
    %next = add(%x, 1.0) : f32[M, 1]
    %d = sub(%i, %next) : f32[M, 4]
    %a = abs(%d) : f32[M, 4]
    %n = neg(%a) : f32[M, 4]
    %bad = compare(%x, 3.0, dir=ge) : bool[M, 1]
    %z = sub(%x, %x) : f32[M, 1]
    %s = where(%bad, nan, %z) : f32[M, 1]
    %l = add(%n, %s) : f32[M, 4]`)
}

// echo is a language model with a vocabulary of the given size, whose hidden states are its ids. Its
// attention does nothing. logits is the text that computes %l from the hidden states %x.
func echo(t testing.TB, vocabulary, logits string) *ir.Module {
	t.Helper()
	m, err := ir.Parse("echo.ir", []byte(`pwc 1
module "echo" {
  sym N in [1, 64] batch
  sym M in [1, 64] batch
  sym B in [1, 64] load
  op "my::nothing"(mut tensor) split
  state @kv : f32[B, 2, 4, 1, 1]
  func @forward(%ids: i32[N], %pos: i32[N]) -> (f32[N, 1]) {
    call "my::nothing"(@kv)
    %x = cast(%ids, dtype=f32) : f32[N]
    %y = reshape(%x, shape=[N, 1]) : f32[N, 1]
    return %y
  }
  func @logits(%h: f32[N, 1], %rows: i32[M]) -> (f32[M, `+vocabulary+`]) {
    %x = gather(%h, %rows) : f32[M, 1]`+logits+`
    return %l
  }
}
`))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

type nothing struct{}

func (nothing) Signature() device.Signature {
	return device.Signature{Name: "my::nothing", Mut: []bool{true}}
}
func (nothing) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }
func (nothing) Launch(c *device.OpCall) error {
	_, err := attention.BatchOf(c.Meta)
	return err
}

// A request whose logits are NaN fails, and no other request.
func TestNotANumberFailsAlone(t *testing.T) {
	dev := hostdev.Open(hostdev.Options{})
	r, err := New(context.Background(), poison(t), Options{MaxSequences: 4, MaxTokens: 8, Blocks: 40,
		Backend: piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Ops: []device.Op{nothing{}}, Capture: piecewise.CaptureOptions{Mode: BestMode(poison(t), []device.Op{nothing{}})}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Load(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	bad, good := submit(t, r, Request{Prompt: []int32{1}, MaxNew: 9}), submit(t, r, Request{Prompt: []int32{0}, MaxNew: 3})
	drain(t, r)
	if bad.Reason() != Failed || !errors.Is(bad.Err(), ErrNotANumber) || !slices.Equal(bad.IDs(), []int32{1, 2, 3}) {
		t.Errorf("%s %v %v", bad.Reason(), bad.Err(), bad.IDs())
	}
	if good.Reason() != Exhausted || !slices.Equal(good.IDs(), []int32{0, 1, 2, 3}) {
		t.Errorf("%s %v %v", good.Reason(), good.Err(), good.IDs())
	}
	if err := errors.Join(r.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}

// A request joins running ones only if it leaves the watermark of blocks free.
func TestWatermark(t *testing.T) {
	for blocks, want := range map[int]bool{197: true, 198: true, 199: false, 200: false} {
		q := &Sequence{ids: make([]int32, 4*blocks)}
		r := &Runner{lm: &language{blockSize: 4}, blocks: newBlocks(200), running: []*Sequence{{}}, waiting: []*Sequence{q}}
		if got := r.join(q); got != want || len(r.blocks.free) != 200-blocks && want {
			t.Errorf("a request of %d blocks of 200 joins a running one: %v, want %v", blocks, got, want)
		}
		alone := &Runner{lm: r.lm, blocks: newBlocks(200), waiting: []*Sequence{q}}
		if q.blocks = nil; !alone.join(q) {
			t.Errorf("alone, a request of %d blocks of 200 does not join", blocks)
		}
	}
}
