package device

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Graph is recorded work that is ready to be launched. It does not own the memory that it
// uses; its pool does. Once such memory is freed, launches fail with [ErrFreed].
type Graph interface {
	// Nodes returns the number of recorded operations, the length of Describe. A graph with 0
	// operations can be launched and does nothing.
	Nodes() int

	// Describe returns the operations in the order of recording.
	Describe() []Node

	// Rebind changes the addresses that the graph holds, without another capture: each
	// address in From becomes the address at the same offset in To. On an error no node
	// changes; a graph whose nodes cannot be changed back refuses all later launches.
	// Launches before Rebind, and the template, do not change. The memory of From may be
	// freed before Rebind, but not while work uses it.
	//
	// A [RebindError] names a node that Rebind cannot change:
	//
	//   - a node of an op that was given memory of From;
	//   - a node that uses memory of From, of a graph that was launched while capturing;
	//   - a node of whose memory only a part moves, or that cannot use the memory of To, by its
	//     alignment for example;
	//   - for any move, an operation whose memory is not known, such as Go code that no op recorded.
	//
	// The device does not see memory that an op uses without having it as an operand. A rebound
	// graph cannot be launched while capturing.
	Rebind(moves []Move) error

	Close() error
}

// Template is recorded work from which graphs are made. The template and its graphs are
// closed independently, in any order.
type Template interface {
	Nodes() int       // as of Graph
	Describe() []Node // as of Graph

	// Instantiate makes a graph that is ready to be launched. It may be called any
	// number of times.
	Instantiate() (Graph, error)

	Close() error
}

// NodeKind is the kind of operation of a node.
type NodeKind uint8

const (
	NodeKernel  NodeKind = iota // a kernel
	NodeCopy                    // a copy
	NodeFill                    // a fill
	NodeCall                    // Go code on the host
	NodeLibrary                 // a call of a library, which may be several kernels
	NodeEvent                   // the record of an event that measures time
)

// String returns "kernel", "copy", "fill", "host call", "library call" or "event record".
func (k NodeKind) String() string {
	names := [...]string{"kernel", "copy", "fill", "host call", "library call", "event record"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("NodeKind(%d)", uint8(k))
}

// Node is one recorded operation of a graph.
type Node struct {
	Recorded
	Kind NodeKind
	Name string // of the kernel; "" if it is not known, or for other kinds

	// Reads and Writes are the memory of the device that the node may read and write.
	// Known is false if the device cannot tell reads from writes: then both lists have all
	// memory that the node was given, and the node may use more.
	Reads, Writes []Buffer
	Known         bool
}

// label returns the node's text for messages: "kernel add of ns::op at m.ir:3:1".
func (n *Node) label() string {
	s := n.Kind.String()
	if n.Name != "" {
		s += " " + n.Name
	}
	if n.Op != "" {
		s += " of " + n.Op
	}
	if n.Loc != "" {
		s += " at " + n.Loc
	}
	return s
}

// Move is memory whose contents were moved from From to To: an address in From becomes the
// address at the same offset in To. The sizes are equal.
type Move struct {
	From, To Buffer
}

// RebindError is a node that Rebind cannot change. It matches [ErrNotRebindable], and the cause
// where there is one.
type RebindError struct {
	Node   int    // index in the graph's nodes
	What   string // kind, name, op and place of the node
	Reason string
	Cause  error // may be nil
}

// Error names the node and the reason.
func (e *RebindError) Error() string {
	s := fmt.Sprintf("node %d (%s): %v: %s", e.Node, e.What, ErrNotRebindable, e.Reason)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns ErrNotRebindable and the cause.
func (e *RebindError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrNotRebindable}
	}
	return []error{ErrNotRebindable, e.Cause}
}

// NotRebindable returns the RebindError of node i of a graph. cause may be nil.
func NotRebindable(i int, n Node, reason string, cause error) error {
	return &RebindError{Node: i, What: n.label(), Reason: reason, Cause: cause}
}

// CheckMoves checks the moves of one Rebind: memory, equal sizes above 0, and no byte that moves twice.
func CheckMoves(moves []Move) error {
	for i, m := range moves {
		switch {
		case m.From.Size != m.To.Size || m.From.Size <= 0:
			return fmt.Errorf("move %d: %d bytes to %d, want equal sizes above 0", i, m.From.Size, m.To.Size)
		case m.From.Memory == nil || m.To.Memory == nil:
			return fmt.Errorf("move %d: no memory", i)
		}
		for j, o := range moves[:i] {
			if m.From.overlaps(o.From) {
				return fmt.Errorf("moves %d and %d: %w: both move bytes %d to %d of a segment", j, i, ErrOverlap, max(m.From.Offset, o.From.Offset), min(m.From.end(), o.From.end()))
			}
		}
	}
	return nil
}

func (b Buffer) end() int64 { return b.Offset + b.Size }

func (b Buffer) overlaps(o Buffer) bool {
	return b.Memory == o.Memory && b.Offset < o.end() && o.Offset < b.end()
}

// Relocate returns a buffer after the moves, and whether it moved. It returns an error if
// a move has only a part of the buffer.
func Relocate(b Buffer, moves []Move) (Buffer, bool, error) {
	if b.Memory == nil || b.Size == 0 {
		return b, false, nil
	}
	for _, m := range moves {
		if !b.overlaps(m.From) {
			continue
		}
		if b.Offset < m.From.Offset || b.end() > m.From.end() {
			return b, false, fmt.Errorf("bytes %d to %d of a segment are used together, and bytes %d to %d of it move", b.Offset, b.end(), m.From.Offset, m.From.end())
		}
		return Buffer{m.To.Memory, m.To.Offset + b.Offset - m.From.Offset, b.Size}, true, nil
	}
	return b, false, nil
}

// WriteDOT writes the nodes of a graph in the language of Graphviz, with an edge for
// each direct dependency.
func WriteDOT(w io.Writer, nodes []Node) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, "digraph capture {\n  node [shape=box];")
	for i := range nodes {
		n := &nodes[i]
		text := fmt.Sprintf("%d: %s\n%s", i, n.label(), n.Stream)
		fmt.Fprintf(out, "  n%d [label=\"%s\"];\n", i, escapeDOT(text))
		for _, d := range n.Deps {
			fmt.Fprintf(out, "  n%d -> n%d;\n", d, i)
		}
	}
	fmt.Fprintln(out, "}")
	return out.Flush()
}

// escapeDOT escapes text for a quoted label.
func escapeDOT(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s)
}
