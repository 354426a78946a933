package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir/dtype"
)

// image puts a header's text and data together into a file.
func image(header string, data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func TestParse(t *testing.T) {
	f, err := Parse(image(`{
		"b": {"shape": [2], "data_offsets": [4, 8], "dtype": "BF16"},
		"__metadata__": {"format": "pt", "k": "é"},
		"a": {"dtype": "I32", "shape": [], "data_offsets": [0, 4]},
		"none": {"dtype": "F32", "shape": [3, 0], "data_offsets": [8, 8]},
		"odd": {"dtype": "F64", "shape": [1], "data_offsets": [8, 16]}
	}  `, []byte("0123456789abcdef")))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := f.Names(), []string{"b", "a", "none", "odd"}; !slices.Equal(got, want) {
		t.Errorf("Names() = %q, want %q", got, want)
	}
	if diff := cmp.Diff(map[string]string{"format": "pt", "k": "é"}, f.Metadata()); diff != "" {
		t.Errorf("Metadata() (-want +got):\n%s", diff)
	}
	for _, want := range []Tensor{
		{Name: "a", DType: dtype.I32, Shape: []int64{}, Data: []byte("0123")},
		{Name: "b", DType: dtype.BF16, Shape: []int64{2}, Data: []byte("4567")},
		{Name: "none", DType: dtype.F32, Shape: []int64{3, 0}, Data: []byte{}},
	} {
		got, err := f.Tensor(want.Name)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Tensor(%q) (-want +got):\n%s", want.Name, diff)
		}
		info, err := f.Info(want.Name)
		if diff := cmp.Diff(want.Info(), info); err != nil || diff != "" {
			t.Errorf("Info(%q): %v (-want +got):\n%s", want.Name, err, diff)
		}
		if cap(got.Data) != len(got.Data) {
			t.Errorf("Tensor(%q).Data can be appended into its neighbour", want.Name)
		}
	}
	if _, err := f.Tensor("c"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a tensor that is not there: %v", err)
	}
	var fe *FormatError
	if _, err := f.Tensor("odd"); !errors.As(err, &fe) || fe.Tensor != "odd" || !strings.Contains(fe.Reason, "F64") {
		t.Errorf("a tensor without a dtype of the IR: %v", err)
	}
}

// TestParseEveryDType checks the widths of the format's dtypes against the format's own table, written out by hand.
func TestParseEveryDType(t *testing.T) {
	bits := map[string]int{"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
		"F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64,
		"I64": 64, "U64": 64}
	for name, b := range bits {
		size := 4 * b / 8
		h := fmt.Sprintf(`{"t":{"dtype":%q,"shape":[4],"data_offsets":[0,%d]}}`, name, size)
		if _, err := Parse(image(h, make([]byte, size))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Parse(image(h, make([]byte, size+1))); err == nil {
			t.Errorf("%s: a file with a byte too many parses", name)
		}
	}
	for _, f := range formats() {
		if bits[f.name] == 0 {
			t.Errorf("%s is no dtype of the format", f.name)
		}
		if f.dtype != dtype.Invalid && int64(f.dtype.Bits()) != f.bits {
			t.Errorf("%s has %d bits, its dtype %v %d", f.name, f.bits, f.dtype, f.dtype.Bits())
		}
	}
}

func TestParseRefuses(t *testing.T) {
	one := func(entry string) []byte { return image(`{"w":`+entry+`}`, make([]byte, 8)) }
	for _, c := range []struct {
		name   string
		file   []byte
		tensor string // named by the error
		want   string // part of the reason
	}{
		{"empty", nil, "", "too few for a header length"},
		{"seven bytes", make([]byte, 7), "", "too few for a header length"},
		{"length beyond the file", binary.LittleEndian.AppendUint64(nil, 1), "", "reaches beyond the file"},
		{"length above the limit", binary.LittleEndian.AppendUint64(nil, MaxHeader+1), "", "above the limit"},
		{"length of all ones", []byte("\xff\xff\xff\xff\xff\xff\xff\xff{}"), "", "above the limit"},
		{"no header", image("", nil), "", "begin with '{'"},
		{"space first", image(" {}", nil), "", "begin with '{'"},
		{"array", image("[]", nil), "", "begin with '{'"},
		{"cut", image(`{"w":`, nil), "w", "unexpected end"},
		{"not JSON", image(`{w}`, nil), "", "not JSON"},
		{"not UTF-8", image("{\"\xff\":{}}", nil), "", "not UTF-8"},
		{"text after", image(`{} {}`, nil), "", "follows the header"},
		{"NUL after", image("{}\x00", nil), "", "follows the header"},
		{"data without tensors", image(`{}`, []byte{1}), "", "1 bytes of data follow"},
		{"metadata list", image(`{"__metadata__":[]}`, nil), "", "want"},
		{"metadata number", image(`{"__metadata__":{"n":1}}`, nil), "", "not a string"},
		{"metadata twice", image(`{"__metadata__":{},"__metadata__":{}}`, nil), "__metadata__", "twice"},
		{"metadata key twice", image(`{"__metadata__":{"a":"","a":""}}`, nil), "", `"a" appears twice`},
		{"entry null", one(`null`), "w", "found null, want"},
		{"entry empty", one(`{}`), "w", "no dtype"},
		{"no shape", one(`{"dtype":"I64","data_offsets":[0,8]}`), "w", "no shape"},
		{"no offsets", one(`{"dtype":"I64","shape":[1]}`), "w", "no data_offsets"},
		{"unknown key", one(`{"dtype":"I64","shape":[1],"data_offsets":[0,8],"strides":[1]}`), "w", `unknown key "strides"`},
		{"key case", one(`{"DType":"I64"}`), "w", `unknown key "DType"`},
		{"dtype twice", one(`{"dtype":"I64","dtype":"F32","shape":[1],"data_offsets":[0,8]}`), "w", "twice"},
		{"shape twice", one(`{"shape":[1],"shape":[1]}`), "w", "twice"},
		{"offsets twice", one(`{"data_offsets":[0,8],"data_offsets":[0,8]}`), "w", "twice"},
		{"unknown dtype", one(`{"dtype":"INT4","shape":[1],"data_offsets":[0,8]}`), "w", `unknown dtype "INT4"`},
		{"dtype of the IR's spelling", one(`{"dtype":"i64","shape":[1],"data_offsets":[0,8]}`), "w", "unknown dtype"},
		{"dtype number", one(`{"dtype":7,"shape":[1],"data_offsets":[0,8]}`), "w", "dtype is number"},
		{"shape string", one(`{"dtype":"I64","shape":"1","data_offsets":[0,8]}`), "w", "want"},
		{"shape of strings", one(`{"dtype":"I64","shape":["1"],"data_offsets":[0,8]}`), "w", "not a number"},
		{"shape nested", one(`{"dtype":"I64","shape":[[1]],"data_offsets":[0,8]}`), "w", "not a number"},
		{"extent negative", one(`{"dtype":"I64","shape":[-1],"data_offsets":[0,8]}`), "w", "not an integer"},
		{"extent fraction", one(`{"dtype":"I64","shape":[1.0],"data_offsets":[0,8]}`), "w", "not an integer"},
		{"extent exponent", one(`{"dtype":"I64","shape":[1e0],"data_offsets":[0,8]}`), "w", "not an integer"},
		{"extent 2^63", one(`{"dtype":"I64","shape":[9223372036854775808],"data_offsets":[0,8]}`), "w", "not an integer"},
		{"rank", one(`{"dtype":"I64","shape":[` + strings.Repeat("1,", maxRank) + `1],"data_offsets":[0,8]}`), "w", "more than 64"},
		{"elements overflow", one(`{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,8]}`), "w", "overflows"},
		{"elements overflow to 8", one(`{"dtype":"U8","shape":[9223372036854775807,2,8],"data_offsets":[0,8]}`), "w", "overflows"},
		{"elements overflow but for a size of 0", one(`{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}`), "w", "overflows"},
		{"bytes overflow", one(`{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,8]}`), "w", "whole number of bytes"},
		{"half a byte", one(`{"dtype":"F4","shape":[15],"data_offsets":[0,8]}`), "w", "whole number of bytes"},
		{"too few bytes", one(`{"dtype":"I64","shape":[2],"data_offsets":[0,8]}`), "w", "takes 16 bytes"},
		{"one offset", one(`{"dtype":"I64","shape":[1],"data_offsets":[0]}`), "w", "1 numbers, not 2"},
		{"three offsets", one(`{"dtype":"I64","shape":[1],"data_offsets":[0,8,8]}`), "w", "more than 2"},
		{"offset negative", one(`{"dtype":"I64","shape":[1],"data_offsets":[-8,0]}`), "w", "not an integer"},
		{"offsets backwards", one(`{"dtype":"I64","shape":[1],"data_offsets":[8,0]}`), "w", "the end is before the begin"},
		{"offsets beyond", one(`{"dtype":"I64","shape":[2],"data_offsets":[0,16]}`), "w", "reach beyond"},
		{"offset near 2^63", one(`{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}`), "w", "reach beyond"},
		{"gap at the start", one(`{"dtype":"I32","shape":[1],"data_offsets":[4,8]}`), "w", "gap after byte 0"},
		{"bytes at the end", one(`{"dtype":"I32","shape":[1],"data_offsets":[0,4]}`), "", "4 bytes of data follow"},
		{"name twice", image(`{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, make([]byte, 2)), "w", "twice"},
		{"name twice by escape", image(`{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0077":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, make([]byte, 2)), "w", "twice"},
		{"overlap", image(`{"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, make([]byte, 3)), "w", `overlap those of tensor "v"`},
		{"same bytes", image(`{"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, make([]byte, 2)), "w", "overlap"},
		{"empty inside another", image(`{"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}`, make([]byte, 2)), "w", "overlap"},
		{"gap between", image(`{"v":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, make([]byte, 3)), "w", "gap after byte 1"},
		{"deep nesting", one(strings.Repeat(`{"dtype":`, 100_000)), "w", "not a string"},
		{"deep nesting of lists", one(strings.Repeat(`[`, 100_000)), "w", "want"},
	} {
		_, err := Parse(c.file)
		var fe *FormatError
		if !errors.As(err, &fe) {
			t.Errorf("%s: error %v", c.name, err)
			continue
		}
		if fe.Tensor != c.tensor || !strings.Contains(fe.Reason, c.want) {
			t.Errorf("%s: tensor %q: %s; want tensor %q: …%s…", c.name, fe.Tensor, fe.Reason, c.tensor, c.want)
		}
	}
}

func TestErrorsStayShort(t *testing.T) {
	name := strings.Repeat("x", 1<<20)
	_, err := Parse(image(`{"`+name+`":{"dtype":"`+name+`"}}`, nil))
	if err == nil || len(err.Error()) > 1000 {
		t.Errorf("error of %d bytes for a name of %d", len(fmt.Sprint(err)), len(name))
	}
}
