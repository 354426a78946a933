// Package dim is the arithmetic of tensor extents: integer polynomials over
// named symbols, plus floor division by positive constants.
//
// A Dim is an immutable value in normal form. Two Dims are equal exactly when
// their normal forms match; Dims that differ may still have the same values.
// The normal form applies the ring laws, and these laws of floor division:
//
//	(c·p + q) / c     = p + q / c                every coefficient of q in [0, c)
//	(g·p + r) / (g·c) = (p + r / g) / c          r an integer
//	(x + p / a) / b   = (a·x + p) / (a·b)        if x has no quotient with coefficient 1,
//	                                             and the right side is within the limits
//
// so N + (N + 16) / 16 prints as "N + N / 16 + 1". Symbols range over all
// integers: nothing here assumes that an extent is positive.
//
// Arithmetic is in int64 and checked. A coefficient that overflows, a divisor
// below 1, an invalid name or an expression over a limit makes a Dim that carries
// the error. Each Dim that is computed from it carries the error too; see Err. So a
// shape rule can be written as a formula and checked once at its end.
package dim

import (
	"errors"
	"fmt"
	"math/bits"
)

// Errors that a Dim may carry or an evaluation return, for errors.Is.
var (
	// ErrOverflow says that a number left the range of int64.
	ErrOverflow = errors.New("dim: overflows int64")
	// ErrDivisor says that FloorDiv was asked to divide by 0 or less.
	ErrDivisor = errors.New("dim: divisor is not positive")
	// ErrTooLarge says that an expression exceeds the limit on its size or on nested
	// floor divisions. The limits bound the work of parsing untrusted text.
	ErrTooLarge = errors.New("dim: expression too large")
	// ErrName says that a symbol's name is not one that ValidName accepts.
	ErrName = errors.New("dim: not a symbol name")
)

// Limits on one expression. A shape of a real model has a handful of nodes.
const (
	maxSize  = 1024 // terms, factors and the nodes of nested quotients, summed
	maxDepth = 32   // floor divisions within floor divisions
	maxName  = 255  // bytes of a symbol's name
)

// Dim is an extent. The zero value is the constant 0. Dims are compared with
// Equal, not with ==, which does not compile.
type Dim struct {
	_ [0]func()
	k int64 // the constant term
	p *poly // the other terms; nil if none
}

// Const returns the constant k. It allocates nothing.
func Const(k int64) Dim { return Dim{k: k} }

// Sym returns the symbol of that name. A name that ValidName rejects gives a
// Dim with ErrName.
func Sym(name string) Dim {
	if !ValidName(name) {
		return failed(fmt.Errorf("%w: %q", ErrName, name))
	}
	return fromAtom(atom{name: name})
}

// ValidName reports whether name can name a symbol: an ASCII letter or '_',
// then letters, digits, '_' and '.', 255 bytes at most.
func ValidName(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for i := range len(name) {
		if !isNameByte(name[i], i == 0) {
			return false
		}
	}
	return true
}

func isNameByte(c byte, first bool) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '_':
		return true
	case '0' <= c && c <= '9', c == '.':
		return !first
	}
	return false
}

// failed returns a Dim that carries err.
func failed(err error) Dim { return Dim{p: &poly{err: err}} }

// Err returns the error that d carries, an error of the computation that made d, or nil.
func (d Dim) Err() error {
	if d.p == nil {
		return nil
	}
	return d.p.err
}

// firstErr returns the first of d and e that carries an error, and true if there is one.
func firstErr(d, e Dim) (Dim, bool) {
	if d.Err() != nil {
		return d, true
	}
	return e, e.Err() != nil
}

// Const returns d's value if d is a constant. A Dim with an error is no constant.
func (d Dim) Const() (int64, bool) { return d.k, d.p == nil }

// Add returns d + e.
func (d Dim) Add(e Dim) Dim { return d.addScaled(e, 1) }

// Sub returns d − e.
func (d Dim) Sub(e Dim) Dim { return d.addScaled(e, -1) }

// addScaled returns d + s·e, s being 1 or −1.
func (d Dim) addScaled(e Dim, s int64) Dim {
	if bad, is := firstErr(d, e); is {
		return bad
	}
	k, ok := mulAdd(d.k, s, e.k)
	if !ok {
		return failed(fmt.Errorf("%w: adding %s and %s", ErrOverflow, d.brief(), e.brief()))
	}
	switch {
	case e.p == nil:
		return Dim{k: k, p: d.p}
	case d.p == nil && s == 1:
		return Dim{k: k, p: e.p}
	}
	p, err := mergeTerms(d.terms(), e.terms(), s)
	if err != nil {
		return failed(fmt.Errorf("%w: adding %s and %s", err, d.brief(), e.brief()))
	}
	return Dim{k: k, p: p}
}

// Mul returns d · e.
func (d Dim) Mul(e Dim) Dim {
	if bad, is := firstErr(d, e); is {
		return bad
	}
	if d.p == nil {
		d, e = e, d
	}
	k, ok := mul(d.k, e.k)
	if !ok {
		return failed(fmt.Errorf("%w: multiplying %s and %s", ErrOverflow, d.brief(), e.brief()))
	}
	var p *poly
	var err error
	if e.p == nil {
		p, err = scaleTerms(d.p, e.k)
	} else {
		p, err = mulTerms(d, e)
	}
	if err != nil {
		return failed(fmt.Errorf("%w: multiplying %s and %s", err, d.brief(), e.brief()))
	}
	return Dim{k: k, p: p}
}

// Equal reports whether d and e have the same normal form. A Dim that carries
// an error equals nothing, itself included.
func (d Dim) Equal(e Dim) bool {
	if d.Err() != nil || e.Err() != nil || d.k != e.k {
		return false
	}
	return d.p == e.p || compareTerms(d.terms(), e.terms()) == 0
}

// Compare orders Dims totally, for canonical sorting. Constants come first, by
// value; Dims with errors last, by their text. For Dims without errors it is 0
// exactly if they are equal; for errors, if their texts are.
// The order says nothing about the values that Dims take.
func (d Dim) Compare(e Dim) int {
	return compareDims(d, e)
}

// terms returns the non-constant terms, in order. Callers must not write to them.
func (d Dim) terms() []term {
	if d.p == nil {
		return nil
	}
	return d.p.terms
}

// size returns the size that maxSize limits.
func (d Dim) size() int {
	if d.p == nil {
		return 0
	}
	return d.p.size
}

// mul returns a·b and whether it fits.
func mul(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	// The unsigned high word of the product, corrected to the signed one.
	h := int64(hi) - a>>63&b - b>>63&a
	return int64(lo), h == int64(lo)>>63
}

// add returns a+b and whether it fits.
func add(a, b int64) (int64, bool) {
	s := a + b
	return s, (a^s)&(b^s) >= 0
}

// mulAdd returns a + s·b for s of 1 or −1, and whether it fits.
func mulAdd(a, s, b int64) (int64, bool) {
	if s == 1 {
		return add(a, b)
	}
	r := a - b
	return r, (a^b)&(a^r) >= 0
}
