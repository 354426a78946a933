package dim

import (
	"fmt"
	"slices"
)

// UnboundError says that a symbol has no value.
type UnboundError struct{ Symbol string }

// Error names the symbol.
func (e *UnboundError) Error() string {
	return fmt.Sprintf("dim: symbol %s has no value", e.Symbol)
}

// Eval returns d's value where env gives each symbol's. It returns an
// *UnboundError for a symbol that env does not know, ErrOverflow if a step of
// the sum of products leaves int64, and d's own error if it carries one.
func (d Dim) Eval(env func(sym string) (int64, bool)) (int64, error) {
	if d.p == nil {
		return d.k, nil
	}
	if d.p.err != nil {
		return 0, d.p.err
	}
	sum := d.k
	for i := range d.p.terms {
		t := &d.p.terms[i]
		product := t.coef
		for _, a := range t.mono {
			v, err := a.eval(env)
			if err != nil {
				return 0, err
			}
			var ok bool
			if product, ok = mul(product, v); !ok {
				return 0, fmt.Errorf("%w: evaluating %s", ErrOverflow, d.brief())
			}
		}
		var ok bool
		if sum, ok = add(sum, product); !ok {
			return 0, fmt.Errorf("%w: evaluating %s", ErrOverflow, d.brief())
		}
	}
	return sum, nil
}

func (a atom) eval(env func(string) (int64, bool)) (int64, error) {
	if a.q == nil {
		v, ok := env(a.name)
		if !ok {
			return 0, &UnboundError{a.name}
		}
		return v, nil
	}
	v, err := a.q.num.Eval(env)
	if err != nil {
		return 0, err
	}
	v, _ = floorDivMod(v, a.q.c)
	return v, nil
}

// Interval is the integers from Lo to Hi, both included. Lo > Hi is empty.
type Interval struct{ Lo, Hi int64 }

// Bounds returns an interval that holds every value d takes while each symbol
// stays within its interval from sym. It is sound and not always tight: terms
// are bounded one by one. It returns false if sym does not know a symbol or
// gives an empty interval, on overflow, and if d carries an error.
func (d Dim) Bounds(sym func(string) (Interval, bool)) (Interval, bool) {
	if d.Err() != nil {
		return Interval{}, false
	}
	sum := Interval{d.k, d.k}
	for _, t := range d.terms() {
		product := Interval{t.coef, t.coef}
		for _, a := range t.mono {
			v, ok := a.bounds(sym)
			if !ok {
				return Interval{}, false
			}
			if product, ok = product.mul(v); !ok {
				return Interval{}, false
			}
		}
		lo, ok1 := add(sum.Lo, product.Lo)
		hi, ok2 := add(sum.Hi, product.Hi)
		if !ok1 || !ok2 {
			return Interval{}, false
		}
		sum = Interval{lo, hi}
	}
	return sum, true
}

func (a atom) bounds(sym func(string) (Interval, bool)) (Interval, bool) {
	if a.q == nil {
		v, ok := sym(a.name)
		return v, ok && v.Lo <= v.Hi
	}
	v, ok := a.q.num.Bounds(sym)
	v.Lo, _ = floorDivMod(v.Lo, a.q.c)
	v.Hi, _ = floorDivMod(v.Hi, a.q.c)
	return v, ok
}

// mul returns the hull of the products of numbers in i and j.
func (i Interval) mul(j Interval) (Interval, bool) {
	a, ok1 := mul(i.Lo, j.Lo)
	b, ok2 := mul(i.Lo, j.Hi)
	c, ok3 := mul(i.Hi, j.Lo)
	d, ok4 := mul(i.Hi, j.Hi)
	return Interval{min(a, b, c, d), max(a, b, c, d)}, ok1 && ok2 && ok3 && ok4
}

// Subst returns d with each symbol that f knows replaced, all at once: symbols
// of the replacements are not looked up again.
func (d Dim) Subst(f func(sym string) (Dim, bool)) Dim {
	if d.p == nil || d.p.err != nil {
		return d
	}
	sum := Const(d.k)
	for _, t := range d.p.terms {
		product := Const(t.coef)
		for _, a := range t.mono {
			product = product.Mul(a.subst(f))
		}
		sum = sum.Add(product)
	}
	return sum
}

func (a atom) subst(f func(string) (Dim, bool)) Dim {
	if a.q != nil {
		return a.q.num.Subst(f).FloorDiv(a.q.c)
	}
	if e, ok := f(a.name); ok {
		return e
	}
	return fromAtom(a)
}

// Symbols returns the names of the symbols in d's normal form, sorted, each
// once. A Dim with an error has none.
func (d Dim) Symbols() []string {
	names := d.appendSymbols(nil)
	slices.Sort(names)
	return slices.Compact(names)
}

func (d Dim) appendSymbols(names []string) []string {
	for _, t := range d.terms() {
		for _, a := range t.mono {
			if a.q != nil {
				names = a.q.num.appendSymbols(names)
			} else {
				names = append(names, a.name)
			}
		}
	}
	return names
}

// Div returns q with d = q·e as polynomials, quotients counting as symbols, and
// false if there is none with integer coefficients: (768·N) / 768 is N, and
// (N·M + N) / N is M + 1. q is d / e for all values of symbols for which e is not 0.
// Div returns false if e is the constant 0, if a number of the division overflows or an
// expression exceeds the size limit, or if d or e carries an error.
func (d Dim) Div(e Dim) (q Dim, ok bool) {
	if d.Err() != nil || e.Err() != nil {
		return Dim{}, false
	}
	lead := e.lead()
	if lead.coef == 0 {
		return Dim{}, false
	}
	// Long division by the leading term. Each step cancels d's leading term and
	// gives q a new one, so the size limit bounds the steps.
	for {
		top := d.lead()
		if top.coef == 0 {
			return q, true
		}
		mono, divides := divMonomials(top.mono, lead.mono)
		if !divides || top.coef%lead.coef != 0 {
			return Dim{}, false
		}
		// MinInt64 / -1 wraps, and the product below then overflows.
		step := Const(top.coef / lead.coef)
		if len(mono) > 0 {
			step = Dim{p: subset([]term{{step.k, mono}})}
		}
		q = q.Add(step)
		d = d.Sub(step.Mul(e))
		if q.Err() != nil || d.Err() != nil {
			return Dim{}, false
		}
	}
}

// lead returns d's leading term, which has no atoms if d is a constant.
func (d Dim) lead() term {
	if d.p == nil {
		return term{coef: d.k}
	}
	return d.p.terms[0]
}
