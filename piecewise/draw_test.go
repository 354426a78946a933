package piecewise_test

import (
	"context"
	"fmt"
	"math/rand"
	"testing"

	"pwc/compile/host"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/pieces"
	"pwc/piecewise"
)

const drawing = `pwc 1
module "drawing" {
  sym N in [1, 64] batch
  op "silly::attention"(tensor, tensor, tensor, mut tensor) split
  func @forward(%x: f32[N, 12], %rng: i64[2]) -> (f32[N, 12], f32[N, 12], bf16[N, 3, 2]) {
    %a = dropout(%x, %rng, p=0.25)
    %b = relu(%a)
    %c = dropout(%b, %rng, p=0.5)
    %o = empty_like(%c)
    call "silly::attention"(%c, %a, %x, %o)
    %u = uniform(%rng, shape=[N, 12], dtype=f32)
    %d = mul(%u, %o)
    %e = dropout(%d, %rng, p=0.5)
    %again = dropout(%x, %rng, p=0.25, offset=0, redraw=true)
    %v = uniform(%rng, shape=[N, 3, 2], dtype=bf16)
    return %e, %again, %v
  }
}
`

// TestDraws compares the results of a function with draws, which is split, captured and padded, with
// those of the interpreter, bit for bit. The offset advances with each run.
func TestDraws(t *testing.T) {
	m := testkit.Parse(t, drawing)
	f := m.Funcs[0]
	advance := f.Generators()[0].Advance
	if advance != 20 {
		t.Fatalf("a run moves the generator on by %d, want 20", advance)
	}
	dev, store := openHost(t), pieces.NewMemoryStore()
	for _, split := range []string{"silly::attention", "dropout", "uniform", "relu", "mul"} {
		for mode := range piecewise.Mode(5) {
			o := piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Store: store, Compiler: pieces.Pipeline{Backend: host.New()},
				SplitOn: []string{"silly::attention", split}}, Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{2, 8}}, Debug: piecewise.DebugOptions{Poison: true}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": 12}}}
			o.Ops = append(o.Ops, elementwise{"silly::attention", mode != piecewise.Piecewise && mode != piecewise.None})
			if split == "silly::attention" {
				o.Compile.SplitOn = o.Compile.SplitOn[:1]
			}
			if err := runDraws(t, m, o, advance); err != nil {
				t.Fatalf("split on %q, mode %s: %v", o.Compile.SplitOn, mode, err)
			}
		}
	}
}

func runDraws(t *testing.T, m *ir.Module, o piecewise.Options, advance int64) error {
	ctx := context.Background()
	b, err := piecewise.New(ctx, m, o)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := b.Load(ctx, nil, nil); err != nil {
		return err
	}
	if err := b.Capture(ctx); err != nil {
		return err
	}
	f := m.Funcs[0]
	r := rand.New(rand.NewSource(1))
	state := []int64{r.Int63() - r.Int63(), 4096}
	for _, n := range []int64{1, 2, 5, 5, 8, 11} {
		env := &interp.Env{Symbols: map[string]int64{"N": n}, Externs: map[string]interp.Extern{"silly::attention": oracle.SillyAttention}}
		x, err := randomTensor(r, f.Type(f.Params[0]), env.Symbols)
		if err != nil {
			return err
		}
		rng, err := interp.FromInt64s(ir.GeneratorType.DType, []int64{2}, state)
		if err != nil {
			return err
		}
		in, err := b.Func("forward").Inputs(n)
		if err != nil {
			return err
		}
		for name, data := range map[string][]byte{"x": x.Bytes(), "rng": rng.Bytes()} {
			staged, err := in.Bytes(name)
			if err != nil {
				return err
			}
			copy(staged, data)
		}
		results, err := b.Func("forward").Run(ctx, in, nil)
		if err != nil {
			return err
		}
		want, err := interp.Run(ctx, m, f, env, []*interp.Tensor{x, rng})
		if err != nil {
			return err
		}
		got := make([]*interp.Tensor, len(want))
		for i, w := range want {
			size, err := results.At(i).Size()
			if err != nil {
				return err
			}
			data := make([]byte, size)
			if err := results.At(i).CopyTo(data); err != nil {
				return err
			}
			if got[i], err = interp.FromBytes(w.Type, w.Shape, data); err != nil {
				return err
			}
		}
		if err := oracle.SameBits(got, want); err != nil {
			return fmt.Errorf("%d rows, offset %d: %w", n, state[1], err)
		}
		state[1] += advance
	}
	return nil
}
