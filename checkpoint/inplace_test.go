package checkpoint

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/safetensors"
)

// InPlace finds weights whose bytes are contiguous in a file, in the weight's order, and refuses weights whose bytes are not.
func TestInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), safetensors.SingleFile)
	tensors := []safetensors.Tensor{
		bytesOf("t", []int64{2, 4}, 0, 1, 2, 3, 4, 5, 6, 7),
		bytesOf("u", []int64{2, 4}, 10, 11, 12, 13, 14, 15, 16, 17),
		bytesOf("v", []int64{1, 4}, 20, 21, 22, 23),
	}
	if err := safetensors.Write(path, tensors, nil); err != nil {
		t.Fatal(err)
	}
	src, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	for expr, want := range map[string][]byte{
		`u8[2, 4] = "t"`:                                                             {0, 1, 2, 3, 4, 5, 6, 7},
		`u8[8] = reshape("t", shape=[8])`:                                            {0, 1, 2, 3, 4, 5, 6, 7},
		`u8[1, 4] = slice("u", axis=0, start=1, end=2)`:                              {14, 15, 16, 17},
		`u8[1, 4] = shard("t", axis=0, parts=2, part=1)`:                             {4, 5, 6, 7},
		`u8[3, 4] = concat("u", "v", axis=0)`:                                        {10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23},
		`u8[1, 2, 4] = reshape(slice("u", start=0, end=2, axis=0), shape=[1, 2, 4])`: {10, 11, 12, 13, 14, 15, 16, 17},
		`u8[2, 4] = concat(shard("t", axis=0, parts=2, part=1), slice("u", axis=0, start=0, end=1), axis=0)`: {4, 5, 6, 7, 10, 11, 12, 13},

		`u8[3, 4] = concat("v", "u", axis=0)`:                           nil, // the other order
		`u8[3, 4] = concat("t", "v", axis=0)`:                           nil, // u is between them
		`u8[2, 8] = concat("t", "u", axis=1)`:                           nil,
		`u8[4, 2] = transpose("t", perm=[1, 0])`:                        nil,
		`u8[2, 2] = slice("t", axis=1, start=0, end=2)`:                 nil,
		`u8[1, 4] = slice("t", axis=0, start=0, end=2, step=2)`:         nil,
		`u8[2, 2] = shard("t", axis=1, parts=2, part=0)`:                nil,
		`u8[2, 4] = reshape(transpose("t", perm=[1, 0]), shape=[2, 4])`: nil,
		`u8[3, 4] = "t"`:       nil, // of another shape
		`u8[2, 4] = "missing"`: nil,
	} {
		got, from, ok := InPlace(src, parsed(t, expr).Weights[0])
		if d := cmp.Diff(want, got); d != "" || ok != (want != nil) || ok && from != path {
			t.Errorf("%s: %t, in %s (-want +got):\n%s", expr, ok, from, d)
		}
	}
	if _, _, ok := InPlace(nil, nil); ok {
		t.Error("nothing is in place")
	}
}
