package split

import (
	"crypto/sha256"
	"fmt"

	"pwc/ir"
)

// Plan is a function cut into items that are run in order.
type Plan struct {
	Module *ir.Module
	Func   *ir.Func
	Ops    []string // the list that the function was split at
	Items  []*Item

	// Units are the units of all items, in the order in which they are launched.
	Units []*Unit

	// Buffers is the memory that the step owns for fresh results of eager calls (C2), in program
	// order.
	Buffers []StepBuffer

	// Storages has the lifetime of each memory between units: parameters, results of pieces and
	// step buffers, by ascending Base. Weights and states are not included: they are always live.
	Storages []Storage
}

// Item is a piece of the graph in vLLM's sense: the nodes between two cuts, or the consecutive
// splitting ops of one cut.
type Item struct {
	ID        int
	Splitting bool
	Nodes     []int // indices into Func.Nodes, ascending
	Units     []*Unit

	// Uncapturable is the first call in a non-splitting item that cannot be recorded into a
	// graph: of an extern op that is not declared capture, or that uses host state (see
	// [WhyUncapturable]). Nil if the item can be captured.
	Uncapturable *ir.Error
}

// Unit is one launch: a compiled piece, or one extern call. A non-splitting item is exactly one
// piece, which may contain calls. A splitting item is its calls in order, and each run of table ops
// among them as a piece, which gets no graph of its own.
type Unit struct {
	Seq   int    // index in Plan.Units
	Item  int    // index in Plan.Items
	Call  int    // the node of the extern call that is launched eagerly, or -1
	Piece *Piece // the compiled piece, or nil
}

// Piece is a part of a function as a module of its own. Names of symbols (s0…), weights (w0…), states
// (state0…) and parameters (p0…) follow the order of first use, so identical layers have the same
// hash. Nodes keep their [ir.Origin], which is not hashed: any of the pieces with one hash may be
// compiled.
type Piece struct {
	Module  *ir.Module        // one function, @piece; weights have no expressions
	Func    *ir.Func          // @piece
	Hash    [sha256.Size]byte // of Module's text without origins
	Params  []Binding         // parameter i is this value of the original function
	Weights []int             // weight i is this weight of the original module
	States  []int             // state i is this state of the original module
	Symbols []string          // symbol i is the original module's symbol of this name

	// Results are storages of this piece that a later unit uses or the function returns, each at
	// its last version here. No result shares memory with another or with a parameter.
	Results []Binding

	Origins []int // node i is this node of the original function
}

// Binding is the value of the original function for a parameter or result of a piece.
type Binding struct {
	Value ir.Value // parameters: the version that the piece takes; results: the last version
	Base  ir.Value // its storage
	Mut   bool     // parameters: the piece writes it
}

// StepBuffer is the memory for one fresh result of an eager call.
type StepBuffer struct {
	Value ir.Value
	Type  ir.Type
	Unit  int // index of the call in Plan.Units
}

// Storage is the lifetime of one memory between units.
type Storage struct {
	Base     ir.Value // its first value: a parameter or the result of a node
	First    int      // unit that makes it; -1: a parameter
	Last     int      // last unit that reads or writes it; -1: no unit
	Returned bool     // the function returns it, so it outlives Last
}

// Counts are vLLM's compilation counters for one function.
type Counts struct {
	Graphs     int // functions: 1
	Piecewise  int // items, including splitting ones: num_piecewise_graphs_seen
	Capturable int // items that can be captured, one graph each: num_piecewise_capturable_graphs_seen
}

// Counts returns vLLM's numbers for this plan.
func (p *Plan) Counts() Counts {
	c := Counts{Graphs: 1, Piecewise: len(p.Items)}
	for _, it := range p.Items {
		if !it.Splitting && it.Uncapturable == nil {
			c.Capturable++
		}
	}
	return c
}

// ItemSummary is one row of a table of items.
type ItemSummary struct {
	ID        int
	Splitting bool
	Nodes     []string // names of its ops, in order
	Hashes    []string // the first 12 hex digits of each of its pieces' hashes
}

// Summary returns the plan's items as rows of a table.
func (p *Plan) Summary() []ItemSummary {
	rows := make([]ItemSummary, len(p.Items))
	for i, it := range p.Items {
		rows[i] = ItemSummary{ID: it.ID, Splitting: it.Splitting}
		for _, n := range it.Nodes {
			rows[i].Nodes = append(rows[i].Nodes, p.Func.Nodes[n].Name())
		}
		for _, u := range it.Units {
			if u.Piece != nil {
				rows[i].Hashes = append(rows[i].Hashes, fmt.Sprintf("%x", u.Piece.Hash[:6]))
			}
		}
	}
	return rows
}
