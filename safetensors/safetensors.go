// Package safetensors reads and writes checkpoints in the safetensors format: an 8-byte little-endian header length, a
// JSON header that gives every tensor's dtype, shape and byte range, and the tensors' bytes without gaps.
//
// On Unix a file is mapped, not read: a [Tensor]'s bytes are in the page cache, so a model of any size
// opens in the time that its header takes. Checkpoints are untrusted, so the package checks every
// claim of the header against the file before it returns a tensor. Errors name the file and the
// tensor.
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

// Info describes a tensor without its bytes.
type Info struct {
	Name  string
	DType dtype.DType
	Shape []int64 // outermost size first; empty for a scalar; sizes may be 0
}

// Tensor is one tensor of a checkpoint: contiguous, row-major, little-endian.
type Tensor struct {
	Name  string
	DType dtype.DType
	Shape []int64 // outermost size first; empty for a scalar; sizes may be 0
	// Data has the tensor's bytes. If they are part of a mapped file, they are read-only, have
	// the alignment of the file (often 8 bytes, possibly 1), and are valid until the file is
	// closed and every Retain is released (see [Mapped]).
	Data []byte
}

// Info returns the tensor without its bytes.
func (t Tensor) Info() Info { return Info{Name: t.Name, DType: t.DType, Shape: t.Shape} }

// Source has the tensors of a checkpoint by name. [File] and [Set] are Sources; others may
// compute tensors on demand. Implementations are safe for concurrent use.
type Source interface {
	// Names returns the names of all tensors, in the same order at every call.
	Names() []string
	// Info describes a tensor and does not read its bytes. The error wraps [ErrNotFound] for an
	// unknown name.
	Info(name string) (Info, error)
	// Tensor returns a tensor with its bytes. The error wraps [ErrNotFound] for an unknown name.
	Tensor(name string) (Tensor, error)
}

// Mapped is a Source with tensors in mapped files, for users that keep bytes longer than the
// Source is open. [File] and [Set] implement it.
type Mapped interface {
	Source
	// Retain keeps the files mapped until release is called, even after Close. After Close, the
	// error wraps [os.ErrClosed]. A second call of release does nothing.
	Retain() (release func() error, err error)
	// Contiguous returns parts, the Data of tensors or slices of it, as one slice, and the path
	// of their file. ok is false unless they are adjacent parts of one open, mapped file, in
	// order, and none is empty.
	Contiguous(parts ...[]byte) (all []byte, path string, ok bool)
}

// ErrNotFound is wrapped by errors of [Source] methods for an unknown name.
var ErrNotFound = errors.New("no such tensor")

// FormatError: a file or index violates the format, or either the format or the IR lacks a tensor's dtype.
type FormatError struct {
	File   string // path of the file; empty for bytes in memory
	Tensor string // name of the tensor; empty if the fault is not in a tensor
	DType  string // of the tensor, if the format has it and the IR does not: "U32"; otherwise empty
	Reason string
}

// Error returns "safetensors: FILE: tensor NAME: REASON", without empty parts.
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

// numel returns the number of elements of a shape. ok is false if a size is negative, or if the
// product of the sizes, with zeros counted as ones, exceeds 63 bits. So strides of a checked
// shape never overflow.
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
