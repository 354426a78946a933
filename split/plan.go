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

	// Buffers is the memory that the step owns for fresh results of the calls
	// that are launched eagerly (C2), in program order.
	Buffers []StepBuffer

	// Storages says how long each memory between units lives: parameters, results
	// of pieces and step buffers, by rising Base. Weights and states always live.
	Storages []Storage
}

// Item is what vLLM calls a piece of the graph: the nodes between two cuts, or
// the consecutive splitting ops of one cut.
type Item struct {
	ID        int
	Splitting bool
	Nodes     []int // indices into Func.Nodes, rising
	Units     []*Unit

	// Uncapturable points at the first call in a non-splitting item that may not
	// be recorded into a graph: an extern op declared neither split nor capture, or
	// one that touches host state. Nil where the item can be captured.
	Uncapturable *ir.Error
}

// Unit is what is launched as one: a compiled piece, or one extern call. A
// non-splitting item is exactly one piece, which may hold capture calls inside.
// A splitting item is its calls in order, and the runs of table ops between
// them as pieces, which are launched and never captured or counted.
type Unit struct {
	Seq   int    // position in Plan.Units
	Item  int    // position in Plan.Items
	Call  int    // the node of the extern call that is launched eagerly, or -1
	Piece *Piece // the compiled piece, or nil
}

// Piece is a part of a function as a module of its own. All names in it are
// canonical (symbols s0…, weights w0…, states state0…, parameters p0…, each in
// the order of first use), so that identical layers give the same hash. Nodes keep
// their [ir.Origin], which no hash has: of pieces with one hash any may be compiled.
type Piece struct {
	Module  *ir.Module        // one function, @piece; weights have no expressions
	Func    *ir.Func          // @piece
	Hash    [sha256.Size]byte // of Module's text without origins
	Params  []Binding         // parameter i is this value of the original function
	Weights []int             // weight i is this weight of the original module
	States  []int             // state i is this state of the original module
	Symbols []string          // symbol i is the original module's symbol of this name

	// Results are storages made here that a later unit touches or the function
	// returns, each at its last version here. None shares memory with another or
	// with a parameter.
	Results []Binding

	Origins []int // node i comes from this node of the original function
}

// Binding names the value of the original function that a parameter or result
// of a piece stands for.
type Binding struct {
	Value ir.Value // the version that the piece sees first (results: leaves behind)
	Base  ir.Value // its storage
	Mut   bool     // parameters: the piece writes it
}

// StepBuffer is the memory for one fresh result of an eager call.
type StepBuffer struct {
	Value ir.Value
	Type  ir.Type
	Unit  int // position in Plan.Units of the call
}

// Storage is the life of one memory between units.
type Storage struct {
	Base     ir.Value // its first value: a parameter or the result of a node
	First    int      // unit that makes it; -1: a parameter
	Last     int      // last unit that reads or writes it; -1: none
	Returned bool     // the function returns it, so it outlives Last
}

// Counts are the numbers that vLLM's compilation counters have for one function.
type Counts struct {
	Graphs     int // functions: 1
	Piecewise  int // items, splitting or not: num_piecewise_graphs_seen
	Capturable int // items that can be captured, each into a graph of its own: num_piecewise_capturable_graphs_seen
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

// Summary returns the plan's items as rows for people to read.
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
