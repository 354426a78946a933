//go:build !unix

package safetensors

import (
	"fmt"
	"io"
	"os"
)

// mapping is a whole file in memory. Where the operating system has no mmap of the Unix kind, the file is read.
type mapping struct {
	bytes []byte
}

func open(path string) (*os.File, error) { return os.Open(path) }

func mapFile(path string) (*mapping, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := fileSize(f)
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, fmt.Errorf("%s: read %d bytes: %w", path, size, err)
	}
	return &mapping{bytes: b}, nil
}

func (m *mapping) close() error {
	m.bytes = nil
	return nil
}
