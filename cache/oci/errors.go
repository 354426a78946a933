package oci

import (
	"fmt"
	"strings"

	"pwc/cache"
	"pwc/internal/termsafe"
)

// Refusal is a module that is not taken, and why.
type Refusal struct {
	Module string // its name
	Target string
	Reason string
}

// String returns all of it in one line.
func (r Refusal) String() string {
	return fmt.Sprintf("module %q for %s: %s", termsafe.Clip(r.Module, 80), termsafe.Clip(r.Target, 80), r.Reason)
}

// RefusedError says that nothing of an artifact can be used. Nothing but its
// manifest and its config was fetched, and nothing was written.
type RefusedError struct {
	Source    string
	Refusals  []Refusal
	Untrusted *cache.UntrustedError // why machine code was left; nil: there was none, or it was trusted
}

// Unwrap returns Untrusted.
func (e *RefusedError) Unwrap() error {
	if e.Untrusted == nil {
		return nil
	}
	return e.Untrusted
}

// Error gives every reason once.
func (e *RefusedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: nothing in it can be used", e.Source)
	said := map[Refusal]bool{}
	for _, r := range e.Refusals {
		if !said[r] {
			said[r] = true
			b.WriteString("\n\t" + r.String())
		}
	}
	return b.String()
}

// FormatError says that what was read is not an artifact of this package, or
// not one that this version knows.
type FormatError struct {
	Source string // of the artifact
	Part   string // "manifest", "config", …
	Reason error
}

// Error names the artifact, the part and the reason.
func (e *FormatError) Error() string {
	return fmt.Sprintf("%s: the %s cannot be used: %v", e.Source, e.Part, e.Reason)
}

// Unwrap returns the reason.
func (e *FormatError) Unwrap() error { return e.Reason }

// ContentError says that bytes arrived which are not those that were named.
// They were thrown away.
type ContentError struct {
	Digest string
	Reason string
}

// Error names the digest and the reason.
func (e *ContentError) Error() string { return e.Digest + ": " + e.Reason }
