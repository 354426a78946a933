package safetensors

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"

	"pwc/internal/openfile"
	"pwc/internal/termsafe"
	"pwc/ir/dtype"
)

// File is one open safetensors file. It is safe for concurrent use, except for Close, after which
// tensors that alias the mapping must not be used unless it is retained ([File.Retain]).
type File struct {
	path    string // empty for Parse
	header  *header
	index   map[string]int // name → index in header.entries
	mapping *mapping       // nil for Parse
	bytes   []byte         // the whole file; nil after Close
}

// Open maps a file and checks its header. Bytes of tensors are read at their first use, on systems other than Unix
// by Open.
//
// The file must not shrink while it is open: a read of a lost page ends the process, except in
// [Guard]. Files that are replaced by rename, as [Write] does, are safe.
func Open(path string) (*File, error) {
	m, err := mapFile(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	f := &File{path: path, mapping: m, bytes: m.bytes}
	if err := Guard(f, f.parse); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Parse checks the bytes of a whole file. Its tensors alias data, which must not change while they are in use.
func Parse(data []byte) (*File, error) {
	f := &File{bytes: data}
	if err := f.parse(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) parse() error {
	h, err := parseHeader(f.bytes)
	if err != nil {
		if fe, ok := errors.AsType[*FormatError](err); ok {
			fe.File = f.path
		}
		return err
	}
	f.header, f.index = h, make(map[string]int, len(h.entries))
	for i, e := range h.entries {
		f.index[e.name] = i
	}
	return nil
}

// Path returns the path that the file was opened by, "" if it was parsed from memory.
func (f *File) Path() string { return f.path }

// Names returns the names of the tensors in the order of the header.
func (f *File) Names() []string {
	if f.header == nil {
		return nil
	}
	names := make([]string, len(f.header.entries))
	for i, e := range f.header.entries {
		names[i] = e.name
	}
	return names
}

// Metadata returns a copy of the string pairs of the header's __metadata__, empty if it has none.
func (f *File) Metadata() map[string]string {
	if f.header == nil || f.header.metadata == nil {
		return map[string]string{}
	}
	return maps.Clone(f.header.metadata)
}

// Info describes a tensor. The error wraps [ErrNotFound] for an unknown name, and is a
// [*FormatError] if the IR lacks the tensor's dtype (F64, unsigned above 8 bits, complex, 6-bit
// floats).
func (f *File) Info(name string) (Info, error) {
	e, err := f.entry(name)
	if err != nil {
		return Info{}, err
	}
	return Info{Name: e.name, DType: e.format.dtype, Shape: slices.Clone(e.shape)}, nil
}

// Tensor returns a tensor whose Data aliases the mapping, or the bytes given to Parse. Its errors are
// those of Info, and [os.ErrClosed], wrapped, if the file is closed.
func (f *File) Tensor(name string) (Tensor, error) {
	e, err := f.entry(name)
	if err != nil {
		return Tensor{}, err
	}
	if f.bytes == nil {
		return Tensor{}, tensorError(f.path, name, os.ErrClosed)
	}
	begin, end := f.header.data+int(e.begin), f.header.data+int(e.end)
	return Tensor{
		Name:  e.name,
		DType: e.format.dtype,
		Shape: slices.Clone(e.shape),
		Data:  f.bytes[begin:end:end],
	}, nil
}

func (f *File) entry(name string) (entry, error) {
	i, ok := f.index[name]
	if !ok {
		return entry{}, tensorError(f.path, name, ErrNotFound)
	}
	e := f.header.entries[i]
	if e.format.dtype == dtype.Invalid {
		return entry{}, &FormatError{File: f.path, Tensor: name, DType: e.format.name,
			Reason: fmt.Sprintf("dtype %s has no counterpart in the IR", e.format.name)}
	}
	return e, nil
}

// tensorError names a tensor and its file or directory. path is empty for the bytes of Parse.
func tensorError(path, name string, err error) error {
	if path == "" {
		return fmt.Errorf("safetensors: tensor %s: %w", termsafe.Quote(name), err)
	}
	return fmt.Errorf("safetensors: %s: tensor %s: %w", path, termsafe.Quote(name), err)
}

// Close unmaps the file, or leaves that to the last release of [File.Retain]. Without a Retain, its
// tensors' Data must not be used afterwards. A second Close is no error.
func (f *File) Close() error {
	f.bytes = nil
	if f.mapping == nil {
		return nil
	}
	if err := f.mapping.close(); err != nil {
		return fmt.Errorf("safetensors: %s: %w", f.path, err)
	}
	return nil
}

// openSized opens a regular file and returns its size. It refuses pipes and devices, which have
// no reliable size.
func openSized(path string) (*os.File, int, error) {
	f, st, err := openfile.Regular(path)
	if err != nil {
		return nil, 0, err
	}
	if st.Size() > math.MaxInt {
		f.Close()
		return nil, 0, fmt.Errorf("%s: %d bytes do not fit the address space", path, st.Size())
	}
	return f, int(st.Size()), nil
}
