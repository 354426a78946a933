package piecewise_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"pwc/piecewise"
	"pwc/runtime/device"
)

// chain has three functions. @double and @negate are linked to the result of @one;
// runChain sets the input of @negate to the result of @double.
const chain = `pwc 1
module "chain" {
  sym N in [1, 64] batch
  func @one(%x: f32[N]) -> (f32[N]) {
    %y = add(%x, 1.0) : f32[N]
    return %y
  }
  func @double(%y: f32[N]) -> (f32[N]) {
    %z = mul(%y, 2.0) : f32[N]
    return %z
  }
  func @negate(%y: f32[N]) -> (f32[N]) {
    %z = neg(%y) : f32[N]
    return %z
  }
}
`

// runChain runs x through @one, @double and @negate, and copies the last result to out.
func runChain(t testing.TB, funcs []*piecewise.Func, x []float32, out []byte) {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	in, err := funcs[0].Inputs(int64(len(x)))
	check(err)
	dst, err := in.Float32s("x")
	check(err)
	copy(dst, x)
	r, err := funcs[0].Run(ctx, in, nil)
	check(err)
	for _, f := range funcs[1:] {
		in, err = f.Inputs(int64(len(x)))
		check(err)
		check(in.SetResult("y", r.At(0)))
		r, err = f.Run(ctx, in, nil)
		check(err)
	}
	check(r.At(0).StartCopy(out))
	check(r.Wait())
}

// Passing results from function to function, linked or not, allocates nothing.
func TestChain(t *testing.T) {
	b := start(t, chain, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{4, 64}}})
	x := []float32{1, 2, 3}
	out := make([]byte, 4*len(x))
	funcs := []*piecewise.Func{b.Func("one"), b.Func("double"), b.Func("negate")}
	runChain(t, funcs, x, out)
	got := []float32{f32(out, 0), f32(out, 1), f32(out, 2)}
	if want := []float32{-4, -6, -8}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if n := testing.AllocsPerRun(20, func() { runChain(t, funcs, x, out) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	r, err := issue(t, b.Func("one"), x, nil)
	if err != nil {
		t.Fatal(err)
	}
	in, err := b.Func("double").Inputs(2)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.SetResult("y", r.At(0)); !errors.Is(err, piecewise.ErrSize) {
		t.Errorf("3 rows as the input of 2: %v, want %v", err, piecewise.ErrSize)
	}
	if err := r.At(0).StartCopy(out[:8]); !errors.Is(err, piecewise.ErrSize) {
		t.Errorf("12 bytes copied to 8: %v, want %v", err, piecewise.ErrSize)
	}
}

// Run uses the run mode and the size that Choose returned before it.
func TestChoose(t *testing.T) {
	for _, c := range []struct {
		mode    piecewise.Mode
		rows    int64
		uniform bool
		how     piecewise.RunMode
		size    int64
	}{
		{piecewise.None, 8, true, piecewise.RunEager, 8},
		{piecewise.Piecewise, 3, true, piecewise.RunPiecewise, 8},
		{piecewise.Full, 8, false, piecewise.RunFull, 8},
		{piecewise.FullDecodeOnly, 8, true, piecewise.RunFull, 8},
		{piecewise.FullDecodeOnly, 8, false, piecewise.RunEager, 8},
		{piecewise.FullAndPiecewise, 7, true, piecewise.RunFull, 8},
		{piecewise.FullAndPiecewise, 7, false, piecewise.RunPiecewise, 8},
		{piecewise.FullAndPiecewise, 15, true, piecewise.RunEager, 15},
	} {
		b := start(t, chain, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: c.mode, Sizes: []int64{1, 8}}})
		got := b.Func("one").Choose(c.rows, c.uniform)
		if got.Mode != c.how || got.Size != c.size || got.Why == "" {
			t.Errorf("%s, %d rows, uniform %t: %+v, want %s at %d", c.mode, c.rows, c.uniform, got, c.how, c.size)
		}
		in, err := b.Func("one").Inputs(c.rows)
		if err != nil {
			t.Fatal(err)
		}
		in.SetUniform(c.uniform)
		if _, err := in.Float32s("x"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Func("one").Run(context.Background(), in, nil); err != nil {
			t.Fatal(err)
		}
		s := b.Stats()
		if n := [...]int64{piecewise.RunEager: s.EagerRuns, piecewise.RunPiecewise: s.Replays, piecewise.RunFull: s.FullReplays}[c.how]; n != 1 || s.PaddedRows != c.size-c.rows {
			t.Errorf("%s, %d rows: the run was not as chosen: %+v", c.mode, c.rows, s)
		}
	}
}

// Pieces are captured before full graphs, each largest first. A function of one piece is
// captured once: its full graph is the graph of the piece.
func TestCaptureOrder(t *testing.T) {
	o := captures{}
	mode := piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{8, 1, 4}}, Observe: piecewise.ObserveOptions{Observer: &o}}
	b := start(t, chain, mode)
	if got, want := o["one"], []int64{8, 4, 1}; !slices.Equal(got, want) {
		t.Errorf("captured sizes %v, want %v", got, want)
	}
	if planned, made := b.Plan().Graphs, b.Stats().GraphsCaptured; planned != 9 || made != 9 {
		t.Errorf("%d graphs are planned and %d made, want 9: three functions of one piece at three sizes", planned, made)
	}
	wantF32(t, run(t, b.Func("one"), []float32{1, 2}), []float32{2, 3})

	clear(o)
	sum := &sum3{capture: true}
	mode.Ops = []device.Op{sum}
	b = start(t, nineteen, mode)
	if got, want := o["forward"], []int64{8, 4, 1, 8, 4, 1}; !slices.Equal(got, want) {
		t.Errorf("captured sizes %v, want %v", got, want)
	}
	if planned, made := b.Plan().Graphs, b.Stats().GraphsCaptured; planned != made || made != 3*(b.Stats().CapturableGraphsSeen+1) {
		t.Errorf("%d graphs are planned and %d made", planned, made)
	}
}

// captures contains the sizes of the captures, in order.
type captures map[string][]int64

func (c *captures) Captured(fn string, size int64, graphs int, _ time.Duration) {
	if *c == nil {
		*c = captures{}
	}
	(*c)[fn] = append((*c)[fn], size)
}

func (*captures) Ran(string, int64, int64, piecewise.RunMode) {}
