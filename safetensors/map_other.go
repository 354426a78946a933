//go:build !unix

package safetensors

import (
	"fmt"
	"io"
)

// mapping is a whole file in memory. Without mmap, the file is read.
type mapping struct {
	bytes []byte
	users
}

func mapFile(path string) (*mapping, error) {
	f, size, err := openSized(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, size)
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, fmt.Errorf("%s: read %d bytes: %w", path, size, err)
	}
	return &mapping{bytes: b}, nil
}

func (m *mapping) unmap() error {
	m.bytes = nil
	return nil
}
