package oci

import (
	"fmt"
	"strings"

	"pwc/cache"
	"pwc/internal/termsafe"
)

// A Refusal is a module of an artifact that is not taken, and the reason.
type Refusal struct {
	Module string // name of the module
	Target string
	Reason string
}

// String returns the module, its target and the reason in one line.
func (r Refusal) String() string {
	return fmt.Sprintf("module %q for %s: %s", termsafe.Clip(r.Module, 80), termsafe.Clip(r.Target, 80), r.Reason)
}

// A RefusedError reports that no module of an artifact can be used. Only the manifest, the config and perhaps
// signatures were fetched, and nothing was written.
type RefusedError struct {
	Source    string // as in FormatError
	Refusals  []Refusal
	Untrusted *cache.UntrustedError // why machine code was refused; nil: none was refused for lack of trust
}

// Unwrap returns Untrusted.
func (e *RefusedError) Unwrap() error {
	if e.Untrusted == nil {
		return nil
	}
	return e.Untrusted
}

// Error lists every different refusal once.
func (e *RefusedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: none of its modules can be used", e.Source)
	said := map[Refusal]bool{}
	for _, r := range e.Refusals {
		if !said[r] {
			said[r] = true
			b.WriteString("\n\t" + r.String())
		}
	}
	return b.String()
}

// A FormatError reports that the source is not an artifact of this package, has a version that is not supported, or
// lists too many bytes.
type FormatError struct {
	Source string // the artifact: its reference in a registry, or the path of a layout, with the tag or digest if one was named
	Part   string // "manifest", "config", …
	Reason error
}

// Error names the artifact, the part and the reason.
func (e *FormatError) Error() string {
	return fmt.Sprintf("%s: the %s cannot be used: %v", e.Source, e.Part, e.Reason)
}

// Unwrap returns the reason.
func (e *FormatError) Unwrap() error { return e.Reason }

// A ContentError reports bytes that are not those of their digest, or not a program for their key. They were
// discarded.
type ContentError struct {
	Digest string
	Reason string
}

// Error names the digest and the reason.
func (e *ContentError) Error() string { return e.Digest + ": " + e.Reason }
