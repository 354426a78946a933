package pt2

import (
	"fmt"
	"strings"

	"pwc/internal/termsafe"
)

// A FormatError reports a part of an archive that breaks the rules of the format, has a version or kind that is not
// supported, or is an input, output, dimension or guard that cannot be imported.
type FormatError struct {
	File   string // path of the archive; empty if it was read from memory
	Entry  string // entry or folder of the zip file: "data/weights/weight_0"; empty: the whole archive
	Reason string
}

// Error prints "pt2: FILE: ENTRY: REASON", without the parts that are empty.
func (e *FormatError) Error() string {
	return prefix(e.File, e.Entry) + e.Reason
}

// prefix is the start of an error: "pt2: FILE: ENTRY: ", without the parts that are empty.
func prefix(parts ...string) string {
	var b strings.Builder
	b.WriteString("pt2: ")
	for _, s := range parts {
		if s != "" {
			b.WriteString(termsafe.Clip(s, 200))
			b.WriteString(": ")
		}
	}
	return b.String()
}

// Missing is an op of the program, or a use of an op, that cannot be imported.
type Missing struct {
	Op     string // "aten.nonzero.default", or the target of a node that is not a torch.ops op
	Reason string // why; empty: there is no rule for the op
	Count  int    // number of nodes
	Place  string // of the first node: the line of the user's source, else the node's name
	Module string // of the first node, path: "layers.0.attn"; may be empty
	Extern string // entry of Options.Externs that keeps the op; empty: it cannot be kept
}

// An ImportError lists all nodes of an exported program that cannot be imported.
type ImportError struct {
	File    string    // path of the archive; empty if it was read from memory
	Missing []Missing // in the order of the program
}

// Error returns a line for each op and reason. If an op can be kept as an extern op, it says how.
func (e *ImportError) Error() string {
	var b strings.Builder
	total, keep := 0, ""
	for _, m := range e.Missing {
		total += m.Count
		if keep == "" {
			keep = m.Extern
		}
	}
	fmt.Fprintf(&b, "%s%d of its nodes cannot be imported:", prefix(e.File), total)
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
