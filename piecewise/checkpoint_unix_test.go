//go:build unix

package piecewise_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pwc/checkpoint"
	"pwc/ir/dtype"
	"pwc/piecewise"
	"pwc/safetensors"
)

// Load refuses a checkpoint with a tensor that `weights strict` forbids, one whose tensors differ
// although `unread "head" = "w"` declares them equal, and one that is truncated while it is open.
// After each refusal the pool has no bytes.
func TestLoadHoldsTheCheckpoint(t *testing.T) {
	ctx := context.Background()
	pool, err := piecewise.NewPool(openHost(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	const elements = 1 << 18
	text := strings.ReplaceAll(weighted, "[2]", "[262144]")
	text = strings.ReplaceAll(text, "[N, 2]", "[N, 262144]")
	strict := strings.Replace(text, "  sym", "  weights strict\n  unread \"head\" = \"w\"\n  sym", 1)
	zeros, other := make([]byte, 4*elements), make([]byte, 4*elements)
	other[4*elements-1] = 1
	tensor := func(name string, data []byte) safetensors.Tensor {
		return safetensors.Tensor{Name: name, DType: dtype.F32, Shape: []int64{elements}, Data: data}
	}
	for _, c := range []struct {
		name, text string
		tensors    []safetensors.Tensor
		truncate   bool
		ok         bool
	}{
		{"equal", strict, []safetensors.Tensor{tensor("w", zeros), tensor("head", zeros)}, false, true},
		{"other values", strict, []safetensors.Tensor{tensor("w", zeros), tensor("head", other)}, false, false},
		{"undeclared", strict, []safetensors.Tensor{tensor("w", zeros), tensor("bias", zeros)}, false, false},
		{"undeclared, and not strict", text, []safetensors.Tensor{tensor("w", zeros), tensor("bias", zeros)}, false, true},
		{"truncated", text, []safetensors.Tensor{tensor("w", zeros)}, true, false},
		{"truncated before it is compared", strict, []safetensors.Tensor{tensor("w", zeros), tensor("head", zeros)}, true, false},
	} {
		path := filepath.Join(t.TempDir(), safetensors.SingleFile)
		if err := safetensors.Write(path, c.tensors, nil); err != nil {
			t.Fatal(err)
		}
		src, err := safetensors.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if c.truncate {
			if err := os.Truncate(path, 1<<16); err != nil {
				t.Fatal(err)
			}
		}
		b := create(t, c.text, piecewise.Options{Pool: pool, Capture: piecewise.CaptureOptions{Mode: piecewise.None}})
		err = b.Load(ctx, src, nil)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, piecewise.ErrNotLoaded) {
			t.Errorf("%s: %v", c.name, err)
		}
		var fault *safetensors.FaultError
		var ignored *checkpoint.Error
		if want := c.truncate; errors.As(err, &fault) != want || !c.ok && errors.As(err, &ignored) == want {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := pool.Stats().RequestedBytes.Now; err != nil && got != 0 {
			t.Errorf("%s: the pool still has %d bytes", c.name, got)
		}
		if err := errors.Join(b.Close(), src.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
