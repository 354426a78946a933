// Package openfile opens files with untrusted names or contents. It opens without
// waiting, because a pipe without a writer would block forever, and checks the kind of
// the file on the descriptor, because a name may refer to another file after an earlier
// check.
package openfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// ErrNotRegular is wrapped by errors for directories, pipes and devices.
var ErrNotRegular = errors.New("not a regular file")

// LimitError: a file is larger than the limit of the caller.
type LimitError struct {
	File  string
	Size  int64 // bytes of the file; from ReadAll: a number above Limit
	Limit int64 // bytes
}

// Error names the file, its size and the limit.
func (e *LimitError) Error() string {
	return fmt.Sprintf("%s: %d bytes, above the limit of %d", e.File, e.Size, e.Limit)
}

// Regular opens a regular file for reading and returns its information. For a directory, a pipe
// or a device the error wraps [ErrNotRegular]; for a socket it may be one of the system.
func Regular(name string) (*os.File, fs.FileInfo, error) {
	return regular(os.OpenFile(name, flags, 0))
}

// RegularIn is [Regular] for a file in a directory. A link that leads out of the
// directory is an error.
func RegularIn(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	return regular(root.OpenFile(name, flags, 0))
}

func regular(f *os.File, err error) (*os.File, fs.FileInfo, error) {
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = kindError(f, info)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func kindError(f *os.File, info fs.FileInfo) error {
	return fmt.Errorf("%s: %w (%s)", f.Name(), ErrNotRegular, kind(info.Mode()))
}

// kind names the kind of a file that is not regular.
func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return m.Type().String()
}

// Stream opens a regular file or a pipe for reading, for an input that a command line
// names. The writer of the pipe must have opened it already, as in a shell's process
// substitution; otherwise the first read returns io.EOF.
func Stream(name string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(name, flags, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeNamedPipe {
		err = kindError(f, info)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// Read returns the contents of a regular file of at most limit bytes. For a larger file
// it returns a *[LimitError] and, unless the file grew after it was opened, reads nothing.
func Read(name string, limit int64) ([]byte, error) {
	f, info, err := Regular(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() > limit {
		return nil, &LimitError{name, info.Size(), limit}
	}
	return ReadAll(f, limit)
}

// ReadAll reads the rest of an open file, which may be a pipe. If there are more than
// limit bytes, it returns a *[LimitError].
func ReadAll(f *os.File, limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = &LimitError{f.Name(), int64(len(text)), limit}
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// Dir opens a directory. If the name is that of a pipe or another file, Dir fails
// without waiting.
func Dir(name string) (*os.Root, error) {
	if name == "" { // with a separator it would name the root of the file system
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	// With a trailing separator, the system opens the name only if it is a directory.
	return os.OpenRoot(name + string(os.PathSeparator))
}

// DirIn is [Dir] for a directory in root. A link that leads out of root is an error.
func DirIn(root *os.Root, name string) (*os.Root, error) {
	return root.OpenRoot(name + "/.") // with "/." the system opens the name only if it is a directory
}
