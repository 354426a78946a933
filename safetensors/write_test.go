package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"pwc/ir/dtype"
)

// TestEncodeMatchesReference re-encodes files that the reference implementation wrote and expects its bytes.
func TestEncodeMatchesReference(t *testing.T) {
	paths, err := filepath.Glob("../testdata/hf/*/*.safetensors")
	if err != nil || len(paths) < 6 {
		t.Fatalf("found %d files, %v", len(paths), err)
	}
	for _, path := range paths {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var tensors []Tensor
		for _, name := range f.Names() {
			tensor, err := f.Tensor(name)
			if err != nil {
				t.Fatal(err)
			}
			tensors = append([]Tensor{tensor}, tensors...) // the order of the arguments must not matter
		}
		var got bytes.Buffer
		if err := Encode(&got, tensors, f.Metadata()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s: other bytes than the reference wrote", path)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	for _, c := range []struct {
		name    string
		tensors []Tensor
		meta    map[string]string
		want    string
	}{
		{"name twice", []Tensor{u8("a"), u8("a")}, nil, `tensor "a": name is used twice`},
		{"reserved", []Tensor{u8("__metadata__")}, nil, "reserved"},
		{"not UTF-8", []Tensor{u8("\xff")}, nil, "not UTF-8"},
		{"metadata not UTF-8", nil, map[string]string{"k": "\xff"}, "not UTF-8"},
		{"short data", []Tensor{{Name: "a", DType: dtype.F32, Shape: []int64{2}, Data: make([]byte, 7)}}, nil, "takes 8 bytes, Data holds 7"},
		{"negative extent", []Tensor{{Name: "a", DType: dtype.F32, Shape: []int64{-1}}}, nil, "negative"},
		{"overflow", []Tensor{{Name: "a", DType: dtype.U8, Shape: []int64{1 << 32, 1 << 32}}}, nil, "overflows"},
		{"rank", []Tensor{{Name: "a", DType: dtype.U8, Shape: make([]int64, maxRank+1)}}, nil, "rank"},
		{"odd nibbles", []Tensor{{Name: "a", DType: dtype.F4E2M1, Shape: []int64{3}, Data: make([]byte, 2)}}, nil, "whole number of bytes"},
		{"dtype beyond the format", []Tensor{{Name: "a", DType: dtype.I4, Shape: []int64{2}, Data: make([]byte, 1)}}, nil, "i4 has no name in the format"},
		{"invalid dtype", []Tensor{{Name: "a"}}, nil, "no name in the format"},
	} {
		var b bytes.Buffer
		err := Encode(&b, c.tensors, c.meta)
		var fe *FormatError
		if !errors.As(err, &fe) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want …%s…", c.name, err, c.want)
		}
		if b.Len() != 0 {
			t.Errorf("%s: %d bytes were written", c.name, b.Len())
		}
	}
}

func TestEncodeAligns(t *testing.T) {
	var b bytes.Buffer
	err := Encode(&b, []Tensor{u8("x", 1, 2, 3), {Name: "y", DType: dtype.I64, Shape: []int64{1}, Data: make([]byte, 8)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(b.Bytes())
	f, err := Parse(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if n%8 != 0 || f.Names()[0] != "y" {
		t.Errorf("header of %d bytes, first tensor %s: the wide tensor is not aligned", n, f.Names()[0])
	}
}

func TestWriteReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.safetensors")
	write(t, path, u8("old", 1))
	old, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := Write(path, []Tensor{u8("a"), u8("a")}, nil); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
	if _, err := old.Tensor("old"); err != nil {
		t.Error(err)
	}
	write(t, path, u8("new", 2))
	if got, err := old.Tensor("old"); err != nil || got.Data[0] != 1 {
		t.Errorf("a file that is open changed under its reader: %v %v", got, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	now, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	if _, err := now.Tensor("new"); err != nil {
		t.Error(err)
	}
	if err := Write(filepath.Join(dir, "none", "m"), nil, nil); err == nil {
		t.Error("writing into a directory that is not there succeeds")
	}
}

func TestRoundTrip(t *testing.T) {
	writable := []dtype.DType{}
	for _, d := range dtype.All() {
		if _, _, ok := formatOf(d); ok && d.Bits() >= 8 {
			writable = append(writable, d)
		}
	}
	tensor := rapid.Custom(func(t *rapid.T) Tensor {
		d := rapid.SampledFrom(writable).Draw(t, "dtype")
		shape := rapid.SliceOfN(rapid.Int64Range(0, 4), 0, 3).Draw(t, "shape")
		n := int64(1)
		for _, e := range shape {
			n *= e
		}
		size := int(d.Bytes(n))
		return Tensor{Name: rapid.String().Draw(t, "name"), DType: d, Shape: shape,
			Data: rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "data")}
	})
	rapid.Check(t, func(t *rapid.T) {
		tensors := rapid.SliceOfNDistinct(tensor, 0, 6, func(x Tensor) string { return x.Name }).Draw(t, "tensors")
		meta := rapid.MapOfN(rapid.String(), rapid.String(), 0, 3).Draw(t, "metadata")
		var b bytes.Buffer
		if err := Encode(&b, tensors, meta); err != nil {
			t.Fatal(err)
		}
		f, err := Parse(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(meta, f.Metadata()); diff != "" {
			t.Fatalf("metadata (-want +got):\n%s", diff)
		}
		if len(f.Names()) != len(tensors) {
			t.Fatalf("%d tensors, want %d", len(f.Names()), len(tensors))
		}
		for _, want := range tensors {
			got, err := f.Tensor(want.Name)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("tensor (-want +got):\n%s", diff)
			}
		}
	})
}

// FuzzParse holds that no bytes crash the reader, that tensors of an accepted file lie in it without overlap, and that
// what was accepted can be written and read again.
func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(image(`{}`, nil))
	f.Add(image(`{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} `, make([]byte, 4)))
	f.Add(image(`{"a":{"dtype":"F4","shape":[2,0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, []byte{7}))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		if err != nil {
			return
		}
		var tensors []Tensor
		taken := make([]bool, len(data))
		for _, name := range file.Names() {
			tensor, err := file.Tensor(name)
			if err != nil {
				continue // a dtype that the IR lacks
			}
			at := file.offset(tensor.Data) // -1 without bytes
			for i := range tensor.Data {
				if at < 0 || taken[at+i] {
					t.Fatalf("byte %d of tensor %q, at offset %d of the file, is outside of it or of two tensors", i, name, at+i)
				}
				taken[at+i] = true
			}
			tensors = append(tensors, tensor)
		}
		var b bytes.Buffer
		if err := Encode(&b, tensors, file.Metadata()); err != nil {
			t.Fatal(err)
		}
		again, err := Parse(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range tensors {
			got, err := again.Tensor(want.Name)
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Fatalf("%v (-want +got):\n%s", err, diff)
			}
		}
	})
}

// FuzzParseIndex holds that no index crashes the reader or leads it out of its directory.
func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":4},"weight_map":{"a":"model-1.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		placed, err := parseIndex(text)
		if err != nil {
			return
		}
		for _, p := range placed {
			if filepath.Dir(filepath.Join("dir", p.shard)) != "dir" {
				t.Fatalf("shard %q leaves its directory", p.shard)
			}
		}
	})
}
