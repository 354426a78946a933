package host

import (
	"math"

	"pwc/program/vec"
)

// reduction is the state of a reduction or scan over the columns of a row.
//
// Sums and products of floats use four float64 accumulators, column c in accumulator
// c mod 4. So consecutive additions do not depend on each other, and results do not depend
// on the length of a block.
type reduction struct {
	acc  [4]float64
	f    float32
	i    int64
	at   int64 // column of the largest element so far
	next int64 // column of the next element
}

// start sets reductions to their initial values.
func (fr *frame) start(list []inst) {
	for k := range list {
		in := &list[k]
		st := &fr.state[in.slot]
		*st = reduction{}
		switch in.op {
		case vec.OpProd:
			st.acc = [4]float64{1, 1, 1, 1}
		case vec.OpRMax, vec.OpArgMax:
			st.f = float32(math.Inf(-1))
		case vec.OpRMin:
			st.f = float32(math.Inf(1))
		case vec.OpProdI:
			st.i = 1
		case vec.OpRMaxI, vec.OpRMinI:
			st.i = in.i
		case vec.OpArgMaxI:
			st.i = math.MinInt64
		}
	}
}

// finish writes reductions to their scalar registers.
func (fr *frame) finish(list []inst) {
	for k := range list {
		in := &list[k]
		st := &fr.state[in.slot]
		switch in.op {
		case vec.OpSum:
			fr.sf[in.dst] = float32((st.acc[0] + st.acc[1]) + (st.acc[2] + st.acc[3]))
		case vec.OpProd:
			fr.sf[in.dst] = float32((st.acc[0] * st.acc[1]) * (st.acc[2] * st.acc[3]))
		case vec.OpRMax, vec.OpRMin:
			fr.sf[in.dst] = st.f
		case vec.OpSumI, vec.OpProdI, vec.OpRMaxI, vec.OpRMinI:
			fr.si[in.dst] = st.i
		case vec.OpArgMax, vec.OpArgMaxI:
			fr.si[in.dst] = st.at
		}
	}
}

func (st *reduction) addF(op vec.Op, a []float32) {
	switch op {
	case vec.OpProd:
		for i, x := range a {
			st.acc[i%4] *= float64(x)
		}
	case vec.OpRMax:
		m := st.f
		for _, x := range a {
			m = max(m, x)
		}
		st.f = m
	case vec.OpRMin:
		m := st.f
		for _, x := range a {
			m = min(m, x)
		}
		st.f = m
	case vec.OpArgMax:
		for i, x := range a {
			// NaN counts as largest, and the first NaN stays.
			if x > st.f || x != x && st.f == st.f {
				st.f, st.at = x, st.next+int64(i)
			}
		}
		st.next += int64(len(a))
	}
}

func (st *reduction) addI(op vec.Op, a []int64) {
	v := st.i
	switch op {
	case vec.OpSumI:
		for _, x := range a {
			v += x
		}
	case vec.OpProdI:
		for _, x := range a {
			v *= x
		}
	case vec.OpRMaxI:
		for _, x := range a {
			v = max(v, x)
		}
	case vec.OpRMinI:
		for _, x := range a {
			v = min(v, x)
		}
	case vec.OpArgMaxI:
		for i, x := range a {
			if x > v {
				v, st.at = x, st.next+int64(i)
			}
		}
		st.next += int64(len(a))
	}
	st.i = v
}

func (st *reduction) scanF(d, a []float32) {
	s := st.acc[0]
	a = a[:len(d)]
	for i := range d {
		s += float64(a[i])
		d[i] = float32(s)
	}
	st.acc[0] = s
}

func (st *reduction) scanI(d, a []int64) {
	s := st.i
	a = a[:len(d)]
	for i := range d {
		s += a[i]
		d[i] = s
	}
	st.i = s
}
