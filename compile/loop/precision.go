package loop

import (
	"fmt"
	"strings"
)

// Precision is the precision of f32 GEMMs. GEMMs of other dtypes ignore it.
type Precision uint8

// The precisions. Each allows everything that the one before allows.
const (
	Ordered Precision = iota // in f32, by sums that do not depend on the number of rows
	F32                      // in f32, by sums in any order that is the same in every run
	TF32                     // with operands that may be rounded to TF32: 8 bits of exponent, 10 of mantissa
)

var precisions = []string{"ordered", "f32", "tf32"}

// Precisions returns the names of the precisions.
func Precisions() []string { return precisions[:len(precisions):len(precisions)] }

// ParsePrecision returns the precision of a name. It fails if the name is not one of [Precisions].
func ParsePrecision(name string) (Precision, error) {
	for i, n := range precisions {
		if n == name {
			return Precision(i), nil
		}
	}
	return 0, fmt.Errorf("unknown precision %q of f32 GEMMs, want one of %s", name, strings.Join(precisions, ", "))
}

// String returns the name.
func (p Precision) String() string {
	if int(p) < len(precisions) {
		return precisions[p]
	}
	return fmt.Sprintf("precision %d", uint8(p))
}
