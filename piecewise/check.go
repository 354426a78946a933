package piecewise

import (
	"pwc/ir"
	"pwc/ir/padding"
	"pwc/split"
)

// Report contains the decisions of [New] about a function before it compiles.
type Report struct {
	Name    string
	Size    string   // the symbol that counts rows; "": the function has no such symbol
	Lo, Hi  int64    // sizes that may run
	Plain   []string // other symbols with a value for each run, which graphs cannot vary: if there are any, the function is not captured
	Linked  []string // batch symbols other than Size and those in Plain: graphs are captured with their largest values and serve smaller ones
	Padding error    // why runs must not be padded to a captured size; nil: they may, or Size is empty
	Mixing  []padding.Mixing
	Sizes   []int64 // capture sizes
	Capture error   // in a mode that captures, why no graph can serve the function; otherwise nil
	Plan    *split.Plan

	Pieces bool // each piece between splitting ops is captured into a graph, for every size
	Full   int  // how many of the sizes, from the smallest, a full graph is captured for

	Capturable int   // pieces that are in a graph: 0 in mode none, all if a full graph is captured
	Graphs     int64 // graphs that Capture makes
}

// Check makes the decisions of [New] that need no compiled code, and compiles nothing. It returns
// the errors that New returns for the module and the options before it compiles. Of the [Plan] it
// sets only Unused, Uncaptured and Graphs. Options.Compile.Compiler is not needed.
func Check(m *ir.Module, o Options) ([]Report, Plan, error) {
	pl, err := analyze(m, o)
	if err != nil {
		return nil, Plan{}, err
	}
	out := make([]Report, len(pl.funcs))
	for i, fn := range pl.funcs {
		out[i] = Report{Name: fn.ir.Name, Size: fn.size, Lo: fn.lo, Hi: fn.hi, Plain: fn.plain(), Padding: fn.noPad, Mixing: fn.mixing,
			Sizes: fn.sizes, Capture: fn.noGraph, Plan: fn.split}
		for _, s := range fn.symbols {
			if s.role == isOther {
				out[i].Linked = append(out[i].Linked, s.name)
			}
		}
		out[i].Pieces, out[i].Full = o.Capture.Mode.pieces() && len(fn.sizes) > 0, fn.full
		out[i].Capturable, out[i].Graphs = fn.inGraphs(), fn.graphCount()
		pl.memory.Graphs += fn.graphCount()
	}
	return out, Plan{Unused: pl.memory.Unused, Uncaptured: pl.memory.Uncaptured, Graphs: pl.memory.Graphs}, nil
}
