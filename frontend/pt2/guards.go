package pt2

import (
	"errors"
	"fmt"
	"maps"

	"pwc/ir/dim"
)

// A guard is a relation of sizes that the export relies on. A guard that the ranges of the symbols imply is dropped.
// A guard that bounds one symbol narrows its range, which runs check when they bind sizes. Other guards are refused.

// guard applies a guard of the program before the symbols are declared, so that it can narrow their ranges.
func (s *symbols) guard(text string) error {
	e, err := parseExpr(text)
	if err == nil {
		if err = s.assume(e); err != nil {
			err = exprError(text, "%v", err)
		}
	}
	return err
}

// holds checks an assertion of the graph. The symbols are declared already, so the ranges must imply it.
func (s *symbols) holds(text string) error {
	e, err := parseExpr(text)
	if err != nil {
		return err
	}
	lo, hi := maps.Clone(s.lo), maps.Clone(s.hi)
	err = s.assume(e)
	if err == nil && !(maps.Equal(lo, s.lo) && maps.Equal(hi, s.hi)) {
		err = errors.New("the ranges of the dimensions do not imply it; export with narrower ranges, or fix dimensions (Options.Dims)")
	}
	s.lo, s.hi = lo, hi
	if err != nil {
		return exprError(text, "%v", err)
	}
	return nil
}

// implied reports whether a condition surely holds for all sizes in the ranges.
func (s *symbols) implied(e *expr) bool {
	lo, hi := maps.Clone(s.lo), maps.Clone(s.hi)
	err := s.assume(e)
	same := maps.Equal(lo, s.lo) && maps.Equal(hi, s.hi)
	s.lo, s.hi = lo, hi
	return err == nil && same
}

// assume narrows the ranges so that a condition holds.
func (s *symbols) assume(e *expr) error {
	if len(e.args) != 2 {
		return fmt.Errorf("it is not a relation of two sizes")
	}
	a, b := e.args[0], e.args[1]
	switch {
	case e.op == "And":
		return errors.Join(s.assume(a), s.assume(b))
	case e.op == "Or" && (s.implied(a) || s.implied(b)):
		return nil
	case e.op == "Or" && s.impossible(a):
		return s.assume(b)
	case e.op == "Or" && s.impossible(b):
		return s.assume(a)
	case e.op == "Or":
		return fmt.Errorf("the ranges of the dimensions decide neither of its parts; export with narrower ranges, or fix dimensions (Options.Dims)")
	}
	x, err := s.dim(a)
	if err != nil {
		return err
	}
	y, err := s.dim(b)
	if err != nil {
		return err
	}
	return s.relate(e.op, x.Sub(y))
}

// impossible reports whether a condition surely holds for no sizes in the ranges.
func (s *symbols) impossible(e *expr) bool {
	lo, hi := maps.Clone(s.lo), maps.Clone(s.hi)
	err := s.assume(e)
	s.lo, s.hi = lo, hi
	return errors.Is(err, errNever)
}

// errNever is wrapped by errors of conditions that no sizes in the ranges satisfy.
var errNever = errors.New("it does not hold in the ranges of the dimensions")

// relate narrows the ranges so that d op 0 holds.
func (s *symbols) relate(op string, d dim.Dim) error {
	switch op {
	case "Le":
		return s.atMostZero(d)
	case "Lt":
		return s.atMostZero(d.Add(dim.Const(1)))
	case "Ge":
		return s.atMostZero(dim.Const(0).Sub(d))
	case "Gt":
		return s.atMostZero(dim.Const(1).Sub(d))
	case "Eq":
		if d.Equal(dim.Const(0)) {
			return nil
		}
		if err := s.atMostZero(d); err != nil {
			return err
		}
		return s.atMostZero(dim.Const(0).Sub(d))
	case "Ne":
		return s.notZero(d)
	}
	return fmt.Errorf("%s is not a relation", op)
}

// linear returns the symbol, factor and constant of c*symbol + k.
func (s *symbols) linear(d dim.Dim) (name string, c, k int64, ok bool) {
	names := d.Symbols()
	if len(names) != 1 {
		return "", 0, 0, false
	}
	at := func(x int64) (int64, error) { return d.Eval(func(string) (int64, bool) { return x, true }) }
	k, err0 := at(0)
	k1, err1 := at(1)
	c = k1 - k
	if err0 != nil || err1 != nil || c == 0 {
		return "", 0, 0, false
	}
	return names[0], c, k, d.Equal(dim.Sym(names[0]).Mul(dim.Const(c)).Add(dim.Const(k)))
}

func (s *symbols) atMostZero(d dim.Dim) error {
	iv, ok := d.Bounds(s.bounds)
	if ok && iv.Hi <= 0 {
		return nil
	}
	if ok && iv.Lo > 0 {
		return errNever
	}
	name, c, k, ok := s.linear(d)
	if !ok {
		return fmt.Errorf("it is not a bound of one dimension, and the ranges do not imply it; fix dimensions (Options.Dims) or export with narrower ranges")
	}
	// c*x + k <= 0
	if c > 0 {
		s.hi[name] = min(s.hi[name], floorDiv(-k, c))
	} else {
		s.lo[name] = max(s.lo[name], -floorDiv(-k, -c))
	}
	if s.lo[name] > s.hi[name] {
		return fmt.Errorf("%w: no size of %s is left", errNever, name)
	}
	return nil
}

// floorDiv rounds down.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}

func (s *symbols) notZero(d dim.Dim) error {
	iv, ok := d.Bounds(s.bounds)
	if ok && (iv.Lo > 0 || iv.Hi < 0) {
		return nil
	}
	name, c, k, linear := s.linear(d)
	switch {
	case linear && k%c != 0:
		return nil
	case linear && s.lo[name] == -k/c:
		s.lo[name]++
	case linear && s.hi[name] == -k/c:
		s.hi[name]--
	default:
		return fmt.Errorf("it excludes a size in the middle of a range, which is not supported; fix dimensions (Options.Dims) or export with narrower ranges")
	}
	if s.lo[name] > s.hi[name] {
		return fmt.Errorf("%w: no size of %s is left", errNever, name)
	}
	return nil
}
