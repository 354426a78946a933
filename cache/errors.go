package cache

import (
	"errors"
	"fmt"
)

var (
	// ErrNoDir: the store has no directory to write, or Dir found no place for one. In Put, PutModule
	// and PutTuning it is the reason of a NotCachedError.
	ErrNoDir = errors.New("cache: no directory to write")
	// ErrNotFound: no module has the name or id.
	ErrNotFound = errors.New("cache: no such module")
)

// DamageError is an unusable file or directory of the cache. For a look-up it is a miss. The next
// Put, PutModule or PutTuning that would write the file replaces it in Options.Dir.
type DamageError struct {
	File   string // or directory
	Reason string
}

// Error names the file and the reason.
func (e *DamageError) Error() string { return fmt.Sprintf("cache: %s: %s", e.File, e.Reason) }

// NotCachedError: something was made or fetched but could not be stored. A compilation goes on; Pull and Import of
// package oci end with it.
type NotCachedError struct {
	What string // "entry <id>", "module <name>", "tuning record <id>"
	Err  error
}

// Error names the entry, module or tuning record, and the reason.
func (e *NotCachedError) Error() string {
	return fmt.Sprintf("cache: %s was not kept: %v", e.What, e.Err)
}

// Unwrap returns the reason.
func (e *NotCachedError) Unwrap() error { return e.Err }
