package cuda

import (
	"math"
	"slices"

	"pwc/compile"
	"pwc/compile/cuda/internal/library"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/program"
)

// preference says which kind of code computes a variant's GEMM. Variants are ordered by it.
type preference uint8

const (
	byTuned    preference = iota // a library's routine, tried before arch-specific kernels (see beforeSpecific)
	bySpecific                   // an arch-specific kernel
	byLibrary                    // a library's routine, tried before the kernels for all devices
	byOthers
)

func preferenceOf(v compile.Variant) preference {
	routine := slices.ContainsFunc(v.Steps, func(s compile.Step) bool { return s.Library != "" })
	switch {
	case routine && !v.Device.Always():
		return byTuned
	case routine:
		return byLibrary
	case !v.Device.Always():
		return bySpecific
	}
	return byOthers
}

// byPreference groups variants by preference.
func byPreference(vs []compile.Variant) map[preference][]compile.Variant {
	out := make(map[preference][]compile.Variant)
	for _, v := range vs {
		p := preferenceOf(v)
		out[p] = append(out[p], v)
	}
	return out
}

// beforeSpecific returns copies of the routine's variants that come before arch-specific kernels, on
// the same devices. By default they serve only more rows than these kernels; a measurement may change
// that (package tune).
func beforeSpecific(specific []compile.Variant, routine ...compile.Variant) []compile.Variant {
	if len(specific) == 0 {
		return nil
	}
	most := int64(0)
	for _, v := range specific {
		most = max(most, v.Guard.Hi)
	}
	out := slices.Clone(routine)
	for i := range out {
		v := &out[i]
		v.Device, v.Steps = specific[0].Device, slices.Clone(v.Steps)
		n := slices.IndexFunc(v.Steps, func(s compile.Step) bool { return s.Library != "" })
		v.Steps[n].Attrs = library.ServesFrom(v.Steps[n].Attrs, max(library.RowsServed(v.Steps[n].Attrs), most+1))
	}
	return out
}

// rowsOfLast returns vs, which are for rising numbers of rows. The last of vs has no guard, because it
// serves all numbers of rows above those of the others. The last of the result has a guard that says so,
// unless the number of rows is a constant, or vs has no other variant of preference byOthers.
func rowsOfLast(vs []compile.Variant, rows dim.Dim) []compile.Variant {
	out := slices.Clone(vs)
	last := len(out) - 1
	for _, v := range out[:last] {
		if _, known := rows.Const(); !known && preferenceOf(v) == byOthers {
			out[last].Guard = program.Guard{Expr: rows, Lo: v.Guard.Hi + 1, Hi: math.MaxInt64}
		}
	}
	return out
}

// both returns the guard that holds where a and b hold, and whether any size may satisfy it. Both guard
// the same expression, the rows of a chain.
func both(a, b program.Guard) (program.Guard, bool) {
	switch {
	case a.Always():
		return b, true
	case b.Always():
		return a, true
	}
	a.Lo, a.Hi = max(a.Lo, b.Lo), min(a.Hi, b.Hi)
	return a, a.Lo <= a.Hi
}

// moveArgs renumbers the arguments of steps for a larger code that contains them. Argument a below
// count becomes first+a, and the temps, which are numbered from count on, are numbered from temp on.
// Steps without Args get all count arguments in order.
func moveArgs(steps []compile.Step, count, first, temp int32) {
	for i := range steps {
		s := &steps[i]
		args := s.Args
		if args == nil {
			for a := range count {
				args = append(args, a)
			}
		}
		s.Args = make([]int32, len(args))
		for k, a := range args {
			if s.Args[k] = first + a; a >= count {
				s.Args[k] = a - count + temp
			}
		}
	}
}

// onChain returns the code of c.Kernels[from:to], renumbered to the chain's arguments.
func onChain(c *compile.Chain, from, to int, code compile.Code) compile.Code {
	for i := range code.Variants {
		moveArgs(code.Variants[i].Steps, argsOf(c.Kernels[from:to]), argsOf(c.Kernels[:from]), int32(len(c.Same)))
	}
	return code
}

func argsOf(ks []*loop.Kernel) (n int32) {
	for _, k := range ks {
		n += int32(len(k.Args))
	}
	return n
}
