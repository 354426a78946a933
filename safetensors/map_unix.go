//go:build unix

package safetensors

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mapping is a whole file in memory, read-only.
type mapping struct {
	bytes  []byte
	mapped bool // bytes must be unmapped; an empty file has no mapping
	users
}

func mapFile(path string) (*mapping, error) {
	f, size, err := openSized(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping outlives the descriptor
	if size == 0 {
		return &mapping{bytes: []byte{}}, nil // mmap refuses a length of zero
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%s: map %d bytes: %w", path, size, err)
	}
	return &mapping{bytes: b, mapped: true}, nil
}

func (m *mapping) unmap() error {
	if !m.mapped {
		return nil
	}
	b := m.bytes
	m.bytes = nil
	return unix.Munmap(b)
}
