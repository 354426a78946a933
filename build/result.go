package build

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pwc/program"
	"pwc/split"
)

// Counters are vLLM's compilation counters by their names, and what really
// happened beside them. Compiled + Loaded are the distinct artifacts; with
// Deduplicated they are all artifacts that pieces asked for.
type Counters struct {
	GraphsSeen                    int `json:"num_graphs_seen"`                      // functions
	PiecewiseGraphsSeen           int `json:"num_piecewise_graphs_seen"`            // items, splitting ones too
	PiecewiseCapturableGraphsSeen int `json:"num_piecewise_capturable_graphs_seen"` // items that are not splitting

	// BackendCompilations counts the capturable pieces, once for each shape that
	// they are compiled for, whether identical to another, stored or not.
	BackendCompilations int `json:"num_backend_compilations"`

	Compiled     int   `json:"compiled"`
	Deduplicated int   `json:"deduplicated"` // served by an artifact of another piece
	Loaded       int   `json:"loaded"`       // from the store
	Bytes        int64 `json:"bytes"`        // of all encoded programs
}

// ShapeStats sums the artifacts of one range of sizes.
type ShapeStats struct {
	Shape            string // Range in text; "any size" for pieces that do not depend on it
	Compiled, Loaded int
	Bytes            int64
	Duration         time.Duration // of making them, summed over jobs
}

// Result is the outcome of a build.
type Result struct {
	Counters  Counters
	Artifacts []*Artifact  // distinct, in order of first use
	ByShape   []ShapeStats // any size, then exact sizes and ranges rising

	// Warnings are failures of the store that the build went on without, in order
	// of artifacts.
	Warnings []error

	pieces map[*split.Piece]*choice
}

// choice is the artifacts of one piece: exact sizes first, then ranges.
type choice struct {
	sized     bool
	artifacts []*Artifact
}

// Program returns the program that serves a piece at a size: that of the exact
// size if there is one, else that of the range. For a piece that does not
// depend on the size there is one program. A size that nothing serves is an
// [*UncoveredError].
func (r *Result) Program(piece *split.Piece, size int64) (*program.Program, error) {
	a, err := r.Artifact(piece, size)
	if err != nil {
		return nil, err
	}
	return a.Program, nil
}

// Artifact is Program with all that is known of it.
func (r *Result) Artifact(piece *split.Piece, size int64) (*Artifact, error) {
	c := r.pieces[piece]
	if c == nil {
		return nil, fmt.Errorf("the piece is not of this build")
	}
	var ranges []Range
	for _, a := range c.artifacts { // exact sizes stand first
		if !c.sized || a.Range.Lo <= size && size <= a.Range.Hi {
			return a, nil
		}
		ranges = append(ranges, a.Range)
	}
	return nil, &UncoveredError{Size: size, Ranges: ranges}
}

// total fills what is summed over artifacts.
func (r *Result) total() {
	type group struct {
		sized bool
		Range
	}
	by := map[group]*ShapeStats{}
	var order []group
	for _, a := range r.Artifacts {
		g := group{a.Key.Shape != "", a.Range}
		s := by[g]
		if s == nil {
			s = &ShapeStats{Shape: a.Range.String()}
			if !g.sized {
				s.Shape = "any size"
			}
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
		if x.sized != y.sized {
			if y.sized {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(x.Lo, y.Lo), cmp.Compare(x.Hi, y.Hi))
	})
	for _, g := range order {
		r.ByShape = append(r.ByShape, *by[g])
	}
}
