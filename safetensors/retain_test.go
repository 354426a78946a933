package safetensors

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pwc/ir/dtype"
)

// Bytes stay mapped after Close while one Retain is not released; a second call of the same release does
// not count. Contiguous returns adjacent tensors of a file as one slice.
func TestRetain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, SingleFile)
	tensors := []Tensor{
		{Name: "a", DType: dtype.U8, Shape: []int64{3}, Data: []byte{1, 2, 3}},
		{Name: "b", DType: dtype.U8, Shape: []int64{2}, Data: []byte{4, 5}},
		{Name: "c", DType: dtype.U8, Shape: []int64{1}, Data: []byte{6}},
	}
	if err := Write(path, tensors, nil); err != nil {
		t.Fatal(err)
	}
	set, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	data := func(name string) []byte {
		x, err := set.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		return x.Data
	}
	a, b, c := data("a"), data("b"), data("c")
	all, from, ok := set.Contiguous(a, b, c)
	if !ok || from != path || !bytes.Equal(all, []byte{1, 2, 3, 4, 5, 6}) || cap(all) != len(all) {
		t.Errorf("all three: %v of capacity %d in %s, %t", all, cap(all), from, ok)
	}
	if all, _, ok := set.Contiguous(a[1:], b[:1]); !ok || !bytes.Equal(all, []byte{2, 3, 4}) {
		t.Errorf("the end of one and the start of the next: %v, %t", all, ok)
	}
	for name, parts := range map[string][][]byte{
		"nothing": nil, "an empty part": {a[:0]}, "a gap": {a, c}, "backwards": {b, a}, "twice": {a, a}, "others' bytes": {{1}}, "a gap within": {a[:2], b},
	} {
		if all, _, ok := set.Contiguous(parts...); ok {
			t.Errorf("%s: %v", name, all)
		}
	}

	first, err := set.Retain()
	if err != nil {
		t.Fatal(err)
	}
	second, err := set.Retain()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(set.Close(), first(), first()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(all, []byte{1, 2, 3, 4, 5, 6}) { // a fault ends the test if it is not mapped
		t.Errorf("after Close: %v", all)
	}
	if _, err := set.Retain(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Retain after Close: %v", err)
	}
	if err := second(); err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	x, err := f.Tensor("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, ok := f.Contiguous(x.Data); ok {
		t.Error("bytes given to Parse count as mapped")
	}
	release, err := f.Retain()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(release(), f.Close()); err != nil {
		t.Fatal(err)
	}
	_, closed := f.Retain()
	if _, err := f.Tensor("a"); !errors.Is(err, os.ErrClosed) || !errors.Is(closed, os.ErrClosed) || strings.Contains(err.Error()+closed.Error(), ": :") {
		t.Errorf("after Close: %v, %v", err, closed)
	}
}
