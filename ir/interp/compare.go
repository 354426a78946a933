package interp

import (
	"fmt"
	"math"
	"slices"
)

// Diff is the difference of two tensors.
type Diff struct {
	RelL2  float64 // ‖a−b‖/‖b‖; 0: equal; +Inf: shapes or non-finite elements differ, or only b is zero
	MaxAbs float64 // largest |a−b|
	Worst  int     // element with the largest |a−b|; -1: no element differs, or the shapes do
	A, B   float64 // its values

	NonFinite int    // elements where a NaN or an infinity is compared with a different value
	Shape     string // why the shapes cannot be compared; empty: they are equal
}

// Compare returns the difference of a and the reference b. They need the same shape, not the same
// dtype. A NaN equals a NaN, an infinity the same infinity, and a zero a zero of either sign.
// Floats of dtypes that do not compute are compared as their bit patterns.
func Compare(a, b *Tensor) Diff {
	if a == nil || b == nil {
		return Diff{RelL2: math.Inf(1), MaxAbs: math.Inf(1), Worst: -1, Shape: "a tensor is missing"}
	}
	if !slices.Equal(a.Shape, b.Shape) {
		return Diff{RelL2: math.Inf(1), MaxAbs: math.Inf(1), Worst: -1, Shape: fmt.Sprintf("%s against %s", a, b)}
	}
	d := Diff{Worst: -1}
	var squares, reference float64
	for i := range a.Len() {
		x, y := a.At(i), b.At(i)
		if finite(y) {
			reference += y * y
		}
		diff := math.Abs(x - y)
		switch {
		case isFloat(a.Type) || isFloat(b.Type):
			if x == y || x != x && y != y {
				continue
			}
		case a.ints[i] == b.ints[i]:
			continue
		case diff == 0: // i64 beyond 2^53: equal after rounding, so close
			diff = math.Abs(float64(a.ints[i] - b.ints[i]))
		}
		if !finite(x) || !finite(y) {
			d.NonFinite++
			diff = math.Inf(1)
		}
		squares += diff * diff
		if d.Worst < 0 || diff > d.MaxAbs {
			d.Worst, d.MaxAbs, d.A, d.B = i, diff, x, y
		}
	}
	if d.Worst >= 0 {
		d.RelL2 = math.Sqrt(squares / reference) // x/0 is +Inf
	}
	return d
}

func finite(x float64) bool { return x-x == 0 }

// Equal reports whether the tensors are equal.
func (d Diff) Equal() bool { return d.Worst < 0 && d.Shape == "" }

// Within reports whether the relative L2 error is at most tol.
func (d Diff) Within(tol float64) bool { return d.RelL2 <= tol }

// String describes the difference in one line.
func (d Diff) String() string {
	switch {
	case d.Shape != "":
		return "shapes differ: " + d.Shape
	case d.Worst < 0:
		return "equal"
	}
	s := fmt.Sprintf("relative L2 error %.3g, worst at element %d: %v, want %v", d.RelL2, d.Worst, d.A, d.B)
	if d.NonFinite > 0 {
		s += fmt.Sprintf(" (%d elements differ by a NaN or an infinity)", d.NonFinite)
	}
	return s
}

// sameBits reports whether two tensors of one type have equal values, including the signs of
// zeros. A NaN equals a NaN.
func sameBits(a, b *Tensor) bool {
	same := func(x, y float64) bool { return math.Float64bits(x) == math.Float64bits(y) || x != x && y != y }
	return slices.EqualFunc(a.floats, b.floats, same) && slices.Equal(a.ints, b.ints)
}
