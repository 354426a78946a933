package dim

import "fmt"

// FloorDiv returns floor(d / c). A divisor below 1 gives a Dim with ErrDivisor.
func (d Dim) FloorDiv(c int64) Dim {
	if d.Err() != nil {
		return d
	}
	if c < 1 {
		return failed(fmt.Errorf("%w: %s / %d", ErrDivisor, d.brief(), c))
	}
	// Each round applies the three laws of the package comment once. The third law
	// removes a quotient, so the rounds end.
	whole := Dim{}
	for {
		q, r := d.divMod(c)
		whole = whole.Add(q)
		if r.p == nil {
			return whole // r is in [0, c)
		}
		r, c = r.reduce(c)
		inner, innerC, ok := r.unnest(c)
		if !ok {
			rest := fromAtom(atom{q: &quotient{num: r, c: c}})
			if rest.p.size > maxSize || rest.p.depth > maxDepth {
				return failed(fmt.Errorf("%w: %s / %d", ErrTooLarge, r.brief(), c))
			}
			return whole.Add(rest)
		}
		d, c = inner, innerC
	}
}

// CeilDiv returns ceil(d / c), which is (d + c − 1) / c.
func (d Dim) CeilDiv(c int64) Dim {
	if c < 1 {
		return d.FloorDiv(c)
	}
	return d.Add(Const(c - 1)).FloorDiv(c)
}

// divMod returns q and r with d = c·q + r and every coefficient of r in [0, c).
func (d Dim) divMod(c int64) (q, r Dim) {
	q.k, r.k = floorDivMod(d.k, c)
	if d.p == nil {
		return q, r
	}
	var qs, rs []term
	for _, t := range d.p.terms {
		a, b := floorDivMod(t.coef, c)
		if a != 0 {
			qs = append(qs, term{a, t.mono})
		}
		if b != 0 {
			rs = append(rs, term{b, t.mono})
		}
	}
	switch {
	case len(qs) == 0:
		r.p = d.p
	case len(rs) == 0 && c == 1:
		q.p = d.p
	default:
		q.p, r.p = subset(qs), subset(rs)
	}
	return q, r
}

// subset wraps terms over monomials of one poly, which are within the limits.
func subset(terms []term) *poly {
	if len(terms) == 0 {
		return nil
	}
	p := &poly{terms: terms}
	p.size, p.depth = measure(terms)
	return p
}

// reduce returns the numerator and the divisor of d / c, with c and the coefficients of d
// divided by their greatest common divisor g. The constant k of d need not be a multiple of
// g, because (g·p + k) / (g·c) = (p + k / g) / c.
func (d Dim) reduce(c int64) (Dim, int64) {
	g := c
	for _, t := range d.p.terms {
		for b := t.coef; b != 0; {
			g, b = b, g%b
		}
		if g == 1 {
			return d, c
		}
	}
	terms := make([]term, len(d.p.terms))
	for i, t := range d.p.terms {
		terms[i] = term{t.coef / g, t.mono}
	}
	return Dim{k: d.k / g, p: &poly{terms: terms, size: d.p.size, depth: d.p.depth}}, c / g
}

// unnest turns (x + p / a) / c into (a·x + p) / (a·c) when p / a is the one term
// of d that is a quotient with coefficient 1, and the result fits.
func (d Dim) unnest(c int64) (Dim, int64, bool) {
	at := -1
	for i, t := range d.p.terms {
		if t.coef == 1 && len(t.mono) == 1 && t.mono[0].q != nil {
			if at >= 0 {
				return Dim{}, 0, false
			}
			at = i
		}
	}
	if at < 0 {
		return Dim{}, 0, false
	}
	q := d.p.terms[at].mono[0].q
	c, ok := mul(c, q.c)
	if !ok {
		return Dim{}, 0, false
	}
	num := d.Sub(fromAtom(d.p.terms[at].mono[0])).Mul(Const(q.c)).Add(q.num)
	return num, c, num.Err() == nil
}

// floorDivMod returns floor(a / c) and a − c·floor(a / c), for c > 0.
func floorDivMod(a, c int64) (q, r int64) {
	q, r = a/c, a%c
	if r < 0 {
		q, r = q-1, r+c
	}
	return q, r
}
