package piecewise_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pwc/compile/host"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
	"pwc/safetensors"
)

// unread is a checkpoint that must not be read.
type unread struct{ t *testing.T }

func (u unread) Names() []string { return nil }

func (u unread) Info(name string) (safetensors.Info, error) {
	return safetensors.Info{}, u.fail(name)
}

func (u unread) Tensor(name string) (safetensors.Tensor, error) {
	return safetensors.Tensor{}, u.fail(name)
}

func (u unread) fail(name string) error {
	u.t.Errorf("%s was read", name)
	return errors.New("read")
}

// TestPlanIsHeldAgainstTheLimit: a plan that exceeds the memory of the device or the pool is
// refused with the numbers, before anything is allocated or read. States of the caller do not
// count.
func TestPlanIsHeldAgainstTheLimit(t *testing.T) {
	const text = `pwc 1
module "m" {
  sym N in [1, 64] batch
  weight @w : f32[262144, 2]
  state @s : f32[262144, 2]
  func @forward(%x: f32[N, 2]) -> (f32[N, 2]) {
    %a = sum(@w, axes=[0]) : f32[2]
    %b = sum(@s, axes=[0]) : f32[2]
    %c = add(%x, %a) : f32[N, 2]
    %y = add(%c, %b) : f32[N, 2]
    return %y
  }
}
`
	const each = 2 << 20 // of the weight, and of the state
	for _, c := range []struct {
		dev, pool int64
		given     bool
		want      string
	}{
		{dev: 2*each - 1, want: "2097152 bytes for weights, 2097152 for states, "},
		{dev: 2 * each, want: "2097152 bytes for weights, 2097152 for states, "}, // inputs and results are more
		{dev: each, given: true, want: "2097152 bytes for weights, 0 for states, "},
		{dev: hostdev.Unlimited, pool: 2 * each, want: "2097152 bytes for weights, 2097152 for states, "},
	} {
		dev := hostdev.Open(hostdev.Options{Workers: 1, MemoryBytes: c.dev})
		pool, err := piecewise.NewPool(dev, c.pool)
		if err != nil {
			t.Fatal(err)
		}
		given := map[string]device.Buffer{}
		if c.given {
			given["s"] = device.Buffer{}
		}
		b := create(t, text, piecewise.Options{Device: dev, Pool: pool, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Capture: piecewise.CaptureOptions{Mode: piecewise.None}})
		err = b.Load(context.Background(), unread{t}, given)
		var full *device.MemoryError
		if !errors.As(err, &full) || !strings.Contains(fmt.Sprint(err), c.want) || full.Asked <= each || full.Limit != max(c.dev, c.pool) {
			t.Errorf("device of %d, pool of %d: %v", c.dev, c.pool, err)
		}
		if s := pool.Stats(); s.ReservedBytes.Peak != 0 {
			t.Errorf("%d bytes were taken", s.ReservedBytes.Peak)
		}
		if err := errors.Join(b.Close(), pool.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestPlanIsHeldAgainstFreeMemoryOfGPU: on an emulated GPU, a plan that exceeds the free memory is refused with the
// numbers, before anything is read. Staging memory does not count. With the memory free again, the same backend loads.
func TestPlanIsHeldAgainstFreeMemoryOfGPU(t *testing.T) {
	const text = `pwc 1
module "m" {
  sym N in [1, 64] batch
  state @s : f32[262144, 2]
  func @forward(%x: f32[N, 2]) -> (f32[N, 2]) {
    %b = sum(@s, axes=[0]) : f32[2]
    %y = add(%x, %b) : f32[N, 2]
    return %y
  }
}
`
	const total = 64 << 20
	dev, _ := cudatest.Emulated(t, fake.Options{MemoryBytes: total})
	o := new(compiled).on(t, dev, small)
	o.Capture.Mode = piecewise.None
	o.Ops = nil
	b := create(t, text, o)
	defer b.Close()
	free, err := dev.FreeBytes()
	if err != nil {
		t.Fatal(err)
	}
	p := b.Plan()
	needed := p.Total() - p.ConstBytes
	other, err := dev.Alloc(free - needed + 1)
	if err != nil {
		t.Fatal(err)
	}
	var full *device.MemoryError
	if err := b.Load(context.Background(), unread{t}, nil); !errors.As(err, &full) || full.Asked != needed || full.Limit != total || full.Limit-full.Active != needed-1 || !strings.Contains(err.Error(), "2097152 for states") {
		t.Errorf("a plan of %d bytes with %d free: %v, %+v", needed, needed-1, err, full)
	}
	if err := other.Free(); err != nil {
		t.Fatal(err)
	}
	if err := b.Load(context.Background(), nil, nil); err != nil {
		t.Errorf("with all memory free: %v", err)
	}
}

// TestPlanCountsWhatThePoolHolds: all memory that another backend of the pool has allocated counts
// against the limit.
func TestPlanCountsWhatThePoolHolds(t *testing.T) {
	const text = `pwc 1
module "m" {
  sym N in [1, 262144] batch
  func @forward(%x: f32[N, 2]) -> (f32[N, 2]) {
    %y = add(%x, %x) : f32[N, 2]
    return %y
  }
}
`
	const each = 4 << 20 // of the input and the result of a backend together
	dev := openHost(t)
	pool, err := piecewise.NewPool(dev, 10*each+each/2)
	if err != nil {
		t.Fatal(err)
	}
	var full *device.MemoryError
	for n := range 13 {
		before := pool.Stats()
		b := create(t, text, piecewise.Options{Device: dev, Pool: pool, Capture: piecewise.CaptureOptions{Mode: piecewise.None}})
		err := b.Load(context.Background(), nil, nil)
		if errors.As(err, &full) {
			if full.Active < int64(n)*each || full.Active != before.ActiveBytes.Now || full.Asked > full.Limit || full.Asked <= full.Limit-full.Active {
				t.Errorf("refused %d after %d backends: %+v", full.Asked, n, full)
			}
			if after := pool.Stats(); after != before {
				t.Errorf("a load that was refused changed the pool from %+v to %+v", before, after)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("the pool takes more than its limit")
}
