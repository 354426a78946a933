package dtype

import "math"

// IntLimits returns the smallest and the largest value of an integer type or Bool. For
// other types it returns 0, 0.
func (d DType) IntLimits() (lo, hi int64) {
	switch i := d.info(); i.class {
	case classBool:
		return 0, 1
	case classSigned:
		return -1 << (i.bits - 1), 1<<(i.bits-1) - 1
	case classUnsigned:
		return 0, 1<<i.bits - 1
	}
	return 0, 0
}

// MaxFinite returns the largest finite value of a floating-point type. For other types it
// returns 0.
func (d DType) MaxFinite() float64 {
	switch d {
	case F32:
		return math.MaxFloat32
	case F16:
		return formatF16.max
	case BF16:
		return formatBF16.max
	case F8E4M3:
		return formatF8E4M3.max
	case F8E5M2:
		return formatF8E5M2.max
	case E8M0:
		return 0x1p127
	case F4E2M1:
		return formatF4E2M1.max
	}
	return 0
}
