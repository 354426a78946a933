package piecewise_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"pwc/ir/dtype"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
	"pwc/safetensors"
)

const accumulating = `pwc 1
module "accumulating" {
  sym N in [1, 64] batch
  state @seen : f32[2] = slice("mean", axis=0, start=1, end=3)
  state @zero : f32[2]
  func @forward(%x: f32[N]) -> (f32[N]) {
    %n = add(@seen, @zero)
    %m = slice(%n, axis=0, start=0, end=1)
    %y = add(%x, %m)
    %t = add(@seen, 1.0)
    copy(@seen, %t)
    return %y
  }
}
`

func floats(x ...float32) []byte {
	var out []byte
	for _, v := range x {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

// A state has its initial value from the tensors that the module names when the first step runs,
// although a warm-up came before, unless the caller passes memory for it to Load. Each step adds 1
// to it.
func TestStatesStartFromTensors(t *testing.T) {
	src := tensors{"mean": {Name: "mean", DType: dtype.F32, Shape: []int64{4}, Data: floats(9, 5, 7, 9)}}
	ctx := context.Background()
	for _, given := range []bool{false, true} {
		dev := openHost(t)
		b := create(t, accumulating, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.Full, Sizes: []int64{2}}})
		states := map[string]device.Buffer{}
		want := []float32{6, 7}
		if given {
			m, err := dev.Alloc(8)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Free()
			states["seen"] = device.Buffer{Memory: m, Size: 8}
			data, err := dev.Bytes(states["seen"])
			if err != nil {
				t.Fatal(err)
			}
			clear(data)
			want = []float32{1, 2}
		}
		if err := errors.Join(b.Load(ctx, src, states), b.Capture(ctx)); err != nil {
			t.Fatal(err)
		}
		for step := range 2 {
			wantF32(t, run(t, b.Func("forward"), []float32{1, 2}), []float32{want[0] + float32(step), want[1] + float32(step)})
		}
	}
}

const shardedState = `pwc 1
module "sharded" {
  sym N in [1, 64] batch
  sym r in [0, 1] load
  group tp in 2 rank r
  state @part : f32[2] shard 0 over tp = shard("mean", axis=0, group=tp)
  func @forward(%x: f32[N]) -> (f32[N]) {
    %m = sum(@part, axes=[0])
    %s = all_reduce(%m, group=tp)
    %y = add(%x, %s)
    return %y
  }
}
`

// The shard of a state on a rank starts from that rank's shard of the tensor: an all_reduce of the
// shards' sums gives the sum of the whole tensor.
func TestShardedStatesStartFromTensors(t *testing.T) {
	src := tensors{"mean": {Name: "mean", DType: dtype.F32, Shape: []int64{4}, Data: floats(1, 2, 4, 8)}}
	for rank, err := range onRanks(t, 2, func(rank int, dev *hostdev.Device) error {
		b := create(t, shardedState, piecewise.Options{Device: dev, Rank: rank, Capture: piecewise.CaptureOptions{Mode: piecewise.None}, Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"r": int64(rank)}}})
		defer b.Close()
		if err := b.Load(t.Context(), src, nil); err != nil {
			return err
		}
		wantF32(t, run(t, b.Func("forward"), []float32{0, 1}), []float32{15, 16})
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestInitialValuesThatCannotBeLoaded(t *testing.T) {
	for _, c := range []struct {
		name, want string
		src        safetensors.Source
	}{
		{"no checkpoint", "state @seen starts from tensors and Load got no checkpoint", nil},
		{"no tensor", "the initial value of state @seen: ", tensors{}},
		{"another shape", "the initial value of state @seen: ", tensors{"mean": {Name: "mean", DType: dtype.F32, Shape: []int64{2}, Data: floats(1, 2)}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := create(t, accumulating, piecewise.Options{Device: openHost(t)})
			err := b.Load(context.Background(), c.src, nil)
			if !errors.Is(err, piecewise.ErrNotLoaded) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}
