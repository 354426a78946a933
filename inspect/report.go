// Package inspect makes reports of compiled models: one HTML file with the pieces of each
// function, the changes of every pass, the kernels and the memory of a step; the same as JSON;
// and traces of runs for Perfetto.
package inspect

import "pwc/split"

// Schema is the version of [Report] as JSON. It changes if a key is removed or changes its
// meaning.
const Schema = 1

// Report describes a compiled model. Numbers that depend on the rows of a step are lists, in the
// order of Sizes.
type Report struct {
	Schema    int        `json:"schema"`
	Model     string     `json:"model"`
	Target    string     `json:"target"`
	Mode      string     `json:"mode"`
	Version   string     `json:"version"` // of pwc
	Sizes     []int64    `json:"sizes"`
	Functions []Function `json:"functions"`
	Pieces    []Piece    `json:"pieces"` // distinct pieces, in order of first use

	Measured *Measured `json:"measured,omitempty"`
}

// Function is one function and its cut.
type Function struct {
	Name     string    `json:"name"`
	Size     string    `json:"size_symbol,omitempty"` // the symbol of its rows
	Units    []Unit    `json:"units"`
	Memory   []Storage `json:"memory"`
	Arena    []int64   `json:"arena_bytes"`        // by size
	Captures []Capture `json:"captures,omitempty"` // sizes that graphs serve, rising
}

// Unit is a part of a step: a piece, or a call of an extern op.
type Unit struct {
	Item  int    `json:"item"`
	Piece int    `json:"piece"`          // index in Pieces; -1: a call
	Call  string `json:"call,omitempty"` // name of the extern op
	Loc   string `json:"loc,omitempty"`  // the module path that its nodes share
	Graph string `json:"graph"`          // the graph that has it: own, whole, both or none
}

// Storage is memory that several units of a step use, an input or a result, or the scratch of one unit.
type Storage struct {
	Name   string  `json:"name"`
	Type   string  `json:"type"`
	First  int     `json:"first"`            // unit that makes it; 0: also an input or a result
	Last   int     `json:"last"`             // last unit that touches it; of inputs and results the last unit of the step
	Where  string  `json:"where"`            // arena, or a region of its own: input, result
	Bytes  []int64 `json:"bytes"`            // by size
	Offset []int64 `json:"offset,omitempty"` // in the arena, by size
}

// Capture is a captured size and the rows that it serves.
type Capture struct {
	Size int64 `json:"size"`
	From int64 `json:"from"` // fewest rows that are padded to it; Size if the function's rows cannot be padded
}

// Piece is one distinct piece.
type Piece struct {
	Hash     string   `json:"hash"` // 12 hex digits, as pwc split prints
	Uses     int      `json:"uses"`
	Nodes    int      `json:"nodes"`
	Function string   `json:"function"` // of its first use
	Loc      string   `json:"loc,omitempty"`
	Text     string   `json:"text"` // as IR
	Ops      []int64  `json:"ops"`  // arithmetic operations, by size: 2·M·N·K of a GEMM, 1 for an element of other ops, 0 for layout ops, creations and calls
	Shapes   []Shape  `json:"shapes"`
	Calls    []string `json:"calls,omitempty"` // extern ops that it calls
}

// Shape is a piece compiled for a range of sizes.
type Shape struct {
	Range   string   `json:"range"`
	Cached  bool     `json:"cached"` // the cache had it before; the report compiles it again
	Passes  []Pass   `json:"passes"`
	Program string   `json:"program"`
	Kernels []Kernel `json:"kernels"`
}

// Pass has the changes of one pass to a piece.
type Pass struct {
	Name    string `json:"name"`
	Changed bool   `json:"changed"`
	Lines   []Line `json:"lines,omitempty"` // of the text before and after; missing if nothing changed
}

// Line is a line of a text that a pass changed.
type Line struct {
	Mark string `json:"mark"` // "+" added, "-" removed, " " kept
	Text string `json:"text"`
}

// Kernel is one launch of a program.
type Kernel struct {
	Step      int     `json:"step"`
	Variant   int     `json:"variant"` // of a step with several variants; 0 is tried first
	Name      string  `json:"name"`
	Library   bool    `json:"library,omitempty"` // a routine of the device
	Guard     string  `json:"guard,omitempty"`   // the sizes that it serves
	Source    string  `json:"source,omitempty"`  // CUDA C, or the vector program
	Language  string  `json:"language,omitempty"`
	Grid      string  `json:"grid,omitempty"` // blocks, over the piece's symbols
	Block     string  `json:"block,omitempty"`
	Registers int     `json:"registers,omitempty"` // of a thread
	Shared    int64   `json:"shared_bytes,omitempty"`
	Dynamic   string  `json:"dynamic_shared_bytes,omitempty"`
	Bytes     []int64 `json:"bytes"` // of all its operands, by size
	Origin    string  `json:"origin,omitempty"`
}

// Measured has the times of kernels that pwc bench measured, and the machine's limits.
type Measured struct {
	Device    string           `json:"device"`
	Bandwidth float64          `json:"read_bytes_per_second"`
	Peak      float64          `json:"peak_operations_per_second,omitempty"` // of the device, from --peak; 0: unknown
	Kernels   []MeasuredKernel `json:"kernels"`
}

// MeasuredKernel is the time of a kernel in a step.
type MeasuredKernel struct {
	Name    string  `json:"name"`
	Rows    int64   `json:"rows"`
	Calls   int64   `json:"calls"`
	Seconds float64 `json:"seconds"` // of all calls
	Bytes   int64   `json:"bytes"`   // of the weights that the calls read
	Ops     int64   `json:"ops"`     // of the calls, for GEMMs with a weight: 2·rows·elements of the weight
}

// sharedLoc returns the common path of the nodes of a unit that have one.
func sharedLoc(p *split.Plan, nodes []int) string {
	shared, first := "", true
	for _, i := range nodes {
		loc := p.Func.Nodes[i].Loc
		switch {
		case loc == "":
		case first:
			shared, first = loc, false
		default:
			shared = commonPath(shared, loc)
		}
	}
	return shared
}

// commonPath returns the longest common path.
func commonPath(a, b string) string {
	n, end := min(len(a), len(b)), 0
	for i := 0; i <= n; i++ {
		atEnd := (i == len(a) || a[i] == '.') && (i == len(b) || b[i] == '.')
		if atEnd {
			end = i
		}
		if i == n || a[i] != b[i] {
			break
		}
	}
	return a[:end]
}
