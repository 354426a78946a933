package safetensors

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"pwc/internal/termsafe"
)

// Write writes a file of tensors. It writes a temporary file, syncs it and renames it to path, so
// a reader sees the old file or the whole new one. See [Encode] for the bytes and the errors.
func Write(path string, tensors []Tensor, metadata map[string]string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = Encode(f, tensors, metadata)
	if err == nil {
		err = f.Chmod(0o644) // CreateTemp's 0600 is for secrets; the directory decides who reads a checkpoint
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("safetensors: write %s: %w", path, err)
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	return nil
}

// Encode writes tensors in the format to w. The bytes depend on the tensors and the metadata, not
// on their order. As in the reference implementation, tensors are sorted by dtype from the widest
// alignment to the narrowest, then by name, and the header is padded with spaces to a multiple of
// 8, so that every tensor is aligned to its element size. These are [*FormatError]s before
// anything is written: a name that is used twice, not UTF-8 or reserved; Data of another size than
// the shape takes; a shape that overflows, has a negative size, too many sizes or ends within a byte; a
// dtype that the format lacks (I4, U4); metadata that is not UTF-8; a header above [MaxHeader].
func Encode(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	if w == nil {
		return errors.New("safetensors: nothing to write to")
	}
	order, err := writeOrder(tensors)
	if err != nil {
		return err
	}
	head, err := encodeHeader(order, metadata)
	if err != nil {
		return err
	}
	bw := bufio.NewWriter(w)
	if err := binary.Write(bw, binary.LittleEndian, uint64(len(head))); err != nil {
		return err
	}
	if _, err := bw.Write(head); err != nil {
		return err
	}
	for _, t := range order {
		if _, err := bw.Write(t.Data); err != nil {
			return err
		}
	}
	return bw.Flush()
}

// writeOrder checks the tensors and returns them in the order of the file.
func writeOrder(tensors []Tensor) ([]Tensor, error) {
	seen := make(map[string]bool, len(tensors))
	for _, t := range tensors {
		f, _, ok := formatOf(t.DType)
		if !ok {
			return nil, fault(t.Name, "dtype %v has no name in the format", t.DType)
		}
		if t.Name == metadataKey {
			return nil, fault(t.Name, "name is reserved")
		}
		if !utf8.ValidString(t.Name) {
			return nil, fault(t.Name, "name is not UTF-8")
		}
		if seen[t.Name] {
			return nil, fault(t.Name, "name is used twice")
		}
		seen[t.Name] = true
		if len(t.Shape) > maxRank {
			return nil, fault(t.Name, "rank %d is above %d", len(t.Shape), maxRank)
		}
		n, ok := numel(t.Shape)
		if !ok {
			return nil, fault(t.Name, "shape %v is negative or overflows", t.Shape)
		}
		size, ok := f.bytes(n)
		if !ok {
			return nil, fault(t.Name, "%d elements of %s do not fill a whole number of bytes below 2^60", n, f.name)
		}
		if size != int64(len(t.Data)) {
			return nil, fault(t.Name, "%s%v takes %d bytes, Data holds %d", f.name, t.Shape, size, len(t.Data))
		}
	}
	order := slices.Clone(tensors)
	slices.SortFunc(order, func(a, b Tensor) int {
		_, ra, _ := formatOf(a.DType)
		_, rb, _ := formatOf(b.DType)
		if ra != rb {
			return rb - ra
		}
		return strings.Compare(a.Name, b.Name)
	})
	return order, nil
}

// encodeHeader renders the header of tensors in the order of the file.
func encodeHeader(order []Tensor, metadata map[string]string) ([]byte, error) {
	var b bytes.Buffer
	str := func(s string) error {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(s); err != nil {
			return err
		}
		b.Truncate(b.Len() - 1) // the newline that Encode adds
		return nil
	}
	b.WriteByte('{')
	if len(metadata) > 0 {
		b.WriteString(`"` + metadataKey + `":{`)
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			if !utf8.ValidString(key) || !utf8.ValidString(metadata[key]) {
				return nil, fault("", "metadata %s is not UTF-8", termsafe.Quote(key))
			}
			if i > 0 {
				b.WriteByte(',')
			}
			if err := str(key); err != nil {
				return nil, err
			}
			b.WriteByte(':')
			if err := str(metadata[key]); err != nil {
				return nil, err
			}
		}
		b.WriteByte('}')
	}
	at := 0
	for i, t := range order {
		if i > 0 || len(metadata) > 0 {
			b.WriteByte(',')
		}
		if err := str(t.Name); err != nil {
			return nil, err
		}
		f, _, _ := formatOf(t.DType)
		fmt.Fprintf(&b, `:{"dtype":%q,"shape":[`, f.name)
		for j, d := range t.Shape {
			if j > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%d", d)
		}
		fmt.Fprintf(&b, `],"data_offsets":[%d,%d]}`, at, at+len(t.Data))
		at += len(t.Data)
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len() > MaxHeader {
		return nil, fault("", "header of %d bytes is above the limit of %d", b.Len(), MaxHeader)
	}
	return b.Bytes(), nil
}
