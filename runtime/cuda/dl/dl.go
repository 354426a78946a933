// Package dl opens the shared libraries that come with NVIDIA's driver and
// toolkit, at run time and without cgo. Its errors list the places where it looked.
package dl

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
)

// Attempt is one place at which a library could not be opened.
type Attempt struct {
	Path   string
	Reason string // why, such as the loader's error text
}

// NotFoundError says that a library could not be opened from any of the places.
type NotFoundError struct {
	Library  string // for messages: "the CUDA driver (libcuda.so.1)"
	Attempts []Attempt
	Advice   string // what to do; ends the text
}

// missing is the loader's reason for a file that is not there.
const missing = "No such file or directory"

// Error lists every place: names that the loader did not find, folders without these
// names, and all other attempts with their reasons.
func (e *NotFoundError) Error() string {
	var names, dirs, others []string
	for _, a := range e.Attempts {
		absent := strings.Contains(a.Reason, missing)
		switch dir, name := path.Split(a.Path); {
		case absent && dir == "":
			names = append(names, name)
		case absent && slices.Contains(names, name):
			if dir = path.Clean(dir); !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		default:
			others = append(others, fmt.Sprintf("%s (%s)", a.Path, a.Reason))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s was not found", e.Library)
	var tried []string
	if len(names) > 0 {
		tried = append(tried, strings.Join(names, ", ")+" by the loader's own rules")
	}
	if len(dirs) > 0 {
		tried = append(tried, "in "+strings.Join(dirs, ", "))
	}
	if tried = append(tried, others...); len(tried) > 0 {
		b.WriteString("; looked for " + strings.Join(tried, "; "))
	}
	if e.Advice != "" {
		b.WriteString("; " + e.Advice)
	}
	return b.String()
}

// SymbolError is the error of a library that lacks a function that this program needs.
type SymbolError struct {
	Library string // the path that was opened
	Symbol  string
	Reason  string
}

// Error names the library and the function.
func (e *SymbolError) Error() string {
	return fmt.Sprintf("%s has no %s: %s", e.Library, e.Symbol, e.Reason)
}

// Library is an open library.
type Library struct {
	Path   string // as it was opened: a bare name was found by the loader's own rules
	handle uintptr
}

// Caller makes calls of up to four arguments. It keeps the memory of the arguments, so that
// most calls allocate nothing. The zero value is ready, for any number of goroutines.
type Caller struct{ pool sync.Pool }

// hotArgs is the number of arguments that a Caller passes; a function with fewer parameters
// ignores the others.
const hotArgs = 4
