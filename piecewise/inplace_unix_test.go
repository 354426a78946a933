//go:build unix

package piecewise_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pwc/piecewise"
	"pwc/safetensors"
)

// inPlaceElements is the number of elements of the weight of an inPlaceCase; each is 1.
const inPlaceElements = 1 << 18

// inPlaceCase is a checkpoint's file, and how many bytes of its weight a backend with the options
// reads from the mapped file.
type inPlaceCase struct {
	name    string
	file    []byte
	o       piecewise.Options
	inPlace int64
}

func inPlaceCases() []inPlaceCase {
	const elements = inPlaceElements
	ones := make([]byte, 4*elements)
	for i := range elements {
		ones[4*i+2], ones[4*i+3] = 0x80, 0x3f
	}
	// file returns a checkpoint whose tensor w begins at a multiple of 8 plus offset bytes.
	file := func(offset int) []byte {
		header := fmt.Appendf(nil, `{"a": {"dtype": "U8", "shape": [%d], "data_offsets": [0, %[1]d]}, "w": {"dtype": "F32", "shape": [%d], "data_offsets": [%[1]d, %[3]d]}}`, offset, elements, offset+4*elements)
		header = append(header, bytes.Repeat([]byte(" "), -len(header)&7)...)
		return slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header, make([]byte, offset), ones)
	}
	return []inPlaceCase{
		{"mapped", file(8), piecewise.Options{}, 4 * elements},
		{"mapped, at an odd float", file(4), piecewise.Options{}, 4 * elements},
		{"mapped, in graphs", file(8), piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Full, Sizes: []int64{1}}}, 4 * elements},
		{"copied", file(8), piecewise.Options{Memory: piecewise.MemoryOptions{CopyWeights: true}}, 0},
		{"canaries", file(8), piecewise.Options{Debug: piecewise.DebugOptions{Canary: piecewise.CanaryBytes}}, 0},
		{"not aligned", file(2), piecewise.Options{}, 0},
	}
}

// loadInPlace loads a case, closes its file, and returns the file's name and a step that writes
// the product of the weight and x to y. The first element of x is 3, the last 5.
func loadInPlace(t *testing.T, c inPlaceCase) (path string, b *piecewise.Backend, y []byte, step func() error) {
	t.Helper()
	path = filepath.Join(t.TempDir(), safetensors.SingleFile)
	if err := os.WriteFile(path, c.file, 0o600); err != nil {
		t.Fatal(err)
	}
	src, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b = create(t, strings.NewReplacer("[2]", "[262144]", "[N, 2]", "[N, 262144]").Replace(weighted), c.o)
	if err := errors.Join(b.Load(context.Background(), src, nil), b.Capture(context.Background()), src.Close()); err != nil {
		t.Fatal(err)
	}
	f := b.Func("forward")
	y = make([]byte, 4*inPlaceElements)
	return path, b, y, func() error {
		in, err := f.Inputs(1)
		if err != nil {
			return err
		}
		x, err := in.Float32s("x")
		if err != nil {
			return err
		}
		x[0], x[inPlaceElements-1] = 3, 5
		r, err := f.Run(context.Background(), in, nil)
		if err != nil {
			return err
		}
		return r.At(0).CopyTo(y)
	}
}

// Weights stay in the mapped file of the checkpoint, also after its Close, unless they are not
// aligned or the options ask for copies or canaries.
func TestWeightsInPlace(t *testing.T) {
	for _, c := range inPlaceCases() {
		t.Run(c.name, func(t *testing.T) {
			_, b, y, step := loadInPlace(t, c)
			if got := b.Stats().WeightBytesInPlace; got != c.inPlace {
				t.Errorf("%d bytes of weights are in place, want %d", got, c.inPlace)
			}
			if err := step(); err != nil {
				t.Fatal(err)
			}
			if first, last := f32(y, 0), f32(y, inPlaceElements-1); first != 3 || last != 5 {
				t.Errorf("x · 1 = %g, …, %g; want 3, …, 5", first, last)
			}
		})
	}
}

// A run that finds the file of its weights truncated fails with an error that names it. Copied
// weights need no file.
func TestTruncatedWeightsInPlace(t *testing.T) {
	for _, c := range inPlaceCases() {
		t.Run(c.name, func(t *testing.T) {
			path, _, _, step := loadInPlace(t, c)
			if err := step(); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, 1<<16); err != nil {
				t.Fatal(err)
			}
			err := step()
			var fault *safetensors.FaultError
			if errors.As(err, &fault) != (c.inPlace > 0) || fault != nil && fault.File != path {
				t.Errorf("a run after the file was truncated: %v", err)
			}
		})
	}
}

// A capture of another stream keeps the device from giving imported memory up: Close returns that
// error, and a second Close after the capture succeeds.
func TestCloseInPlaceDuringACapture(t *testing.T) {
	dev := openHost(t)
	c := inPlaceCases()[0]
	c.o.Device = dev
	_, b, _, step := loadInPlace(t, c)
	if err := step(); err != nil {
		t.Fatal(err)
	}
	closeInACapture(t, dev, b)
}
