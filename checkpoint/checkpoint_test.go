package checkpoint

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

func source(t *testing.T, tensors ...safetensors.Tensor) safetensors.Source {
	t.Helper()
	dir := t.TempDir()
	if err := safetensors.Write(dir+"/model.safetensors", tensors, nil); err != nil {
		t.Fatal(err)
	}
	set, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	return set
}

func bytesOf(name string, shape []int64, data ...byte) safetensors.Tensor {
	return safetensors.Tensor{Name: name, DType: dtype.U8, Shape: shape, Data: data}
}

func TestCheck(t *testing.T) {
	two := []int64{2}
	table := bytesOf("table", two, 1, 2)
	const weights = `weight @table : u8[2] = "table" weight @both : u8[4] = concat("a", slice("b", axis=0, start=0, end=2)) weight @own : u8[2] state @count : u8[2] = "steps" `
	for _, c := range []struct {
		name, facts string
		tensors     []safetensors.Tensor
		want        *Error
	}{
		{"nothing is said", "", []safetensors.Tensor{table, bytesOf("x", two, 1, 2)}, nil},
		{"all are read", "weights strict", []safetensors.Tensor{table, bytesOf("a", two, 0, 0), bytesOf("b", two, 0, 0), bytesOf("own", two, 0, 0), bytesOf("steps", two, 0, 0)}, nil},
		{"some are not", "weights strict", []safetensors.Tensor{table, bytesOf("x", two, 1, 2), bytesOf("c", two, 1, 2)}, &Error{Unread: []string{"c", "x"}}},
		{"declared", `weights strict unread "l.*.mask"`, []safetensors.Tensor{bytesOf("l.0.mask", two, 1, 2), bytesOf("l.0.masks", two, 1, 2)}, &Error{Unread: []string{"l.0.masks"}}},
		{"equal", `weights strict unread "head" = "table"`, []safetensors.Tensor{table, bytesOf("head", two, 1, 2)}, nil},
		{"one of two", `unread "head" = "table"`, []safetensors.Tensor{bytesOf("head", two, 1, 2)}, nil},
		{"other values", `unread "head" = "table"`, []safetensors.Tensor{table, bytesOf("head", two, 1, 3)}, &Error{Differs: []Different{{"head", "table", "other values"}}}},
		{"other shape", `unread "head" = "table"`, []safetensors.Tensor{table, bytesOf("head", []int64{1, 2}, 1, 2)}, &Error{Differs: []Different{{"head", "table", "u8[1 2], not u8[2]"}}}},
		{"other dtype", `unread "head" = "table"`, []safetensors.Tensor{table, {Name: "head", DType: dtype.I8, Shape: two, Data: []byte{1, 2}}}, &Error{Differs: []Different{{"head", "table", "i8[2], not u8[2]"}}}},
	} {
		m, err := ir.Parse(c.name, []byte(`pwc 1 module "m" { `+weights+c.facts+` }`))
		if err != nil {
			t.Fatal(err)
		}
		var got *Error
		if err := Check(m, source(t, c.tensors...)); err != nil && !errors.As(err, &got) {
			t.Fatalf("%s: %v", c.name, err)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestErrorText(t *testing.T) {
	e := &Error{Differs: []Different{{"head", "table\x1b", "other values"}}, Unread: []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"}}
	const want = `the checkpoint has tensors whose values the module would ignore; "head" differs from "table\x1b", to which the module declares it equal: other values; ` +
		`no weight reads "a", "b", "c", "d", "e", "f", "g", "h" and 1 more. Import the checkpoint anew from its directory, with the tensors there, ` +
		`or declare tensors that have no effect on the module as unread in it`
	if got := e.Error(); got != want {
		t.Error(got)
	}
}
