//go:build unix

package train_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/optim"
	"pwc/safetensors"
	"pwc/train"
)

// A batch of a file that was truncated while it is mapped is an error, in the order of the file and shuffled.
func TestTruncatedData(t *testing.T) {
	const rows = 4096
	for _, shuffled := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "data.safetensors")
		x := safetensors.Tensor{Name: "x", DType: dtype.F32, Shape: []int64{rows, 2}, Data: make([]byte, 8*rows)}
		if err := safetensors.Write(path, []safetensors.Tensor{x}, nil); err != nil {
			t.Fatal(err)
		}
		file, err := safetensors.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		p, err := train.Build(testkit.Parse(t, gradient), train.Options{Optimizer: optim.SGD{}})
		if err != nil {
			t.Fatal(err)
		}
		d, err := train.NewData(p, file)
		if err != nil {
			t.Fatal(err)
		}
		if shuffled {
			if err := d.Shuffle(1); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.Input(0, 0); err != nil {
			t.Errorf("shuffled %v, before: %v", shuffled, err)
		}
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		var fault *safetensors.FaultError
		if _, err := d.Input(0, 0); !errors.As(err, &fault) || fault.File != path {
			t.Errorf("shuffled %v: %v, want a FaultError of %s", shuffled, err, path)
		}
	}
}
