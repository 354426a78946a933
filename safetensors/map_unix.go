//go:build unix

package safetensors

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapping is a whole file in memory, read-only.
type mapping struct {
	bytes  []byte
	mapped bool // bytes must be unmapped; an empty file has no mapping
}

// open opens a file for reading. It does not wait for somebody who writes to a pipe: who asks what was opened sees one.
func open(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) }

func mapFile(path string) (*mapping, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping outlives the descriptor
	size, err := fileSize(f)
	if err != nil {
		return nil, err
	}
	if size == 0 {
		return &mapping{bytes: []byte{}}, nil // mmap refuses a length of zero
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%s: map %d bytes: %w", path, size, err)
	}
	return &mapping{bytes: b, mapped: true}, nil
}

func (m *mapping) close() error {
	if !m.mapped {
		return nil
	}
	m.mapped = false
	return unix.Munmap(m.bytes)
}
