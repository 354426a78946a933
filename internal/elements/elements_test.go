package elements_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"pwc/internal/elements"
	"pwc/ir/dtype"
	"pwc/runtime/device"
)

// 1.5, -2 and 2⁻³⁰ as each dtype stores them, by hand; f16 has no 2⁻³⁰.
var stored = map[dtype.DType][]byte{
	dtype.F32:  {0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc0, 0, 0, 0x80, 0x30},
	dtype.BF16: {0xc0, 0x3f, 0x00, 0xc0, 0x80, 0x30},
	dtype.F16:  {0x00, 0x3e, 0x00, 0xc0, 0x00, 0x00},
}

func view(t *testing.T, dt dtype.DType, data []byte) elements.Slice {
	t.Helper()
	v, err := elements.View(&device.Tensor{DType: dt, Shape: []int64{int64(len(data)) * 8 / int64(dt.Bits())}}, data)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestLoadStore(t *testing.T) {
	for dt, data := range stored {
		want := []float32{1.5, -2, 1. / (1 << 30)}
		if dt == dtype.F16 {
			want[2] = 0
		}
		v := view(t, dt, data)
		got := make([]float32, 2)
		v.Load(got, 1)
		if !slices.Equal(got, want[1:]) {
			t.Errorf("%s: loaded %v, want %v", dt, got, want[1:])
		}
		out := make([]byte, len(data))
		o := view(t, dt, out)
		o.Store(0, []float32{1.5, -2, 1. / (1 << 30)})
		if !slices.Equal(out, data) {
			t.Errorf("%s: stored %x, want %x", dt, out, data)
		}
		o.Zero(1, 3)
		if clear(data[dt.Bytes(1):]); !slices.Equal(out, data) {
			t.Errorf("%s: %x after zeroing, want %x", dt, out, data)
		}
	}
}

// TestCopy copies between all dtypes. 99 elements are more than Copy converts in one part.
func TestCopy(t *testing.T) {
	all := []dtype.DType{dtype.F32, dtype.BF16, dtype.F16}
	for _, from := range all {
		for _, to := range all {
			src, dst := make([]byte, from.Bytes(100)), make([]byte, to.Bytes(103))
			s, d := view(t, from, src), view(t, to, dst)
			x := make([]float32, 100)
			for i := range x {
				x[i] = float32(i)
			}
			s.Store(0, x)
			d.Copy(2, &s, 1, 99)
			got := make([]float32, 103)
			d.Load(got, 0)
			want := append(append([]float32{0, 0}, x[1:]...), 0, 0)
			if !slices.Equal(got, want) {
				t.Errorf("%s to %s: %v, want %v", from, to, got, want)
			}
		}
	}
}

func TestViewRefuses(t *testing.T) {
	data := make([]byte, 17)
	for want, c := range map[string]struct {
		dt    dtype.DType
		shape []int64
		data  []byte
	}{
		"8 bytes for f32[3], want 12":         {dtype.F32, []int64{3}, data[:8]},
		"not aligned to 4 bytes":              {dtype.F32, []int64{4}, data[1:17]},
		"not aligned to 2 bytes":              {dtype.F16, []int64{4}, data[1:17]},
		"i32 is not one of f32, f16 and bf16": {dtype.I32, []int64{4}, data[:16]},
	} {
		if _, err := elements.View(&device.Tensor{DType: c.dt, Shape: c.shape}, c.data); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
}

func TestCast(t *testing.T) {
	data := make([]byte, 20)
	binary.LittleEndian.PutUint64(data[8:], 0x3ff0000000000000)
	v, err := elements.Cast[float64](data)
	if err != nil || !slices.Equal(v, []float64{0, 1}) {
		t.Errorf("%v, %v", v, err)
	}
	if v, err := elements.Cast[float64](nil); err != nil || len(v) != 0 {
		t.Errorf("nothing: %v, %v", v, err)
	}
}
