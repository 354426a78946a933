package wire

import (
	"errors"
	"math"
	"testing"

	"pwc/ir/dim"
)

func TestFields(t *testing.T) {
	n, err := dim.Parse("(N + 15) / 16")
	if err != nil {
		t.Fatal(err)
	}
	w := &Writer{}
	w.U8(7)
	w.Bool(true)
	w.U16(0x1234)
	w.U32(0x89abcdef)
	w.I32(-2)
	w.I64(math.MinInt64)
	w.F64(math.Inf(-1))
	w.Str("name")
	w.Bytes([]byte{1, 2})
	w.Dims([]dim.Dim{dim.Const(-5), n, n})
	if w.Err != nil {
		t.Fatal(w.Err)
	}
	if got := w.B[2:4]; got[0] != 0x34 || got[1] != 0x12 {
		t.Errorf("u16 is %x, want little-endian", got)
	}
	r := NewReader(w.B)
	if r.U8() != 7 || !r.Bool() || r.U16() != 0x1234 || r.U32() != 0x89abcdef || r.I32() != -2 || r.I64() != math.MinInt64 || r.F64() != math.Inf(-1) || r.Str() != "name" || string(r.Bytes()) != "\x01\x02" {
		t.Error("a field differs")
	}
	ds := r.Dims()
	if len(ds) != 3 || !ds[0].Equal(dim.Const(-5)) || !ds[1].Equal(n) || !ds[2].Equal(n) {
		t.Errorf("dims %v", ds)
	}
	if err := r.End(); err != nil {
		t.Error(err)
	}
	bad := &Writer{}
	bad.Dim(dim.Const(1 << 62).Mul(dim.Const(4)))
	if !errors.Is(bad.Err, dim.ErrOverflow) {
		t.Errorf("a dim with an error was written: %v", bad.Err)
	}
}

// TestRefusals: bytes that no Writer writes are an error, and so is a length that
// exceeds the remaining bytes.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		bytes string
		read  func(r *Reader)
	}{
		"truth value 2":       {"\x02", func(r *Reader) { r.Bool() }},
		"cut integer":         {"\x01\x02\x03", func(r *Reader) { r.U32() }},
		"cut string":          {"\x05\x00\x00\x00abcd", func(r *Reader) { _ = r.Str() }},
		"huge list":           {"\xff\xff\xff\xff" + "abcdefgh", func(r *Reader) { List(r, 8, r.I64) }},
		"list a byte short":   {"\x02\x00\x00\x00" + "abcdefghabcdefg", func(r *Reader) { List(r, 8, r.I64) }},
		"dim tag":             {"\x02", func(r *Reader) { r.Dim() }},
		"dim not normal":      {"\x01\x04\x001+N1", func(r *Reader) { r.Dim() }},
		"dim with spaces":     {"\x01\x03\x00 N ", func(r *Reader) { r.Dim() }},
		"constant as text":    {"\x01\x01\x007", func(r *Reader) { r.Dim() }},
		"dim that is no dim":  {"\x01\x02\x00N+", func(r *Reader) { r.Dim() }},
		"dim longer than all": {"\x01\xff\xffN", func(r *Reader) { r.Dim() }},
		"bytes after the end": {"\x01\x02", func(r *Reader) { r.U8() }},
	} {
		r := NewReader([]byte(c.bytes))
		c.read(r)
		if r.End() == nil {
			t.Errorf("%s: no error", name)
		}
		if r.U8() != 0 || r.Str() != "" || r.Dims() != nil {
			t.Errorf("%s: values after an error", name)
		}
	}
}
