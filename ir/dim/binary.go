package dim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrEncoding says that bytes are not a Dim as AppendBinary writes it.
var ErrEncoding = errors.New("dim: not an encoded dim")

// The encoding, little-endian:
//
//	dim    = terms:u16 constant:i64 term*
//	term   = coefficient:i64 factors:u16 factor*
//	factor = 0:u8 length:u8 name
//	       | 1:u8 divisor:i64 dim
//
// Terms and factors are in the order of the normal form, so that equal Dims
// have equal bytes, and Decode accepts nothing else.
const (
	factorSymbol   = 0
	factorQuotient = 1
	encodedError   = math.MaxUint16 // in place of the number of terms
)

// Least bytes of a term and a factor, which bound what a count may claim.
const (
	minTermBytes   = 8 + 2 + minFactorBytes
	minFactorBytes = 1 + 1 + 1
)

// AppendBinary appends d's encoding. Equal Dims give equal bytes on every
// machine. A Dim with an error gives bytes that Decode refuses; check Err first.
func (d Dim) AppendBinary(b []byte) []byte {
	if d.Err() != nil {
		return binary.LittleEndian.AppendUint16(b, encodedError)
	}
	terms := d.terms()
	b = binary.LittleEndian.AppendUint16(b, uint16(len(terms)))
	b = binary.LittleEndian.AppendUint64(b, uint64(d.k))
	for _, t := range terms {
		b = binary.LittleEndian.AppendUint64(b, uint64(t.coef))
		b = binary.LittleEndian.AppendUint16(b, uint16(len(t.mono)))
		for _, a := range t.mono {
			if a.q == nil {
				b = append(b, factorSymbol, byte(len(a.name)))
				b = append(b, a.name...)
				continue
			}
			b = append(b, factorQuotient)
			b = binary.LittleEndian.AppendUint64(b, uint64(a.q.c))
			b = a.q.num.AppendBinary(b)
		}
	}
	return b
}

// Decode reads one Dim from the front of b and returns what follows it. Bytes
// that AppendBinary would not have written give an error that wraps
// ErrEncoding; time and memory are bounded by the length of b.
func Decode(b []byte) (d Dim, rest []byte, err error) {
	r := reader{b: b, full: len(b)}
	d = r.dim(0)
	if r.err != nil {
		return Dim{}, b, r.err
	}
	return d, r.b, nil
}

// reader takes bytes from the front of b. After err is set it returns zeros.
type reader struct {
	b    []byte
	full int // len(b) at the start
	err  error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: byte %d: %s", ErrEncoding, r.full-len(r.b), fmt.Sprintf(format, args...))
	}
	r.b = nil
}

// take returns the next n bytes, or nil.
func (r *reader) take(n int) []byte {
	if r.err != nil || len(r.b) < n {
		r.fail("ends early")
		return nil
	}
	p := r.b[:n:n]
	r.b = r.b[n:]
	return p
}

func (r *reader) u8() int {
	if p := r.take(1); p != nil {
		return int(p[0])
	}
	return 0
}

func (r *reader) u16() int {
	if p := r.take(2); p != nil {
		return int(binary.LittleEndian.Uint16(p))
	}
	return 0
}

func (r *reader) i64() int64 {
	if p := r.take(8); p != nil {
		return int64(binary.LittleEndian.Uint64(p))
	}
	return 0
}

func (r *reader) dim(depth int) Dim {
	if depth > maxDepth {
		r.fail("quotients nest deeper than %d", maxDepth)
		return Dim{}
	}
	n := r.u16()
	k := r.i64()
	if n > maxSize || n*minTermBytes > len(r.b) {
		r.fail("%d terms do not fit", n)
	}
	if r.err != nil || n == 0 {
		return Const(k)
	}
	terms := make([]term, n)
	for i := range terms {
		t := r.term(depth)
		if r.err != nil {
			return Dim{}
		}
		if i > 0 && compareMonomials(terms[i-1].mono, t.mono) >= 0 {
			r.fail("terms out of order")
			return Dim{}
		}
		terms[i] = t
	}
	p, err := makePoly(terms)
	if err != nil {
		r.fail("%v", err)
		return Dim{}
	}
	return Dim{k: k, p: p}
}

func (r *reader) term(depth int) term {
	coef := r.i64()
	n := r.u16()
	if r.err == nil && (coef == 0 || n == 0) {
		r.fail("a term with coefficient %d and %d factors", coef, n)
	}
	if n > maxSize || n*minFactorBytes > len(r.b) {
		r.fail("%d factors do not fit", n)
	}
	if r.err != nil {
		return term{}
	}
	mono := make([]atom, n)
	for i := range mono {
		a := r.factor(depth)
		if r.err != nil {
			return term{}
		}
		if i > 0 && compareAtoms(mono[i-1], a) > 0 {
			r.fail("factors out of order")
			return term{}
		}
		mono[i] = a
	}
	return term{coef, mono}
}

func (r *reader) factor(depth int) atom {
	switch kind := r.u8(); kind {
	case factorSymbol:
		name := string(r.take(r.u8()))
		if r.err == nil && !ValidName(name) {
			r.fail("%q is not a symbol name", name)
		}
		return atom{name: name}
	case factorQuotient:
		c := r.i64()
		num := r.dim(depth + 1)
		if r.err != nil {
			return atom{}
		}
		// Dividing again must change nothing, or this is not the normal form.
		again := num.FloorDiv(c)
		if again.Err() != nil || again.k != 0 || again.p == nil || len(again.p.terms) != 1 {
			r.fail("a quotient is not in normal form")
			return atom{}
		}
		t := again.p.terms[0]
		if t.coef != 1 || len(t.mono) != 1 || t.mono[0].q == nil || !t.mono[0].q.num.Equal(num) {
			r.fail("a quotient is not in normal form")
			return atom{}
		}
		return t.mono[0]
	default:
		r.fail("unknown factor %d", kind)
		return atom{}
	}
}
