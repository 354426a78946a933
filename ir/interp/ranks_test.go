package interp

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir"
	"pwc/ir/dtype"
)

const ranksText = `pwc 1
module "ranks" {
  sym N in [1, 8] batch
  sym d in [0, 1] load
  sym t in [0, 1] load
  group dp in 2 rank d
  group tp in 2 rank t
  weight @w : f32[2] = shard("w", axis=0, group=tp)
  func @f(%x: f32[N, 2] varying over tp varying over dp, %h: bf16[4] partial over tp varying over dp) -> (f32[N, 2] varying over dp, f32[N, 4] varying over dp, bf16[2] shard 0 over tp varying over dp, f32[N, 2], f32[1] varying over dp, f32[2] varying over tp) {
    %sum = all_reduce(%x, group=tp)
    %rows = all_gather(%x, group=tp, axis=1)
    %part = reduce_scatter(%h, group=tp)
    %all = broadcast(%sum, group=dp, root=1)
    %i = iota(shape=[2], dtype=f32)
    %r = slice(%i, axis=0, start=d, end=d + 1)
    return %sum, %rows, %part, %all, %r, @w
  }
}`

// TestRunRanks holds collectives over two groups to numbers worked out by hand: device 2·d+t
// has x = 10·(2·d+t) + its element.
func TestRunRanks(t *testing.T) {
	m, err := ir.Parse("ranks.ir", []byte(ranksText))
	if err != nil {
		t.Fatal(err)
	}
	w := f32(5, 6, 7, 8)
	envs, inputs := make([]*Env, 4), make([][]*Tensor, 4)
	for k := range envs {
		part, err := EvalWeight(t.Context(), m, m.WeightOf(m.Weights[0], k), func(string) (*Tensor, error) { return w, nil })
		if err != nil {
			t.Fatal(err)
		}
		envs[k] = &Env{Weights: map[string]*Tensor{"w": part}}
		base := float64(10 * k)
		inputs[k] = []*Tensor{of(dtype.F32, s(1, 2), base, base+1), bf16(base, base+1, 256, 2)}
	}
	got, err := RunRanks(t.Context(), m, m.Funcs[0], envs, inputs)
	if err != nil {
		t.Fatal(err)
	}
	want := map[int][][]float64{
		1: {{10, 12}, {0, 1, 10, 11}, {512, 4}, {50, 52}, {0}, {7, 8}},
		2: {{50, 52}, {20, 21, 30, 31}, {50, 52}, {50, 52}, {1}, {5, 6}},
	}
	for k, results := range want {
		for i, numbers := range results {
			if d := cmp.Diff(numbers, got[k][i].Float64s()); d != "" {
				t.Errorf("device %d, result %d (-by hand +got):\n%s", k, i, d)
			}
		}
	}
}

// TestRanksAreNeeded checks errors: too few devices, a symbol that is not the device's
// rank, a collective on one device, a shard without a rank, and an axis that the ranks cannot
// divide equally.
func TestRanksAreNeeded(t *testing.T) {
	m, err := ir.Parse("ranks.ir", []byte(ranksText))
	if err != nil {
		t.Fatal(err)
	}
	env := &Env{Weights: map[string]*Tensor{"w": f32(1, 2)}, Symbols: map[string]int64{"d": 0, "t": 0}}
	inputs := []*Tensor{of(dtype.F32, s(1, 2), 1, 2), bf16(1, 2, 3, 4)}
	check := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	_, err = RunRanks(t.Context(), m, m.Funcs[0], []*Env{env}, [][]*Tensor{inputs})
	check(err, "runs on 4 devices")
	_, err = RunRanks(t.Context(), m, m.Funcs[0], []*Env{env, env, env, env}, [][]*Tensor{inputs, inputs, inputs, inputs})
	check(err, "device 1: symbol t is 0 by the given value, but the rank of the device is 1")
	_, err = Run(t.Context(), m, m.Funcs[0], env, inputs)
	check(err, "all_reduce needs all ranks")
	_, err = EvalWeight(t.Context(), m, m.Weights[0], func(string) (*Tensor, error) { return f32(1, 2, 3, 4), nil })
	check(err, "weight @w: shard: the part depends on the rank in group tp")
	_, err = EvalWeight(t.Context(), m, m.WeightOf(m.Weights[0], 0), func(string) (*Tensor, error) { return f32(1, 2, 3), nil })
	check(err, "weight @w: shard: axis 0 of f32[3] has no 2 equal parts")
}
