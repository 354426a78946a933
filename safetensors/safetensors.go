// Package safetensors reads and writes checkpoints in the safetensors format: an 8-byte little-endian header length, a
// JSON header that gives every tensor's dtype, shape and byte range, and the tensors' bytes without gaps.
//
// A file is mapped, not read: a [Tensor]'s bytes are the page cache's, so a model of any size opens in the time its
// header takes. Checkpoints come from strangers, so everything the header claims is checked against the file before any
// tensor is handed out, and what is wrong is an error that names the file and the tensor.
//
// The format: https://github.com/huggingface/safetensors (README, "Format").
package safetensors

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"pwc/internal/termsafe"
	"pwc/ir/dtype"
)

// Info is what a checkpoint says about a tensor without its bytes.
type Info struct {
	Name  string
	DType dtype.DType
	Shape []int64 // outermost extent first; empty for a scalar; extents may be 0
}

// Tensor is one tensor of a checkpoint: contiguous, row-major, little-endian.
type Tensor struct {
	Name  string
	DType dtype.DType
	Shape []int64 // outermost extent first; empty for a scalar; extents may be 0
	// Data is the tensor's bytes. Where it comes from a mapped file it aliases the mapping: it is read-only, has the
	// alignment the file gives it (often 8 bytes, possibly 1), and is valid until the file is closed.
	Data []byte
}

// Info returns the tensor without its bytes.
func (t Tensor) Info() Info { return Info{Name: t.Name, DType: t.DType, Shape: t.Shape} }

// Source answers for the tensors of a checkpoint by name. [File] and [Set] are Sources; others may compute tensors when
// they are asked for. Implementations are safe for concurrent use.
type Source interface {
	// Names returns the names of all tensors. The order is the same at every call.
	Names() []string
	// Info describes a tensor without touching its bytes. The error wraps [ErrNotFound] if there is no such tensor.
	Info(name string) (Info, error)
	// Tensor returns a tensor with its bytes. The error wraps [ErrNotFound] if there is no such tensor.
	Tensor(name string) (Tensor, error)
}

// Mapped is a Source whose tensors lie in files that are mapped, for users who keep their bytes longer than the Source is
// open. [File] and [Set] are, where they come from files.
type Mapped interface {
	Source
	// Retain keeps the files mapped until release is called, whatever Close does in the meantime. The error wraps
	// [os.ErrClosed] after Close. A second call of release does nothing.
	Retain() (release func() error, err error)
	// Contiguous returns parts, the Data of tensors or slices of it, as one slice and the path of their file. ok is false
	// unless they lie in one file, each where the one before it ends.
	Contiguous(parts ...[]byte) (all []byte, path string, ok bool)
}

// ErrNotFound is wrapped by the errors of [Source] methods that are asked for a tensor that is not there.
var ErrNotFound = errors.New("no such tensor")

// FormatError reports a file that breaks the rules of the format.
type FormatError struct {
	File   string // path of the file; empty for a checkpoint parsed from memory
	Tensor string // name of the tensor at fault; empty if the fault is not in one
	DType  string // of the tensor, if it is of the format and not of the IR: "U32"; else empty
	Reason string
}

// Error prints "safetensors: FILE: tensor NAME: REASON", without the parts that are empty.
func (e *FormatError) Error() string {
	var b strings.Builder
	b.WriteString("safetensors: ")
	if e.File != "" {
		fmt.Fprintf(&b, "%s: ", e.File)
	}
	if e.Tensor != "" {
		fmt.Fprintf(&b, "tensor %s: ", termsafe.Quote(e.Tensor))
	}
	b.WriteString(e.Reason)
	return b.String()
}

// numel returns the number of elements of a shape. ok is false where an extent is negative or where the product of the
// extents, with zeros counted as ones, does not fit in 63 bits, so that strides of a checked shape never overflow.
func numel(shape []int64) (n int64, ok bool) {
	const maxInt64 = 1<<63 - 1
	n = 1
	for _, d := range shape {
		switch {
		case d < 0:
			return 0, false
		case d > 0 && n > maxInt64/d:
			return 0, false
		case d > 0:
			n *= d
		}
	}
	if slices.Contains(shape, 0) {
		return 0, true
	}
	return n, true
}
