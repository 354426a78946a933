package pieces

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pwc/program"
	"pwc/split"
)

// Counters are vLLM's compilation counters under their names, and pwc's own. Compiled + Loaded
// are the distinct artifacts, including extras; with Deduplicated they are all requested
// artifacts.
type Counters struct {
	GraphsSeen                    int `json:"num_graphs_seen"`                      // functions
	PiecewiseGraphsSeen           int `json:"num_piecewise_graphs_seen"`            // items, including splitting ones
	PiecewiseCapturableGraphsSeen int `json:"num_piecewise_capturable_graphs_seen"` // items that can be captured: not splitting, and without a call that cannot be captured

	// BackendCompilations counts the pieces between splitting ops, once for each compiled shape,
	// including identical and stored ones.
	BackendCompilations int `json:"num_backend_compilations"`

	Compiled     int   `json:"compiled"`
	Deduplicated int   `json:"deduplicated"` // served by an artifact of another piece
	Loaded       int   `json:"loaded"`       // from the store
	Bytes        int64 `json:"bytes"`        // of all encoded programs
}

// ShapeStats sums the artifacts of one range of sizes.
type ShapeStats struct {
	Shape            string // Range in text; "any size" for pieces that do not depend on it, "extern ops" for extras
	Compiled, Loaded int
	Bytes            int64
	Duration         time.Duration // of making them, over all jobs
}

// Result is the outcome of a build.
type Result struct {
	Counters  Counters
	Artifacts []*Artifact  // distinct, in order of first use
	Extras    []*Artifact  // in the order of Options
	ByShape   []ShapeStats // any size, then exact sizes and ranges rising, then extras

	// Warnings are failures of the store that the build survived, in order of artifacts.
	Warnings []error

	pieces map[*split.Piece]*choice
}

// choice is the artifacts of one piece: exact sizes first, then ranges.
type choice struct {
	sized     bool
	artifacts []*Artifact
}

// Program returns the program that serves a piece at a size: that of the exact size if there is
// one, otherwise that of the range. A piece that does not depend on the size has one program. A
// size without a program is an [*UncoveredError]; a piece of another build is an error, too.
func (r *Result) Program(piece *split.Piece, size int64) (*program.Program, error) {
	a, err := r.Artifact(piece, size)
	if err != nil {
		return nil, err
	}
	return a.Program, nil
}

// Artifact is Program, but returns the artifact.
func (r *Result) Artifact(piece *split.Piece, size int64) (*Artifact, error) {
	c := r.pieces[piece]
	if c == nil {
		return nil, fmt.Errorf("the piece is not of this build")
	}
	var ranges []Range
	for _, a := range c.artifacts { // exact sizes come first
		if !c.sized || a.Range.Lo <= size && size <= a.Range.Hi {
			return a, nil
		}
		ranges = append(ranges, a.Range)
	}
	return nil, &UncoveredError{Size: size, Ranges: ranges}
}

// Ranges returns the distinct ranges of the artifacts of a plan's pieces, in the order of use;
// nil if no piece depends on the size.
func (r *Result) Ranges(p *split.Plan) []Range {
	if p == nil {
		return nil
	}
	var out []Range
	for _, u := range p.Units {
		c := r.pieces[u.Piece]
		if u.Piece == nil || c == nil || !c.sized {
			continue
		}
		for _, a := range c.artifacts {
			if !slices.Contains(out, a.Range) {
				out = append(out, a.Range)
			}
		}
	}
	return out
}

// total sums over artifacts.
func (r *Result) total() {
	const anySize, sized, extra = 0, 1, 2
	type group struct {
		kind int
		Range
	}
	by := map[group]*ShapeStats{}
	var order []group
	for i, a := range slices.Concat(r.Artifacts, r.Extras) {
		g, name := group{anySize, a.Range}, "any size"
		switch {
		case i >= len(r.Artifacts):
			g.kind, name = extra, "extern ops"
		case a.Key.Shape != "":
			g.kind, name = sized, a.Range.String()
		}
		s := by[g]
		if s == nil {
			s = &ShapeStats{Shape: name}
			by[g] = s
			order = append(order, g)
		}
		if a.Source == Loaded {
			r.Counters.Loaded++
			s.Loaded++
		} else {
			r.Counters.Compiled++
			s.Compiled++
		}
		r.Counters.Bytes += int64(a.Bytes)
		s.Bytes += int64(a.Bytes)
		s.Duration += a.Duration
	}
	slices.SortFunc(order, func(x, y group) int {
		return cmp.Or(cmp.Compare(x.kind, y.kind), cmp.Compare(x.Lo, y.Lo), cmp.Compare(x.Hi, y.Hi))
	})
	for _, g := range order {
		r.ByShape = append(r.ByShape, *by[g])
	}
}
