package dim

import (
	"cmp"
	"slices"
	"strings"
)

// poly is the non-constant part of a Dim. It is never written once made and is
// shared between Dims.
type poly struct {
	terms []term // sorted by compareMonomials, coefficients not 0
	size  int    // see maxSize
	depth int    // nesting of quotients
	err   error  // if not nil, the rest is empty
}

// term is coef · mono[0] · mono[1] · …
type term struct {
	coef int64
	mono []atom // at least one, sorted by compareAtoms; a power repeats its atom
}

// atom is an indeterminate of the polynomials: a symbol or, if q is not nil, a
// quotient.
type atom struct {
	name string
	q    *quotient
}

// quotient is floor(num / c) in the form that FloorDiv leaves.
type quotient struct {
	num Dim
	c   int64 // at least 2
}

// fromAtom returns 1·a in one allocation.
func fromAtom(a atom) Dim {
	m := &struct {
		poly
		term [1]term
		atom [1]atom
	}{}
	m.atom[0] = a
	m.term[0] = term{1, m.atom[:]}
	m.terms = m.term[:]
	m.size, m.depth = measure(m.terms)
	return Dim{p: &m.poly}
}

// makePoly wraps sorted terms, which it keeps. No terms give nil. The depth needs no
// check here, because FloorDiv checks that of each quotient.
func makePoly(terms []term) (*poly, error) {
	if len(terms) == 0 {
		return nil, nil
	}
	p := &poly{terms: terms}
	p.size, p.depth = measure(terms)
	if p.size > maxSize {
		return nil, ErrTooLarge
	}
	return p, nil
}

// measure returns the size and depth of terms.
func measure(terms []term) (size, depth int) {
	for i := range terms {
		size += 1 + len(terms[i].mono)
		for _, a := range terms[i].mono {
			if a.q == nil {
				continue
			}
			size++
			depth = max(depth, 1)
			if p := a.q.num.p; p != nil {
				size += p.size
				depth = max(depth, 1+p.depth)
			}
		}
	}
	return size, depth
}

// mergeTerms returns a + s·b, s being 1 or −1.
func mergeTerms(a, b []term, s int64) (*poly, error) {
	out := make([]term, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		switch order := compareMonomials(a[0].mono, b[0].mono); {
		case order < 0:
			out, a = append(out, a[0]), a[1:]
		case order > 0:
			coef, ok := mulAdd(0, s, b[0].coef)
			if !ok {
				return nil, ErrOverflow
			}
			out, b = append(out, term{coef, b[0].mono}), b[1:]
		default:
			coef, ok := mulAdd(a[0].coef, s, b[0].coef)
			if !ok {
				return nil, ErrOverflow
			}
			if coef != 0 {
				out = append(out, term{coef, a[0].mono})
			}
			a, b = a[1:], b[1:]
		}
	}
	out = append(out, a...)
	for _, t := range b {
		coef, ok := mulAdd(0, s, t.coef)
		if !ok {
			return nil, ErrOverflow
		}
		out = append(out, term{coef, t.mono})
	}
	return makePoly(out)
}

// scaleTerms returns k·p.
func scaleTerms(p *poly, k int64) (*poly, error) {
	if p == nil || k == 0 {
		return nil, nil
	}
	if k == 1 {
		return p, nil
	}
	out := make([]term, len(p.terms))
	for i, t := range p.terms {
		coef, ok := mul(t.coef, k)
		if !ok {
			return nil, ErrOverflow
		}
		out[i] = term{coef, t.mono}
	}
	return &poly{terms: out, size: p.size, depth: p.depth}, nil
}

// mulTerms returns the non-constant part of d·e, neither being a constant.
func mulTerms(d, e Dim) (*poly, error) {
	a, b := d.p.terms, e.p.terms
	out := make([]term, 0, len(a)*len(b)+len(a)+len(b))
	put := func(x, y int64, mono []atom) bool {
		coef, ok := mul(x, y)
		if coef != 0 {
			out = append(out, term{coef, mono})
		}
		return ok
	}
	for _, s := range a {
		for _, t := range b {
			if !put(s.coef, t.coef, mulMonomials(s.mono, t.mono)) {
				return nil, ErrOverflow
			}
		}
		if !put(s.coef, e.k, s.mono) {
			return nil, ErrOverflow
		}
	}
	for _, t := range b {
		if !put(t.coef, d.k, t.mono) {
			return nil, ErrOverflow
		}
	}
	return collect(out)
}

// collect sorts terms and adds up those of one monomial, in place.
func collect(terms []term) (*poly, error) {
	slices.SortStableFunc(terms, func(s, t term) int { return compareMonomials(s.mono, t.mono) })
	out := terms[:0]
	for i := 0; i < len(terms); {
		t := terms[i]
		for i++; i < len(terms) && compareMonomials(t.mono, terms[i].mono) == 0; i++ {
			var ok bool
			if t.coef, ok = add(t.coef, terms[i].coef); !ok {
				return nil, ErrOverflow
			}
		}
		if t.coef != 0 {
			out = append(out, t)
		}
	}
	return makePoly(out)
}

// mulMonomials merges two sorted monomials.
func mulMonomials(a, b []atom) []atom {
	out := make([]atom, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if compareAtoms(a[0], b[0]) <= 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// divMonomials returns a / b if b's atoms are all in a.
func divMonomials(a, b []atom) ([]atom, bool) {
	out := make([]atom, 0, len(a))
	for _, x := range a {
		if len(b) > 0 && compareAtoms(x, b[0]) == 0 {
			b = b[1:]
			continue
		}
		out = append(out, x)
	}
	return out, len(b) == 0
}

// compareMonomials is graded lexicographic order, the larger first, which is
// the order of terms in a poly and in text. It is compatible with
// multiplication, as the division in Div needs.
func compareMonomials(a, b []atom) int {
	if len(a) != len(b) {
		return cmp.Compare(len(b), len(a))
	}
	return slices.CompareFunc(a, b, compareAtoms)
}

// compareAtoms orders symbols by name, then quotients by divisor and numerator.
func compareAtoms(a, b atom) int {
	switch {
	case a.q == nil && b.q == nil:
		return strings.Compare(a.name, b.name)
	case a.q == nil:
		return -1
	case b.q == nil:
		return 1
	case a.q == b.q:
		return 0
	}
	if c := cmp.Compare(a.q.c, b.q.c); c != 0 {
		return c
	}
	return compareDims(a.q.num, b.q.num)
}

func compareTerms(a, b []term) int {
	return slices.CompareFunc(a, b, func(s, t term) int {
		if c := compareMonomials(s.mono, t.mono); c != 0 {
			return c
		}
		return cmp.Compare(s.coef, t.coef)
	})
}

func compareDims(d, e Dim) int {
	derr, eerr := d.Err(), e.Err()
	switch {
	case derr != nil && eerr != nil:
		return strings.Compare(derr.Error(), eerr.Error())
	case derr != nil:
		return 1
	case eerr != nil:
		return -1
	}
	if d.p != e.p {
		if c := compareTerms(d.terms(), e.terms()); c != 0 {
			return c
		}
	}
	return cmp.Compare(d.k, e.k)
}
