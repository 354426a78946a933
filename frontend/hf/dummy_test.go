package hf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"pwc/ir/dtype"
	"pwc/safetensors"
)

func param(name string, d dtype.DType, mean, std float64, shape ...int64) Param {
	return Param{Info: safetensors.Info{Name: name, DType: d, Shape: shape}, Mean: mean, Std: std}
}

func TestDummy(t *testing.T) {
	src := Dummy([]Param{param("w", dtype.F32, 0, 0.02, 300, 500), param("norm", dtype.BF16, 1, 0, 7), param("h", dtype.F16, 0, 1, 3, 1000),
		param("none", dtype.BF16, 0, 1, 0, 4), param("scalar", dtype.F32, 2, 0), param("ids", dtype.I64, 1, 0.02, 3)})
	if got := src.Names(); !slices.Equal(got, []string{"w", "norm", "h", "none", "scalar", "ids"}) {
		t.Errorf("Names() = %q", got)
	}
	w, err := src.Tensor("w")
	if err != nil {
		t.Fatal(err)
	}
	n := 300 * 500
	if len(w.Data) != 4*n {
		t.Fatalf("%d bytes, want %d", len(w.Data), 4*n)
	}
	var sum, square, most float64
	for i := range n {
		v := float64(math.Float32frombits(binary.LittleEndian.Uint32(w.Data[4*i:])))
		sum, square, most = sum+v, square+v*v, max(most, math.Abs(v))
	}
	// For 150000 samples, the mean must be within 5 standard errors of 0 and the standard deviation within 2 % of 0.02.
	// No sample may be outside the range of the distribution.
	if mean := sum / float64(n); math.Abs(mean) > 5*0.02/math.Sqrt(float64(n)) {
		t.Errorf("mean %v", mean)
	}
	if std := math.Sqrt(square / float64(n)); math.Abs(std-0.02) > 0.0004 {
		t.Errorf("deviation %v, want 0.02", std)
	}
	if most > 3.5*0.02 || most < 3*0.02 {
		t.Errorf("largest %v", most)
	}

	again, err := src.Tensor("w")
	if err != nil || !bytes.Equal(again.Data, w.Data) {
		t.Errorf("a second call gives other values (%v)", err)
	}
	other, err := Dummy([]Param{param("v", dtype.F32, 0, 0.02, 300, 500)}).Tensor("v")
	if err != nil || bytes.Equal(other.Data, w.Data) {
		t.Errorf("another name has the same values (%v)", err)
	}

	norm, err := src.Tensor("norm")
	if err != nil || !bytes.Equal(norm.Data, bytes.Repeat([]byte{0x80, 0x3f}, 7)) {
		t.Errorf("norm is %x (%v), want ones in bf16", norm.Data, err)
	}
	if h, err := src.Tensor("h"); err != nil || len(h.Data) != 2*3*1000 {
		t.Errorf("h has %d bytes (%v)", len(h.Data), err)
	}
	if none, err := src.Tensor("none"); err != nil || len(none.Data) != 0 {
		t.Errorf("none has %d bytes (%v)", len(none.Data), err)
	}
	if s, err := src.Tensor("scalar"); err != nil || !bytes.Equal(s.Data, []byte{0, 0, 0, 0x40}) {
		t.Errorf("scalar is %x (%v), want 2", s.Data, err)
	}
	if ids, err := src.Tensor("ids"); err != nil || !bytes.Equal(ids.Data, make([]byte, 24)) {
		t.Errorf("ids are %x (%v), want zeros", ids.Data, err)
	}
}

// TestDummyValues compares values with those of the definition in Python. They must never change, because recorded
// results depend on them.
func TestDummyValues(t *testing.T) {
	src := Dummy([]Param{param("model.norm.weight", dtype.F32, 0, 1, 3)})
	x, err := src.Tensor("model.norm.weight")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float32{-0.223192886, -1.37092495, -0.168775573} {
		if got := math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*i:])); got != want {
			t.Errorf("element %d is %v, want %v", i, got, want)
		}
	}
	// Several goroutines compute the elements. Those near multiples of the period must have the value of their index
	// modulo the period.
	const columns = 3000
	big := param("big", dtype.F32, 1, 2, 2*period/columns+2, columns)
	if x, err = Dummy([]Param{big}).Tensor("big"); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(len(x.Data) / 4) {
		if i%period > 1<<18 && i%period < period-1<<18 {
			continue
		}
		if got, want := math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*i:])), sample(seedOf("big"), i%period, 1, 2); got != want {
			t.Fatalf("element %d is %v, want %v", i, got, want)
		}
	}
}

func TestDummyRefuses(t *testing.T) {
	src := Dummy([]Param{param("f8", dtype.F8E4M3, 0, 1, 3), param("huge", dtype.F32, 0, 1, 1<<40, 1<<40)})
	if _, err := src.Tensor("x"); !errors.Is(err, safetensors.ErrNotFound) {
		t.Errorf("a tensor that is not there: %v", err)
	}
	if _, err := src.Info("x"); !errors.Is(err, safetensors.ErrNotFound) {
		t.Errorf("a tensor that is not there: %v", err)
	}
	for _, name := range []string{"f8", "huge"} {
		if _, err := src.Tensor(name); err == nil {
			t.Errorf("%s is made", name)
		}
	}
}

func BenchmarkDummy(b *testing.B) {
	src := Dummy([]Param{param("w", dtype.BF16, 0, 0.02, 1024, 1024)})
	b.SetBytes(2 << 20)
	for b.Loop() {
		if _, err := src.Tensor("w"); err != nil {
			b.Fatal(err)
		}
	}
}
