package piecewise_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"pwc/compile/host"
	"pwc/internal/testkit"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

const rowwise = `pwc 1
module "rowwise" {
  sym N in [1, 16] batch
  op "my::note"(tensor, mut tensor) capture rowwise
  func @f(%x: f32[N, 2]) -> (f32[N, 2]) {
    %e = empty_like(%x)
    call "my::note"(%x, %e) loc("here")
    %y = neg(%e)
    return %y
  }
}
`

// doubling returns an op that doubles each element; with mixing it adds the last element to the
// first result, and so is not rowwise.
func doubling(mixing bool) *noteOp {
	return &noteOp{mut: []bool{false, true}, capture: true, launch: func(c *device.OpCall) error {
		return c.Stream.(*hostdev.Stream).Call(func() error {
			in, out := hostBytes(c, c.Args[0].Buffer), hostBytes(c, c.Args[1].Buffer)
			load := func(i int) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(in[4*i:])) }
			for i := range len(in) / 4 {
				v := 2 * load(i)
				if mixing && i == 0 {
					v += load(len(in)/4 - 1)
				}
				binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(v))
			}
			return nil
		})
	}}
}

// A captured op that is declared rowwise lets runs be padded. CanaryBytes tests the declaration
// in calls that are not captured.
func TestRowwiseOps(t *testing.T) {
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.FullAndPiecewise} {
		for _, guard := range []piecewise.Canary{piecewise.CanaryOff, piecewise.CanaryBytes} {
			b := start(t, rowwise, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: sizesOf(mode, 4)}, Debug: piecewise.DebugOptions{Canary: guard}, Ops: []device.Op{doubling(false)}})
			f := b.Func("f")
			if err := f.Padding(); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				wantF32(t, run2(t, f, 3, []float32{1, 2, 3, 4, 5, 6}), []float32{-2, -4, -6, -8, -10, -12})
			}
			if s := b.Stats(); mode != piecewise.None && s.PaddedRows != 2 {
				t.Errorf("mode %s: %d rows of padding", mode, s.PaddedRows)
			}
		}
	}
	text := strings.Replace(rowwise, " rowwise\n", "\n", 1)
	b := create(t, text, piecewise.Options{Device: openHost(t), Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Ops: []device.Op{doubling(false)}})
	if err := b.Func("f").Padding(); err == nil || !strings.Contains(err.Error(), "only an op declared split or rowwise promises") {
		t.Errorf("without the promise: %v", err)
	}

	b = start(t, rowwise, piecewise.Options{Debug: piecewise.DebugOptions{Canary: piecewise.CanaryBytes}, Ops: []device.Op{doubling(true)}})
	in, err := b.Func("f").Inputs(3)
	if err != nil {
		t.Fatal(err)
	}
	x, err := in.Float32s("x")
	if err != nil {
		t.Fatal(err)
	}
	copy(x, []float32{1, 2, 3, 4, 5, 6})
	if _, err := b.Func("f").Run(context.Background(), in, nil); !errors.Is(err, piecewise.ErrOp) || !strings.Contains(err.Error(), "here") || !strings.Contains(err.Error(), "depends on rows from 2 on") {
		t.Errorf("an op that breaks its promise: %v", err)
	}
}

func sizesOf(mode piecewise.Mode, n ...int64) []int64 {
	if mode == piecewise.None {
		return nil
	}
	return n
}

// run2 runs a function whose rows have two elements.
func run2(t *testing.T, f *piecewise.Func, rows int64, x []float32) []float32 {
	t.Helper()
	in, err := f.Inputs(rows)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := in.Float32s("x")
	if err != nil {
		t.Fatal(err)
	}
	copy(dst, x)
	r, err := f.Run(context.Background(), in, nil)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, r.At(0))
}

func scattering(param string) string {
	return `pwc 1
module "scattering" {
  sym N in [1, 16] batch
  state @s : f32[4]
  func @put(%x: f32[N], %slots: ` + param + `) -> (f32[N]) {
    scatter(@s, %slots, %x)
    %y = neg(%x)
    return %y
  }
  func @get(%x: f32[4]) -> (f32[4]) {
    %y = add(@s, %x)
    return %y
  }
}
`
}

// A function with a scatter of the op table may be padded if padded rows of its indices hold -1,
// by the module or by the options. A padded row then writes nothing, and neither does a warm-up.
func TestPaddedSlots(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		param string
		slots []string
		padAs bool
	}{
		"text":            {"i32[N] padded -1", nil, true},
		"options":         {"i32[N]", []string{"slots"}, true},
		"options, of one": {"i64[N]", []string{"put.slots"}, true},
		"neither":         {"i32[N]", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, scattering(c.param), piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{4, 8}, PaddedSlots: c.slots}})
			put, get := b.Func("put"), b.Func("get")
			if (put.Padding() == nil) != c.padAs {
				t.Fatalf("padding: %v", put.Padding())
			}
			for _, rows := range []int64{3, 6, 1} { // padded to 4, 8 and 4, over indices of earlier runs
				in, err := put.Inputs(rows)
				if err != nil {
					t.Fatal(err)
				}
				x, err := in.Float32s("x")
				if err != nil {
					t.Fatal(err)
				}
				for i := range x {
					x[i] = float32(10*rows) + float32(i)
				}
				if c.param[:3] == "i64" {
					v, err := in.Int64s("slots")
					if err != nil {
						t.Fatal(err)
					}
					for i := range v {
						v[i] = int64(i%3) + 1
					}
				} else {
					v, err := in.Int32s("slots")
					if err != nil {
						t.Fatal(err)
					}
					for i := range v {
						v[i] = int32(i%3) + 1
					}
				}
				r, err := put.Run(ctx, in, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := r.Wait(); err != nil { // -1 in padded rows is no index out of range
					t.Error(err)
				}
			}
			in, err := get.Inputs(1)
			if err != nil {
				t.Fatal(err)
			}
			x, err := in.Float32s("x")
			if err != nil {
				t.Fatal(err)
			}
			clear(x)
			r, err := get.Run(ctx, in, nil)
			if err != nil {
				t.Fatal(err)
			}
			wantF32(t, read(t, r.At(0)), []float32{0, 10, 64, 65})
			if padded := b.Stats().PaddedRows; (padded == 1+2+3) != c.padAs {
				t.Errorf("%d rows of padding", padded)
			}
		})
	}
	for slot, want := range map[string]string{"other": "no function has such a parameter", "get.slots": "no function has such a parameter", "x": "only signed integers can hold -1"} {
		_, _, err := piecewise.Check(testkit.Parse(t, scattering("i32[N]")), piecewise.Options{Capture: piecewise.CaptureOptions{PaddedSlots: []string{slot}}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", slot, err)
		}
	}
}
