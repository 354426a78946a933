package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"unicode/utf8"

	"pwc/internal/openfile"
	"pwc/internal/termsafe"
)

// entry is one checked tensor of a header.
type entry struct {
	name       string
	format     format
	shape      []int64
	begin, end int64 // byte range, relative to the end of the header
}

// header is the checked header of one file.
type header struct {
	entries  []entry // in the order of the header
	metadata map[string]string
	data     int // offset of the tensors' bytes in the file
}

// parseHeader checks the header of a whole file against the file. It allocates in proportion to
// the header's bytes in the file, not to the lengths that it claims.
func parseHeader(file []byte) (*header, error) {
	if len(file) < 8 {
		return nil, fault("", "%d bytes are too few for a header length", len(file))
	}
	if what := openfile.Placeholder(file); what != "" {
		return nil, fault("", "%s", what)
	}
	n := binary.LittleEndian.Uint64(file)
	if n > MaxHeader {
		return nil, fault("", "header length %d is above the limit of %d", n, MaxHeader)
	}
	if n > uint64(len(file)-8) {
		return nil, fault("", "header length %d reaches beyond the file of %d bytes", n, len(file))
	}
	text := file[8 : 8+n]
	if !utf8.Valid(text) {
		return nil, fault("", "header is not UTF-8")
	}
	if len(text) == 0 || text[0] != '{' {
		return nil, fault("", "header does not begin with '{'")
	}
	p := headerParser{dec: json.NewDecoder(bytes.NewReader(text)), what: "header", seen: map[string]bool{}}
	p.dec.UseNumber()
	h := &header{data: int(8 + n)}
	if err := p.header(h); err != nil {
		return nil, err
	}
	if err := checkLayout(h.entries, int64(len(file))-int64(h.data)); err != nil {
		return nil, err
	}
	return h, nil
}

// fault makes a FormatError. The caller that knows the path of the file adds it.
func fault(tensor, f string, args ...any) *FormatError {
	return &FormatError{Tensor: tensor, Reason: fmt.Sprintf(f, args...)}
}

// checkLayout checks that the tensors' byte ranges cover size bytes without a gap or an overlap.
func checkLayout(entries []entry, size int64) error {
	order := make([]int, len(entries))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool {
		a, b := entries[order[i]], entries[order[j]]
		return a.begin < b.begin || a.begin == b.begin && a.end < b.end
	})
	at, before := int64(0), ""
	for _, i := range order {
		e := entries[i]
		switch {
		case e.end > size:
			return fault(e.name, "data_offsets [%d, %d] reach beyond the %d bytes of data", e.begin, e.end, size)
		case e.begin < at:
			return fault(e.name, "data_offsets [%d, %d] overlap those of tensor %s", e.begin, e.end, termsafe.Quote(before))
		case e.begin > at:
			return fault(e.name, "data_offsets [%d, %d] leave a gap after byte %d", e.begin, e.end, at)
		}
		at, before = e.end, e.name
	}
	if at != size {
		return fault("", "%d bytes of data follow the last tensor", size-at)
	}
	return nil
}

// headerParser reads a header, or the weight_map of an index, token by token, without recursion, to find
// duplicate keys and values of another type than the format has.
type headerParser struct {
	dec    *json.Decoder
	what   string          // "header", or "index" (see parseIndex), for errors
	seen   map[string]bool // keys of the top level
	tensor string          // the tensor being read, for errors
}

func (p *headerParser) header(h *header) error {
	if err := p.delim('{', "header"); err != nil {
		return err
	}
	for p.dec.More() {
		key, err := p.key()
		if err != nil {
			return err
		}
		if p.seen[key] {
			return fault(key, "key appears twice in the header")
		}
		p.seen[key] = true
		if key == metadataKey {
			if h.metadata, err = p.metadata(); err != nil {
				return err
			}
			continue
		}
		p.tensor = key
		e, err := p.entry()
		if err != nil {
			return err
		}
		h.entries = append(h.entries, e)
		p.tensor = ""
	}
	if err := p.delim('}', "header"); err != nil {
		return err
	}
	if t, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return fault("", "%s follows the header's JSON object", describe(t, err))
	}
	return nil
}

func (p *headerParser) metadata() (map[string]string, error) {
	switch t, err := p.token(); {
	case err != nil:
		return nil, err
	case t == nil: // null, which some tools write for an empty map
		return nil, nil
	case t != json.Delim('{'):
		return nil, fault("", "%s: found %s, want \"{\"", metadataKey, describe(t, nil))
	}
	m := map[string]string{}
	for p.dec.More() {
		key, err := p.key()
		if err != nil {
			return nil, err
		}
		if _, dup := m[key]; dup {
			return nil, fault("", "key %s appears twice in %s", termsafe.Quote(key), metadataKey)
		}
		t, err := p.token()
		if err != nil {
			return nil, err
		}
		value, ok := t.(string)
		if !ok {
			return nil, fault("", "%s in %s is %s, not a string", termsafe.Quote(key), metadataKey, describe(t, nil))
		}
		m[key] = value
	}
	return m, p.delim('}', metadataKey)
}

func (p *headerParser) entry() (entry, error) {
	e := entry{name: p.tensor}
	if err := p.delim('{', "entry"); err != nil {
		return e, err
	}
	var hasDType, hasShape, hasOffsets bool
	once := func(has *bool, key string) error {
		if *has {
			return fault(p.tensor, "key %s appears twice", termsafe.Quote(key))
		}
		*has = true
		return nil
	}
	for p.dec.More() {
		key, err := p.key()
		if err != nil {
			return e, err
		}
		switch key {
		case "dtype":
			if err = once(&hasDType, key); err == nil {
				e.format, err = p.format()
			}
		case "shape":
			if err = once(&hasShape, key); err == nil {
				e.shape, err = p.ints("shape", maxRank)
			}
		case "data_offsets":
			var o []int64
			if err = once(&hasOffsets, key); err == nil {
				o, err = p.ints("data_offsets", 2)
			}
			if err == nil && len(o) != 2 {
				err = fault(p.tensor, "data_offsets has %d numbers, not 2", len(o))
			}
			if err == nil {
				e.begin, e.end = o[0], o[1]
			}
		default:
			err = fault(p.tensor, "unknown key %s", termsafe.Quote(key))
		}
		if err != nil {
			return e, err
		}
	}
	if err := p.delim('}', "entry"); err != nil {
		return e, err
	}
	switch {
	case !hasDType:
		return e, fault(e.name, "no dtype")
	case !hasShape:
		return e, fault(e.name, "no shape")
	case !hasOffsets:
		return e, fault(e.name, "no data_offsets")
	case e.begin > e.end:
		return e, fault(e.name, "data_offsets [%d, %d]: the end is before the begin", e.begin, e.end)
	}
	n, ok := numel(e.shape)
	if !ok {
		return e, fault(e.name, "shape %v overflows", e.shape)
	}
	size, ok := e.format.bytes(n)
	if !ok {
		return e, fault(e.name, "%d elements of %s do not fill a whole number of bytes below 2^60", n, e.format.name)
	}
	if size != e.end-e.begin {
		return e, fault(e.name, "%s%v takes %d bytes, data_offsets [%d, %d] hold %d",
			e.format.name, e.shape, size, e.begin, e.end, e.end-e.begin)
	}
	return e, nil
}

func (p *headerParser) format() (format, error) {
	t, err := p.token()
	if err != nil {
		return format{}, err
	}
	name, ok := t.(string)
	if !ok {
		return format{}, fault(p.tensor, "dtype is %s, not a string", describe(t, nil))
	}
	f, ok := formatNamed(name)
	if !ok {
		return format{}, fault(p.tensor, "unknown dtype %s", termsafe.Quote(name))
	}
	return f, nil
}

// ints reads a list of at most limit non-negative integers.
func (p *headerParser) ints(what string, limit int) ([]int64, error) {
	if err := p.delim('[', what); err != nil {
		return nil, err
	}
	list := []int64{}
	for p.dec.More() {
		t, err := p.token()
		if err != nil {
			return nil, err
		}
		num, ok := t.(json.Number)
		if !ok {
			return nil, fault(p.tensor, "%s holds %s, not a number", what, describe(t, nil))
		}
		v, err := strconv.ParseUint(num.String(), 10, 63)
		if err != nil {
			return nil, fault(p.tensor, "%s holds %s, which is not an integer in [0, 2^63)", what, termsafe.Quote(num.String()))
		}
		if len(list) == limit {
			return nil, fault(p.tensor, "%s has more than %d numbers", what, limit)
		}
		list = append(list, int64(v))
	}
	return list, p.delim(']', what)
}

func (p *headerParser) key() (string, error) {
	t, err := p.token()
	if err != nil {
		return "", err
	}
	key, ok := t.(string)
	if !ok {
		return "", fault(p.tensor, "found %s, want a key", describe(t, nil))
	}
	return key, nil
}

func (p *headerParser) delim(want json.Delim, what string) error {
	t, err := p.token()
	if err != nil {
		return err
	}
	if t != want {
		return fault(p.tensor, "%s: found %s, want %q", what, describe(t, nil), rune(want))
	}
	return nil
}

func (p *headerParser) token() (json.Token, error) {
	t, err := p.dec.Token()
	if err != nil {
		return nil, fault(p.tensor, "%s is not JSON: %s", p.what, describe(nil, err))
	}
	return t, nil
}

// describe renders a token, or the error that took its place, for an error message.
func describe(t json.Token, err error) string {
	switch v := t.(type) {
	case nil:
		if errors.Is(err, io.EOF) {
			return "unexpected end"
		}
		if err != nil {
			return err.Error()
		}
		return "null"
	case string:
		return termsafe.Quote(v)
	case json.Number:
		return "number " + termsafe.Quote(v.String())
	default:
		return fmt.Sprintf("%v", v)
	}
}
