package pt2

import (
	"fmt"
	"strings"

	"pwc/internal/termsafe"
)

// FormatError says what of an archive breaks the rules of the format, or is of a version or
// kind that is not read.
type FormatError struct {
	File   string // path of the archive; empty where it was read from memory
	Entry  string // entry of the zip file, or what of it: "data/weights/weight_0"; may be empty
	Reason string
}

// Error prints "pt2: FILE: ENTRY: REASON", without the parts that are empty.
func (e *FormatError) Error() string {
	var b strings.Builder
	b.WriteString("pt2: ")
	for _, s := range []string{e.File, e.Entry} {
		if s != "" {
			b.WriteString(termsafe.Clip(s, 200))
			b.WriteString(": ")
		}
	}
	b.WriteString(e.Reason)
	return b.String()
}

// Missing is an op, or a use of one, that cannot be imported.
type Missing struct {
	Op     string // "aten.median.dim", or what else is missing: "float64"
	Reason string // why; empty: there is no rule for the op
	Count  int    // places in the program
	Place  string // of the first: the line of the user's source, else the node's name
	Module string // path of the module of the first place: "layers.0.attn"; may be empty
	Extern string // what Options.Externs takes to keep the op; empty: it cannot be kept
}

// ImportError lists everything of an exported program that cannot be imported.
type ImportError struct {
	File    string
	Missing []Missing // in the order of the program
}

// Error prints a line for each, and the ways out.
func (e *ImportError) Error() string {
	var b strings.Builder
	total, keep := 0, ""
	for _, m := range e.Missing {
		total += m.Count
		if keep == "" {
			keep = m.Extern
		}
	}
	fmt.Fprintf(&b, "pt2: %s: %d of its nodes cannot be imported:", termsafe.Clip(e.File, 200), total)
	for _, m := range e.Missing {
		fmt.Fprintf(&b, "\n  %s", termsafe.Clip(m.Op, 120))
		if m.Count > 1 {
			fmt.Fprintf(&b, ", %d times, first", m.Count)
		}
		fmt.Fprintf(&b, " at %s", termsafe.Clip(m.Place, 200))
		if m.Module != "" {
			fmt.Fprintf(&b, " in %s", termsafe.Clip(m.Module, 120))
		}
		if m.Reason != "" {
			fmt.Fprintf(&b, ": %s", m.Reason)
		}
	}
	if keep != "" {
		fmt.Fprintf(&b, "\nAn op that the runner has can be kept as an extern op (Options.Externs, for example %s); others have to be expressed in other ops before the export", termsafe.Clip(keep, 120))
	}
	return b.String()
}
