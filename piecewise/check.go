package piecewise

import (
	"pwc/ir"
	"pwc/ir/padding"
	"pwc/split"
)

// Report is what [New] decides about a function before it compiles.
type Report struct {
	Name    string
	Size    string // the symbol that counts rows; "": there is none, and it is run as it is
	Lo, Hi  int64  // sizes that may run
	Plain   []string
	Linked  []string // other batch symbols, of which graphs have room for the largest value
	Padding error    // why runs must not be padded to a captured size; nil: they may, or there are no rows
	Mixing  []padding.Mixing
	Sizes   []int64 // that it is captured for
	Capture error   // why no graph serves it, in a mode that captures
	Plan    *split.Plan

	Pieces bool // each piece is captured into a graph of its own, at every size
	Full   int  // how many of the sizes, from the smallest, a full graph is captured for

	Capturable int   // pieces that graphs hold: none in mode none, all where a full graph is captured
	Graphs     int64 // that Capture makes
}

// Check makes the decisions of [New] that need no compiled code, and compiles nothing: an
// error that New would return for the module and the options is Check's too. Options.Compile.Compiler
// is not needed.
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
