package checkpoint

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir"
	"pwc/safetensors"
)

// TestShards holds the parts of expressions to numbers worked out by hand, both where the tensors are
// cut and where the value of the whole expression is computed and cut.
func TestShards(t *testing.T) {
	// t is [[0 1 2 3] [4 5 6 7]], u is t + 10.
	src := source(t, bytesOf("t", []int64{2, 4}, 0, 1, 2, 3, 4, 5, 6, 7), bytesOf("u", []int64{2, 4}, 10, 11, 12, 13, 14, 15, 16, 17))
	for expr, want := range map[string][]byte{
		`u8[1, 4] = shard("t", axis=0, group=tp)`:                                         {4, 5, 6, 7},
		`u8[2, 2] = shard("t", axis=1, group=tp)`:                                         {2, 3, 6, 7},
		`u8[2, 2] = shard("t", axis=-1, group=tp)`:                                        {2, 3, 6, 7},
		`u8[2, 2] = shard(transpose("t", perm=[1, 0]), axis=0, group=tp)`:                 {2, 6, 3, 7},
		`u8[2, 2] = transpose(shard("t", axis=1, group=tp), perm=[1, 0])`:                 {2, 6, 3, 7},
		`u8[4, 2] = shard(concat("t", "u", axis=0), axis=1, group=tp)`:                    {2, 3, 6, 7, 12, 13, 16, 17},
		`u8[2, 4] = shard(concat("t", "u", axis=0), axis=0, group=tp)`:                    {10, 11, 12, 13, 14, 15, 16, 17},
		`u8[2, 4] = concat(shard("t", group=tp), shard("u", group=tp), axis=0)`:           {4, 5, 6, 7, 14, 15, 16, 17},
		`u8[1, 1, 4] = shard(reshape("t", shape=[1, 2, 4]), axis=1, group=tp)`:            {4, 5, 6, 7},
		`u8[1, 4] = shard("t", parts=2, part=0)`:                                          {0, 1, 2, 3},
		`u8[2, 2] = slice(shard("t", axis=1, group=tp), axis=1, start=0, end=2)`:          {2, 3, 6, 7},
		`u8[1, 2] = shard(slice("t", axis=0, start=1, end=2), axis=1, parts=2, group=tp)`: {6, 7},
	} {
		w, err := compute(t, src, expr)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		var got []byte
		for _, p := range w.Parts {
			got = append(got, p...)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", expr, d)
		}
	}
	for expr, want := range map[string]string{
		`u8[1] = shard("t", axis=0, parts=3, part=0)`: "axis 0 of [2 4] has 2 elements, which are not 3 equal parts",
		`u8[1] = shard("t", axis=2, group=tp)`:        "axis 2 of a tensor of shape [2 4]",
	} {
		if _, err := compute(t, src, expr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", expr, err, want)
		}
	}
	m := parsed(t, `u8[1, 4] = shard("t", axis=0, group=tp)`)
	if _, err := Compute(src, m.Weights[0]); err == nil || !strings.Contains(err.Error(), "no rank is given") {
		t.Errorf("a shard of no rank: %v", err)
	}
}

// TestShardsAreReadOnce holds that the ranks together read the checkpoint once: each byte of a tensor in the mapped file
// is in the weight of exactly one rank, and no rank has a copy.
func TestShardsAreReadOnce(t *testing.T) {
	src := source(t, bytesOf("t", []int64{4, 2}, 0, 1, 2, 3, 4, 5, 6, 7), bytesOf("u", []int64{2, 2}, 8, 9, 10, 11))
	readBy := map[*byte]int{}
	m := parsed(t, `u8[3, 2] = concat(shard("t", axis=0, group=tp), shard("u", axis=0, group=tp), axis=0)`)
	for rank := range 2 {
		w, err := Compute(src, m.WeightOf(m.Weights[0], rank))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range w.Parts {
			for i := range part {
				readBy[&part[i]]++
			}
		}
	}
	for _, name := range src.Names() {
		x, err := src.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		for i := range x.Data {
			if n := readBy[&x.Data[i]]; n != 1 {
				t.Errorf("%d ranks read byte %d of %s in the file, want 1", n, i, name)
			}
		}
	}
	if want := 8 + 4; len(readBy) != want {
		t.Errorf("ranks have %d bytes, %d of them copies; want the %d of the file", len(readBy), len(readBy)-want, want)
	}
}

func parsed(t *testing.T, weight string) *ir.Module {
	t.Helper()
	m, err := ir.Parse("shards.ir", []byte(`pwc 1 module "m" { group tp in 2 weight @w : `+weight+` }`))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// compute computes the weight that the second of two devices loads.
func compute(t *testing.T, src safetensors.Source, weight string) (Weight, error) {
	t.Helper()
	m := parsed(t, weight)
	return Compute(src, m.WeightOf(m.Weights[0], 1))
}
