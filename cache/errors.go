package cache

import (
	"errors"
	"fmt"
)

var (
	// ErrNoDir is the reason of a NotCachedError when the store has no
	// directory to write.
	ErrNoDir = errors.New("cache: no directory to write")
	// ErrNotFound says that no module goes by a name or id.
	ErrNotFound = errors.New("cache: no such module")
)

// DamageError is a file of the cache that cannot be used. To a look-up it is a
// miss; the next Put of the entry repairs it.
type DamageError struct {
	File   string
	Reason string
}

// Error names the file and the reason.
func (e *DamageError) Error() string { return fmt.Sprintf("cache: %s: %s", e.File, e.Reason) }

// NotCachedError says that something was made but not kept. It
// is never a reason to stop.
type NotCachedError struct {
	What string // "entry <id>", "module <name>"
	Err  error
}

// Error names what was not kept and why.
func (e *NotCachedError) Error() string {
	return fmt.Sprintf("cache: %s was not kept: %v", e.What, e.Err)
}

// Unwrap returns the reason.
func (e *NotCachedError) Unwrap() error { return e.Err }
