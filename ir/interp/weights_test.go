package interp

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pwc/ir"
	"pwc/ir/dtype"
)

const weightText = `pwc 1
module "weights" {
  weight @plain : f32[2, 2]
  weight @named : f32[2, 2] = "a"
  weight @qkv : bf16[2, 3] = cast(transpose(concat("a", slice("b", axis=0, start=1, end=2)), perm=[1, 0]), dtype=bf16)
  weight @flat : f32[4] = reshape("a", shape=[4])
  weight @packed : f8e4m3[1, 2] = slice("c", axis=0, start=0, end=1)
  weight @missing : f32[1] = concat("a", "gone")
  weight @type : f32[4] = "a"
  weight @range : f32[1, 2] = slice("a", axis=0, start=1, end=3)
  weight @perm : f32[2, 2] = transpose("a", perm=[0, 0])
  weight @narrow : f32[2, 2] = cast("c", dtype=f32)
  weight @cut : f32[1, 2] = shard(transpose("a", perm=[0, 0]), parts=2, part=0)
}
`

func TestEvalWeight(t *testing.T) {
	m := parse(t, weightText)
	c, err := FromBytes(dtype.F8E4M3, s(2, 2), []byte{1, 2, 3, 4})
	tensors := map[string]*Tensor{
		"plain": of(dtype.F32, s(2, 2), 9, 9, 9, 9),
		"a":     of(dtype.F32, s(2, 2), 1, 2, 3, 1+0x1p-8),
		"b":     of(dtype.F32, s(2, 2), 5, 6, 7, 8),
		"c":     must(t, c, err),
	}
	get := func(name string) (*Tensor, error) { return tensors[name], nil }
	packed, err := FromBytes(dtype.F8E4M3, s(1, 2), []byte{1, 2})
	for name, want := range map[string]*Tensor{
		"plain":  tensors["plain"],
		"named":  tensors["a"],
		"qkv":    of(dtype.BF16, s(2, 3), 1, 3, 7, 2, 1, 8),
		"flat":   f32(1, 2, 3, 1+0x1p-8),
		"packed": must(t, packed, err),
	} {
		got, err := EvalWeight(context.Background(), m, weight(m, name), get)
		check(t, name, must(t, got, err), want)
		if got == want {
			t.Errorf("@%s is the checkpoint's tensor itself", name)
		}
	}
	for name, want := range map[string]string{
		"missing": `weight @missing: tensor "gone": not found`,
		"type":    "weight @type is f32[4], the checkpoint gives f32[2, 2]",
		"range":   "test.ir:10:31: slice: end 3 is not known to be at most the extent 2",
		"perm":    "is not a permutation",
		"cut":     "is not a permutation",
		"narrow":  "f8e4m3 is only for storage",
	} {
		got, err := EvalWeight(context.Background(), m, weight(m, name), get)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("@%s: %v, error %v, want %q", name, got, err, want)
		}
	}
	broken := errors.New("broken")
	if _, err := EvalWeight(context.Background(), m, weight(m, "named"), func(string) (*Tensor, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

func weight(m *ir.Module, name string) *ir.Weight {
	for _, w := range m.Weights {
		if w.Name == name {
			return w
		}
	}
	return nil
}
