package pt2

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"pwc/internal/exactjson"
	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// payload is a tensor of the archive: a strided view of the bytes of an entry.
type payload struct {
	entry   string
	dtype   dtype.DType // Invalid: the IR does not have it
	scalar  int64       // schema.ScalarType
	shape   []int64
	strides []int64 // in elements
	offset  int64   // in elements
	bytes   int64   // size of the entry
}

var _ safetensors.Source = (*Archive)(nil)

// readPayloads reads the JSON files of weights and constants, and checks every tensor against the size of its entry,
// unless the IR does not have its dtype: such a tensor is refused when it is read.
func (a *Archive) readPayloads() error {
	a.tensors = map[string]*payload{}
	for _, folder := range []struct{ dir, config string }{
		{"data/weights/", a.model + "_weights_config.json"}, {"data/constants/", a.model + "_constants_config.json"},
	} {
		if a.entries[folder.dir+folder.config] == nil {
			for name := range a.entries {
				if base, ok := strings.CutPrefix(name, folder.dir); ok && strings.HasSuffix(base, ".pt") {
					return a.errorf(termsafe.Clip(name, 100), "its tensors are pickled, as torch 2.8 did: %s", resave)
				}
			}
			continue
		}
		text, err := a.bytes(folder.dir+folder.config, maxConfig)
		if err != nil {
			return err
		}
		var config payloadConfig
		if err := exactjson.Unmarshal(text, &config); err != nil {
			return a.errorf(termsafe.Clip(folder.dir+folder.config, 100), "%v", err)
		}
		for _, name := range slices.Sorted(maps.Keys(config.Config)) {
			if a.tensors[name] != nil {
				return a.errorf(folder.dir, "tensor %s is both a weight and a constant", termsafe.Quote(name))
			}
			meta := config.Config[name]
			p, err := a.payload(folder.dir, name, &meta)
			if err != nil {
				return err
			}
			a.tensors[name] = p
		}
	}
	a.names = slices.Sorted(maps.Keys(a.tensors))
	return nil
}

func (a *Archive) payload(dir, name string, m *payloadMeta) (*payload, error) {
	fail := func(format string, args ...any) (*payload, error) {
		return nil, a.errorf(dir+termsafe.Clip(m.PathName, 80), "tensor %s: "+format, append([]any{termsafe.Quote(name)}, args...)...)
	}
	entry := a.entries[dir+m.PathName]
	switch {
	case m.UsePickle:
		return fail("it is pickled, as PyTorch does for tensor subclasses and objects that are not tensors; make plain tensors of them, or %s", resave)
	case m.Meta == nil:
		return fail("it has no tensor_meta")
	case entry == nil:
		return fail("the archive has no such entry")
	case m.Meta.Layout != strided:
		return fail("its layout is sparse; only dense tensors are supported")
	case len(m.Meta.Sizes) > ir.MaxRank || len(m.Meta.Sizes) != len(m.Meta.Strides):
		return fail("it has %d sizes and %d strides; both numbers must be equal and at most %d", len(m.Meta.Sizes), len(m.Meta.Strides), ir.MaxRank)
	}
	p := &payload{entry: dir + m.PathName, dtype: scalarTypes[m.Meta.DType], scalar: m.Meta.DType, bytes: int64(entry.UncompressedSize64)}
	for i := range m.Meta.Sizes {
		size, stride := m.Meta.Sizes[i].Int, m.Meta.Strides[i].Int
		if size == nil || stride == nil || *size < 0 || *stride < 0 {
			return fail("size or stride %d is not a number of at least 0", i)
		}
		p.shape, p.strides = append(p.shape, *size), append(p.strides, *stride)
	}
	if m.Meta.Offset.Int == nil || *m.Meta.Offset.Int < 0 {
		return fail("its offset is not a number of at least 0")
	}
	p.offset = *m.Meta.Offset.Int
	if p.dtype == dtype.Invalid {
		return p, nil // refused when it is read
	}
	if reason := p.check(); reason != "" {
		return fail("%s", reason)
	}
	return p, nil
}

// maxRepeated limits the bytes of a tensor whose strides repeat elements of its entry.
const maxRepeated int64 = 1 << 31

// check returns why the view is not within its entry or repeats too many elements; empty if it is valid.
func (p *payload) check() (reason string) {
	elements, last := int64(1), p.offset
	for i, n := range p.shape {
		if n == 0 {
			return ""
		}
		if elements > math.MaxInt64/n || p.strides[i] > 0 && n-1 > (math.MaxInt64-last)/p.strides[i] {
			return fmt.Sprintf("shape %v with strides %v and offset %d overflows int64", p.shape, p.strides, p.offset)
		}
		elements, last = elements*n, last+(n-1)*p.strides[i]
	}
	need, ok := p.dtype.CheckedBytes(last)
	item := p.dtype.Bytes(1)
	if !ok || need > p.bytes-item {
		return fmt.Sprintf("%s%v with strides %v and offset %d ends beyond the %d bytes of the entry", p.dtype, p.shape, p.strides, p.offset, p.bytes)
	}
	if size, ok := p.dtype.CheckedBytes(elements); !ok || size > max(p.bytes, maxRepeated) {
		return fmt.Sprintf("%s%v repeats elements of an entry of %d bytes; the limit is %d bytes", p.dtype, p.shape, p.bytes, maxRepeated)
	}
	return ""
}

// overlaps reports whether two tensors are in one entry and their ranges of bytes, from the first element to the last,
// overlap. Tensors with gaps may have no element in common then.
func (p *payload) overlaps(q *payload) bool {
	if p.entry != q.entry || slices.Contains(p.shape, 0) || slices.Contains(q.shape, 0) {
		return false
	}
	end := func(p *payload) int64 {
		last := p.offset
		for i, n := range p.shape {
			last += (n - 1) * p.strides[i]
		}
		return p.dtype.Bytes(last + 1)
	}
	return p.dtype.Bytes(p.offset) < end(q) && q.dtype.Bytes(q.offset) < end(p)
}

// dense reports whether the elements are in row-major order without gaps.
func (p *payload) dense() bool {
	want := int64(1)
	for i := len(p.shape) - 1; i >= 0; i-- {
		if p.shape[i] != 1 && p.strides[i] != want {
			return false
		}
		want *= p.shape[i]
	}
	return true
}

// Names returns the names of the tensors, sorted.
func (a *Archive) Names() []string { return slices.Clone(a.names) }

// Info returns the dtype and the shape of a tensor. The error wraps [safetensors.ErrNotFound] if the archive has no
// tensor of that name, and is a [*FormatError] if the IR does not have its dtype.
func (a *Archive) Info(name string) (safetensors.Info, error) {
	p, err := a.tensor(name)
	if err != nil {
		return safetensors.Info{}, err
	}
	return safetensors.Info{Name: name, DType: p.dtype, Shape: slices.Clone(p.shape)}, nil
}

// Tensor reads a tensor. The data is contiguous, whatever the strides in the archive are. Errors are those of Info
// and of reading the entry.
func (a *Archive) Tensor(name string) (safetensors.Tensor, error) {
	p, err := a.tensor(name)
	if err != nil {
		return safetensors.Tensor{}, err
	}
	t := safetensors.Tensor{Name: name, DType: p.dtype, Shape: slices.Clone(p.shape)}
	if slices.Contains(p.shape, 0) {
		t.Data = []byte{}
		return t, nil
	}
	storage, err := a.bytes(p.entry, p.bytes)
	if err != nil {
		return safetensors.Tensor{}, err
	}
	item := p.dtype.Bytes(1)
	elements := int64(1)
	for _, n := range p.shape {
		elements *= n
	}
	if p.dense() {
		t.Data = storage[p.offset*item : (p.offset+elements)*item]
		return t, nil
	}
	t.Data = make([]byte, 0, elements*item)
	index := make([]int64, len(p.shape))
	for range elements {
		at := p.offset
		for i, n := range index {
			at += n * p.strides[i]
		}
		t.Data = append(t.Data, storage[at*item:(at+1)*item]...)
		for i := len(index) - 1; i >= 0; i-- {
			if index[i]++; index[i] < p.shape[i] {
				break
			}
			index[i] = 0
		}
	}
	return t, nil
}

func (a *Archive) tensor(name string) (*payload, error) {
	p := a.tensors[name]
	if p == nil {
		return nil, fmt.Errorf("%stensor %s: %w", prefix(a.path), termsafe.Quote(name), safetensors.ErrNotFound)
	}
	if p.dtype == dtype.Invalid {
		return nil, a.errorf(p.entry, "tensor %s is %s, which the IR does not have", termsafe.Quote(name), scalarTypeName(p.scalar))
	}
	return p, nil
}
