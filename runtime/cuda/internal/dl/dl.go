// Package dl opens the shared libraries that come with NVIDIA's driver and
// toolkit, at run time and without cgo, and says where it looked.
package dl

import (
	"fmt"
	"strings"
	"sync"
)

// Attempt is one place where a library was looked for.
type Attempt struct {
	Path   string
	Reason string // the loader's words
}

// NotFoundError says that a library could not be opened from any of the places.
type NotFoundError struct {
	Library  string // for people: "the CUDA driver (libcuda.so.1)"
	Attempts []Attempt
	Advice   string
}

// Error lists every place with the loader's reason.
func (e *NotFoundError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s was not found", e.Library)
	for i, a := range e.Attempts {
		sep := "; "
		if i == 0 {
			sep = "; looked for "
		}
		fmt.Fprintf(&b, "%s%s (%s)", sep, a.Path, a.Reason)
	}
	if e.Advice != "" {
		b.WriteString("; " + e.Advice)
	}
	return b.String()
}

// SymbolError says that a library lacks a function that this program needs.
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

// Caller makes calls of up to four arguments that allocate nothing. The zero
// value is ready, for any number of goroutines.
type Caller struct{ pool sync.Pool }

// hotArgs is how many arguments a Caller passes; a function that takes fewer
// does not look at the others.
const hotArgs = 4
