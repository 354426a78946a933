package compile_test

import (
	"context"
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"pwc/compile"
	hostbackend "pwc/compile/host"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/program"
)

// TestAttention compares results and gradients with the interpreter, for the lengths and head
// sizes of oracle.AttentionCases.
func TestAttention(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for _, c := range oracle.AttentionCases() {
		for _, dt := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
			m, err := c.Module(dt)
			if err != nil {
				t.Fatal(err)
			}
			if err := check(m, compile.Shape{}, compile.Options{}, draw(t, m, r), false); err != nil {
				t.Errorf("%s %+v: %v", dt, c, err)
			}
		}
	}
}

// TestInfiniteScores: keys with a score of -inf have no weight, also if they fill a tile.
func TestInfiniteScores(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
		m, in, err := oracle.InfiniteScores(r, dt)
		if err != nil {
			t.Fatal(err)
		}
		if err := check(m, compile.Shape{}, compile.Options{}, in, false); err != nil {
			t.Errorf("%s: %v", dt, err)
		}
	}
}

// draw makes random inputs.
func draw(t *testing.T, m *ir.Module, r *rand.Rand) *oracle.Inputs {
	t.Helper()
	in, err := oracle.Draw(r, m, nil, func(r *rand.Rand, _ dtype.DType) float64 { return r.NormFloat64() })
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// TestAttentionNeedsNoScores: no buffer of a program grows with the product of the lengths,
// and views of q, k and v are not copied.
func TestAttentionNeedsNoScores(t *testing.T) {
	c := oracle.Attention{Batch: 1, Queries: 4096, Keys: 4096, Heads: 2, Groups: 2, Size: 8, Causal: true}
	m, err := c.Module(dtype.F32)
	if err != nil {
		t.Fatal(err)
	}
	p, err := compile.Compile(context.Background(), m, compile.Shape{}, hostbackend.New(), compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	for _, s := range p.Steps {
		if s.Kind == program.StepKernel {
			steps++
		}
	}
	if steps != 2 {
		t.Errorf("%d kernels, want 2\n%s", steps, p)
	}
	for _, b := range p.Buffers {
		n, _ := ir.Type{Shape: b.Shape}.Elements().Const()
		if n > c.Queries*(c.Heads+2*c.Groups)*c.Size {
			t.Errorf("a buffer of %d elements: %s", n, fmt.Sprint(b.Shape))
		}
	}
}

// TestAttentionIsJoined: if a concat joins gradients, attention_grad writes them directly to their
// parts of the concat's result. The rows of the concat are one axis or two.
func TestAttentionIsJoined(t *testing.T) {
	for _, rows := range []string{"2, 5", "10"} {
		m, err := ir.Parse("joined.ir", []byte(strings.ReplaceAll(`pwc 1
module "joined" {
  func @f(%q: f32[2, 5, 4, 3], %k: f32[2, 5, 2, 3], %lse: f32[2, 5, 4], %more: f32[ROWS, 2]) -> (f32[ROWS, 26], f32[2, 5, 4, 3]) {
    %dq, %dk, %dv = attention_grad(%q, %k, %k, %q, %lse, %lse, scale=0.5, causal=true)
    %a = reshape(%dq, shape=[ROWS, 12])
    %b = reshape(%dk, shape=[ROWS, 6])
    %c = reshape(%dv, shape=[ROWS, 6])
    %x = concat(%a, %more, %b, %c, axis=-1)
    %o, %sums = attention(%q, %k, %k, scale=0.5)
    return %x, %o
  }
}
`, "ROWS", rows)))
		if err != nil {
			t.Fatal(err)
		}
		if err := check(m, compile.Shape{}, compile.Options{}, draw(t, m, rand.New(rand.NewSource(1))), false); err != nil {
			t.Error(err)
		}
		p, err := compile.Compile(context.Background(), m, compile.Shape{}, hostbackend.New(), compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Steps) != 3 { // the gradient, the copy of %more, the attention
			t.Errorf("%d steps, want 3\n%s", len(p.Steps), p)
		}
	}
}

// TestAttentionIsJoinedTwice compares a gradient that is two operands of one concat with the
// interpreter. attention_grad cannot write it to both parts.
func TestAttentionIsJoinedTwice(t *testing.T) {
	m, err := ir.Parse("twice.ir", []byte(`pwc 1
module "twice" {
  func @f(%q: f32[2, 5, 4, 3], %k: f32[2, 5, 2, 3], %lse: f32[2, 5, 4]) -> (f32[2, 5, 8, 3]) {
    %dq, %dk, %dv = attention_grad(%q, %k, %k, %q, %lse, %lse, scale=0.5, causal=true)
    %x = concat(%dq, %dq, axis=2)
    return %x
  }
}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range [][]string{nil, {"dce"}} {
		if err := tryRandom(m, rand.New(rand.NewSource(1)), compile.Options{Disable: off}); err != nil {
			t.Errorf("without %v: %v", off, err)
		}
	}
}
