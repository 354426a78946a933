package pieces

import (
	"fmt"
	"slices"
	"strings"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/padding"
	"pwc/split"
)

// Shapes selects the ranges of one size symbol for which artifacts are made. The zero value makes
// only the general artifact, for the declared range.
type Shapes struct {
	// Endpoints e0 < e1 < … cut the range of the symbol, from its least value L: general
	// artifacts cover [L, e0], [e0+1, e1], …, [last+1, Max]. An endpoint may be L up to Max; Max
	// itself has no effect.
	Endpoints []int64

	// Max is the largest size; 0 means the symbol's largest.
	Max int64

	// Each of Sizes gets its own artifact, which takes precedence over the range. Order and
	// repetition do not matter.
	Sizes []int64
}

// Range is an inclusive range of sizes; one with Lo == Hi is exact.
type Range struct{ Lo, Hi int64 }

// String returns "[1, 512]" or, for one size, "64".
func (r Range) String() string {
	if r.Lo == r.Hi {
		return fmt.Sprint(r.Lo)
	}
	return fmt.Sprintf("[%d, %d]", r.Lo, r.Hi)
}

// Ranges returns the ranges of artifacts for a symbol that is declared in [lo, hi]: exact sizes
// ascending, then general ranges ascending.
func (s Shapes) Ranges(lo, hi int64) ([]Range, error) {
	top := s.Max
	if top == 0 {
		top = hi
	}
	if top < lo || top > hi {
		return nil, fmt.Errorf("the largest size %d is outside the declared range [%d, %d]", s.Max, lo, hi)
	}
	var out []Range
	sizes := slices.Clone(s.Sizes)
	slices.Sort(sizes)
	for _, n := range slices.Compact(sizes) {
		if n < lo || n > top {
			return nil, fmt.Errorf("compile size %d is outside [%d, %d]", n, lo, top)
		}
		out = append(out, Range{n, n})
	}
	from := lo
	for i, e := range s.Endpoints {
		if e < lo || e > top {
			return nil, fmt.Errorf("range endpoint %d is outside [%d, %d]", e, lo, top)
		}
		if i > 0 && e <= s.Endpoints[i-1] {
			return nil, fmt.Errorf("range endpoints must rise, %d follows %d", e, s.Endpoints[i-1])
		}
		out = append(out, Range{from, e})
		from = e + 1
	}
	if from <= top {
		out = append(out, Range{from, top})
	}
	// If a range is one value that is also a compile size, it is one artifact.
	seen := map[Range]bool{}
	return slices.DeleteFunc(out, func(r Range) bool {
		again := seen[r]
		seen[r] = true
		return again
	}), nil
}

// planShapes has the ranges of one plan's size symbol.
type planShapes struct {
	symbol string // of the module; empty: the function has no size symbol
	ranges []Range
}

// shapesOf returns the ranges of every plan. An entry of shapes without a plan is an error,
// because it would have no effect.
func shapesOf(plans []*split.Plan, shapes map[string]Shapes) ([]planShapes, error) {
	used := map[string]bool{}
	out := make([]planShapes, len(plans))
	for i, p := range plans {
		name, ok := padding.SizeSymbol(p.Module, p.Func)
		if !ok {
			continue
		}
		used[name] = true
		s := p.Module.Symbol(name)
		ranges, err := shapes[name].Ranges(s.Lo, s.Hi)
		if err != nil {
			return nil, fmt.Errorf("@%s, sizes of %s: %w", p.Func.Name, name, err)
		}
		out[i] = planShapes{symbol: name, ranges: ranges}
	}
	var unused []string
	for name := range shapes {
		if !used[name] {
			unused = append(unused, name)
		}
	}
	if len(unused) > 0 {
		slices.Sort(unused)
		return nil, fmt.Errorf("sizes are given for %s, which no function is sized by", strings.Join(unused, ", "))
	}
	return out, nil
}

// pieceSymbol returns the piece's name of a module symbol; "" if the piece does not depend on it.
func pieceSymbol(p *split.Piece, module string) string {
	if i := slices.Index(p.Symbols, module); i >= 0 && module != "" {
		return p.Module.Symbols[i].Name
	}
	return ""
}

// shape returns the narrowed ranges of a piece, by the piece's symbols. Other symbols keep their
// declared range.
func shape(symbol string, r Range) map[string]dim.Interval {
	if symbol == "" {
		return nil
	}
	return map[string]dim.Interval{symbol: {Lo: r.Lo, Hi: r.Hi}}
}

// shapeText returns the shape factor of a key: "s0=[1, 512]", or "" for a piece that does not
// depend on the size.
func shapeText(symbol string, r Range) string {
	if symbol == "" {
		return ""
	}
	return symbol + "=" + r.String()
}

// externText lists the extern ops of a piece with their versions.
func externText(m *ir.Module) string {
	parts := make([]string, len(m.Externs))
	for i, e := range m.Externs {
		parts[i] = fmt.Sprintf("%s@%q", e.Name, e.Version)
	}
	return strings.Join(parts, " ")
}
