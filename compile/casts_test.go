package compile_test

import (
	"context"
	"slices"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// TestIntegerCasts compares casts of integers and bools to 16-bit floats with numbers worked out by
// hand: a cast rounds once.
func TestIntegerCasts(t *testing.T) {
	for _, from := range dtype.All() {
		if !from.Computes() || from.Float() {
			continue
		}
		c, err := oracle.CastsOf(from)
		if err != nil {
			t.Fatal(err)
		}
		p := compileHost(t, c.Module, compile.Shape{}, compile.Options{})
		got, err := execute(p, c.Module, c.Inputs)
		if err == nil {
			err = c.Check(got)
		}
		if err != nil {
			t.Errorf("%s: %v\n%s", from, err, p)
		}
	}
}

// TestLiteralsRoundOnce compares literals that become elements with numbers worked out by hand.
// f32 would round each literal of a 16-bit result to a tie of the dtype, which rounds in the other
// direction.
func TestLiteralsRoundOnce(t *testing.T) {
	m := testkit.Parse(t, `pwc 1
module "literals" {
  func @piece(%c: bool[2], %x: bf16[2], %h: f16[2]) -> (bf16[2], bf16[2], bf16[2], bf16[2], bf16[4], bf16[2], f16[2], f16[4], f32[2], bf16[2]) {
    %where = where(%c, %x, 16842753)
    %maximum = maximum(%x, 16842753)
    %minimum = minimum(-16842753, %x)
    %clamp = clamp(%x, 0x1.0100000001p0, 0x1.02fffffffp0)
    %pad = pad(%x, -16842753, low=[1], high=[1])
    %full = full(16842753, shape=[2], dtype=bf16)
    %half = where(%c, 0x1.0020000001p0, %h)
    %halves = pad(%h, 0x1.0020000001p0, low=[2], high=[0])
    %wide = cast(%x, dtype=f32)
    %f32 = maximum(%wide, 16842753)
    %two = cast(%f32, dtype=bf16)
    return %where, %maximum, %minimum, %clamp, %pad, %full, %half, %halves, %f32, %two
  }
}
`)
	in := &oracle.Inputs{Params: []*interp.Tensor{
		tensorOf(t, dtype.Bool, []int64{2}, []float64{0, 1}, 0), tensorOf(t, dtype.BF16, []int64{2}, []float64{2, 3}, 0), tensorOf(t, dtype.F16, []int64{2}, []float64{2, 3}, 0)}}
	const up = 0x1.02p24
	want := [][]float64{{up, 3}, {up, up}, {-up, -up}, {0x1.02p0, 0x1.02p0}, {-up, 2, 3, -up}, {up, up}, {2, 0x1.004p0}, {0x1.004p0, 0x1.004p0, 2, 3},
		{1<<24 + 1<<16, 1<<24 + 1<<16}, {0x1p24, 0x1p24}}
	for name, run := range map[string]func() ([]*interp.Tensor, error){
		"interpreter": func() ([]*interp.Tensor, error) { return oracle.Interpret(context.Background(), m, in.Clone()) },
		"host": func() ([]*interp.Tensor, error) {
			return execute(compileHost(t, m, compile.Shape{}, compile.Options{}), m, in.Clone())
		},
	} {
		got, err := run()
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range want {
			if !slices.Equal(got[i].Float64s(), w) {
				t.Errorf("%s: result %d is %v, want %v", name, i, got[i].Float64s(), w)
			}
		}
	}
}
