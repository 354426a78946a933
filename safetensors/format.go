package safetensors

import "pwc/ir/dtype"

// MaxHeader is the largest header, in bytes, that is read or written: the limit of the reference implementation.
const MaxHeader = 100_000_000

// maxRank bounds a tensor's rank. Tensors of models stay under ten.
const maxRank = 64

// metadataKey is the header key of the file's string pairs. It is not a tensor.
const metadataKey = "__metadata__"

// format is one dtype of the file format. A dtype that the IR lacks is Invalid: a file with such
// a tensor opens and its bounds are checked, but Info and Tensor refuse it.
type format struct {
	name  string
	bits  int64
	dtype dtype.DType
}

// formats returns the dtypes of the format in the order of the reference implementation (its `Dtype` enum), from the
// smallest alignment to the largest. [Encode] sorts tensors in the reverse of this order, so that every tensor is
// aligned to its element size.
func formats() [20]format {
	return [...]format{
		{"BOOL", 8, dtype.Bool},
		{"F4", 4, dtype.F4E2M1},
		{"F6_E2M3", 6, dtype.Invalid},
		{"F6_E3M2", 6, dtype.Invalid},
		{"U8", 8, dtype.U8},
		{"I8", 8, dtype.I8},
		{"F8_E5M2", 8, dtype.F8E5M2},
		{"F8_E4M3", 8, dtype.F8E4M3},
		{"F8_E8M0", 8, dtype.E8M0},
		{"I16", 16, dtype.I16},
		{"U16", 16, dtype.Invalid},
		{"F16", 16, dtype.F16},
		{"BF16", 16, dtype.BF16},
		{"I32", 32, dtype.I32},
		{"U32", 32, dtype.Invalid},
		{"F32", 32, dtype.F32},
		{"C64", 64, dtype.Invalid},
		{"F64", 64, dtype.Invalid},
		{"I64", 64, dtype.I64},
		{"U64", 64, dtype.Invalid},
	}
}

// formatNamed returns the dtype with a name of the format.
func formatNamed(name string) (format, bool) {
	for _, f := range formats() {
		if f.name == name {
			return f, true
		}
	}
	return format{}, false
}

// formatOf returns the format's dtype for one of the IR, and its rank in the order of formats.
func formatOf(d dtype.DType) (f format, rank int, ok bool) {
	for i, f := range formats() {
		if f.dtype == d && d != dtype.Invalid {
			return f, i, true
		}
	}
	return format{}, 0, false
}

// bytes returns the storage of n elements. ok is false if the bits do not fill whole bytes or
// overflow.
func (f format) bytes(n int64) (size int64, ok bool) {
	const maxInt64 = 1<<63 - 1
	if n > maxInt64/f.bits || n*f.bits%8 != 0 {
		return 0, false
	}
	return n * f.bits / 8, true
}
