// Package openfile opens files whose names or contents come from outside. Opening
// never waits, and what was opened is checked on the descriptor: a name may come to
// mean another file between a look at it and the opening, and opening a pipe that
// nobody writes waits for ever.
package openfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// ErrNotRegular is wrapped by the errors of what is no regular file.
var ErrNotRegular = errors.New("not a regular file")

// LimitError says that a file is larger than what is read of one of its kind.
type LimitError struct {
	File  string
	Size  int64 // bytes; those that were read where the file grew meanwhile
	Limit int64
}

// Error names the file, its size and the limit.
func (e *LimitError) Error() string {
	return fmt.Sprintf("%s: %d bytes, above the limit of %d", e.File, e.Size, e.Limit)
}

// Regular opens a regular file for reading and returns what it is. The error wraps
// [ErrNotRegular] for anything else, and else is that of the system.
func Regular(name string) (*os.File, fs.FileInfo, error) {
	return regular(os.OpenFile(name, flags, 0))
}

// RegularIn is [Regular] for a file below a directory. Links do not lead out of the
// directory.
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
	return fmt.Errorf("%s: %w (%s)", f.Name(), ErrNotRegular, info.Mode().Type())
}

// Stream opens a regular file or a pipe for reading: what a command line may be given
// as the name of its input. The other end of the pipe must be open already, as it is
// for a shell's process substitution; otherwise the first read ends the input.
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

// Read returns a whole regular file of at most limit bytes. A larger one is a
// *[LimitError], and no byte of it is read.
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

// ReadAll reads the rest of an open file, which may be a pipe. More than limit bytes
// are a *[LimitError].
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

// Dir opens a directory. What else stands under the name is an error, and is not
// waited for.
func Dir(name string) (*os.Root, error) {
	// With the separator behind it, a name can only mean a directory: the system looks
	// before it opens.
	return os.OpenRoot(name + string(os.PathSeparator))
}

// DirIn is [Dir] for a directory below another. Links do not lead out of that.
func DirIn(root *os.Root, name string) (*os.Root, error) {
	return root.OpenRoot(name + "/.") // "." is opened in what the system opened as a directory
}
