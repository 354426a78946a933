package cgen

import (
	"fmt"
	"slices"

	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// SumType returns the C type of a scan's sums. Floats are summed in double, so that the order, which
// differs from the reference's, hardly changes the result.
func (e *Emitter) SumType(in loop.Instr) string {
	if e.K.Values[in.Dst].DType.Float() {
		return "double"
	}
	return "unsigned long long"
}

// scan writes a running sum. All threads of the row run this code, because they exchange partial sums.
func (e *Emitter) scan(in loop.Instr, s *Context) {
	n, acc, to := in.Dst, e.SumType(in), ValueType(e.K.Values[in.Dst].DType)
	x := e.Value(in.Args[0])
	switch {
	case s.Warps == 0:
		e.Line("s%d += (%s)%s;", n, acc, x)
		e.Define(in, fmt.Sprintf("(%s)s%d", to, n))
	case s.Running:
		if s.Live != "" {
			x = fmt.Sprintf("(%s ? %s : 0)", s.Live, x)
		}
		e.Line("prefix%d += (%s)%s;", n, acc, x)
		e.Define(in, fmt.Sprintf("(%s)prefix%d", to, n))
	case s.Width > 1:
		e.Define(in, fmt.Sprintf("(%s)(prefix%d + part%d[j])", to, n, n))
	default:
		if s.Live != "" {
			x = fmt.Sprintf("(%s ? %s : 0)", s.Live, x)
		}
		e.Line("const %s x%d_sum = (%s)%s;", acc, n, acc, x)
		e.Define(in, fmt.Sprintf("(%s)(%s + x%d_sum)", to, e.Before(in, fmt.Sprintf("x%d_sum", n), s), n))
	}
}

// Before returns the C expression of a scan's sum of all columns before this thread's: those of earlier
// iterations and those of the threads before it in this one.
func (e *Emitter) Before(in loop.Instr, x string, s *Context) string {
	n, partials := in.Dst, "nullptr"
	if s.Warps > 1 {
		partials = fmt.Sprintf("warp_partials%d", n)
	}
	if s.Cluster > 1 {
		return fmt.Sprintf("%s<%d, %d, %s>(%s, s%d, %s, cta_partials%d + %s * %d)", e.Use("cluster_scan"), s.Warps, s.Cluster, e.SumType(in), x, n, partials, n, s.Turn, s.Cluster)
	}
	return fmt.Sprintf("%s<%d, %s>(%s, s%d, %s)", e.Use("block_scan"), s.Warps, e.SumType(in), x, n, partials)
}

// scanColumns writes, before the loop over neighbouring columns, the sums of the body's scan, if it has
// one: the running sum within the columns, and the sum of all columns before them.
func (e *Emitter) scanColumns(list []loop.Instr, s *Context, vectors map[loop.Value]string) {
	at := slices.IndexFunc(list, func(in loop.Instr) bool { return in.Op == loop.CumSum })
	if at < 0 || s.Warps == 0 || s.Running {
		return
	}
	e.PartSums(list, s, vectors)
	n := list[at].Dst
	e.Line("const %s prefix%d = %s;", e.SumType(list[at]), n, e.Before(list[at], fmt.Sprintf("sum%d", n), s))
}

// PartSums writes the running sum of a scan within the columns of the emission context.
func (e *Emitter) PartSums(list []loop.Instr, s *Context, vectors map[loop.Value]string) {
	at := slices.IndexFunc(list, func(in loop.Instr) bool { return in.Op == loop.CumSum })
	scan := list[at]
	n, acc := scan.Dst, e.SumType(scan)
	needed := map[loop.Value]bool{scan.Args[0]: true}
	for i := at - 1; i >= 0; i-- {
		if in := list[i]; needed[in.Dst] && in.Op != loop.Store {
			for _, a := range in.Args {
				needed[a] = true
			}
			if in.Access != nil && in.Access.Index != nil {
				needed[in.Access.Index.At] = true
			}
		}
	}
	e.Line("%s part%d[%d], sum%d = 0;", acc, n, s.Width, n)
	e.Line("#pragma unroll")
	e.Open("for (int j = 0; j < %d; j++)", s.Width)
	for _, in := range list[:at] {
		x, vector := vectors[in.Dst]
		switch {
		case in.Op == loop.Store || !needed[in.Dst]:
		case vector:
			e.loaded(in, x+"[j]")
		case in.Op == loop.Load && (nest.PerColumn(e.K, in.Access) || !nest.IsConst(nest.Inner(in.Access), 0)):
			e.loadOne(in, s, "j")
		case in.Op != loop.Load:
			e.compute(in, s, "j")
		}
	}
	x := e.Value(scan.Args[0])
	if s.Live != "" {
		x = fmt.Sprintf("(%s ? %s : 0)", s.Live, x)
	}
	e.Line("sum%d += (%s)%s;", n, acc, x)
	e.Line("part%d[j] = sum%d;", n, n)
	e.Close()
}
