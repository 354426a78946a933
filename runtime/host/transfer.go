package host

import "pwc/ir/dtype"

// position returns the address of the row's column 0 for a load or a store, and false if the
// row's scalar index is out of range (C12), or -1 for a store.
func (fr *frame) position(a *access, store bool) (int64, bool) {
	base := fr.base[a.id]
	x := a.index
	if x == nil || !x.scalar {
		return base, true
	}
	p := fr.si[x.reg]
	if store && !x.takes(p) || !store && !x.has(p) {
		return 0, false
	}
	return base + p*x.stride, true
}

// takes is like has, but for a store: the index -1 means to store nothing, and sets no flag.
func (x *index) takes(p int64) bool { return p != -1 && x.has(p) }

// has reports whether index p is in range, and sets the fault flag if it is not.
func (x *index) has(p int64) bool {
	if p < 0 || p >= x.extent {
		x.fault.set()
		return false
	}
	return true
}

// move visits the addresses of len(s) columns from fr.column on, as spans with one stride. It
// calls direct for each span, or indirect if each element has an index of its own.
func move[T any](fr *frame, a *access, base int64, s []T, direct func(a *access, s []T, at, stride int64), indirect func(a *access, s []T, idx []int64, at, stride int64)) {
	var idx []int64
	if a.index != nil && !a.index.scalar {
		idx = fr.i[a.index.reg:][:len(s)]
	}
	if len(a.inner) == 1 {
		stride := a.inner[0].stride
		if at := base + fr.column*stride; idx == nil {
			direct(a, s, at, stride)
		} else {
			indirect(a, s, idx, at, stride)
		}
		return
	}
	stride := a.inner[len(a.inner)-1].stride
	var w walk
	for w.start(a.inner, fr.column); len(s) > 0; {
		n := min(w.left, int64(len(s)))
		if idx == nil {
			direct(a, s[:n], base+w.addr, stride)
		} else {
			indirect(a, s[:n], idx[:n], base+w.addr, stride)
			idx = idx[n:]
		}
		s = s[n:]
		w.skip(n)
	}
}

func (fr *frame) loadF(a *access, d []float32) {
	if base, ok := fr.position(a, false); ok {
		move(fr, a, base, d, (*access).getF, (*access).gatherF)
	} else {
		clear(d)
	}
}

func (fr *frame) loadI(a *access, d []int64) {
	if base, ok := fr.position(a, false); ok {
		move(fr, a, base, d, (*access).getI, (*access).gatherI)
	} else {
		clear(d)
	}
}

func (fr *frame) storeF(a *access, s []float32) {
	if base, ok := fr.position(a, true); ok {
		move(fr, a, base, s, (*access).putF, (*access).scatterF)
	}
}

func (fr *frame) storeI(a *access, s []int64) {
	if base, ok := fr.position(a, true); ok {
		move(fr, a, base, s, (*access).putI, (*access).scatterI)
	}
}

// getF loads a span and converts it to float32.
func (a *access) getF(d []float32, at, stride int64) {
	if a.position {
		for i := range d {
			d[i] = nearest(at + int64(i)*stride)
		}
		return
	}
	switch a.dtype {
	case dtype.F32:
		getF32(d, a.f32, at, stride)
	case dtype.BF16:
		if stride == 1 {
			a.unit.widenBF16(d, a.u16[at:at+int64(len(d))])
			return
		}
		getHalf(d, a.u16, at, stride, fromBF16)
	case dtype.F16:
		if stride == 1 {
			a.unit.widenF16(d, a.u16[at:at+int64(len(d))])
			return
		}
		getHalf(d, a.u16, at, stride, fromF16)
	case dtype.I64:
		for i := range d {
			d[i] = nearest(a.i64[at+int64(i)*stride])
		}
	default:
		getIntegers(d, a, at, stride)
	}
}

// getI loads a span as int64. A bool becomes 0 or 1, whatever its byte is.
func (a *access) getI(d []int64, at, stride int64) {
	if a.position {
		for i := range d {
			d[i] = at + int64(i)*stride
		}
		return
	}
	getIntegers(d, a, at, stride)
}

// getIntegers loads a span of integers or bools.
func getIntegers[D float32 | int64](d []D, a *access, at, stride int64) {
	switch a.dtype {
	case dtype.I8:
		convert(d, a.i8, at, stride)
	case dtype.U8:
		convert(d, a.u8, at, stride)
	case dtype.I16:
		convert(d, a.i16, at, stride)
	case dtype.I32:
		convert(d, a.i32, at, stride)
	case dtype.I64:
		convert(d, a.i64, at, stride)
	case dtype.Bool:
		for i := range d {
			d[i] = D(truth(a.u8[at+int64(i)*stride] != 0))
		}
	}
}

// putF rounds a span to the access's dtype and stores it.
func (a *access) putF(s []float32, at, stride int64) {
	switch a.dtype {
	case dtype.F32:
		if stride == 1 {
			copy(a.f32[at:at+int64(len(s))], s)
			return
		}
		for i, v := range s {
			a.f32[at+int64(i)*stride] = v
		}
	case dtype.BF16:
		if stride == 1 {
			a.unit.narrowBF16(a.u16[at:at+int64(len(s))], s)
			return
		}
		for i, v := range s {
			a.u16[at+int64(i)*stride] = bf16(v)
		}
	case dtype.F16:
		if stride == 1 {
			a.unit.narrowF16(a.u16[at:at+int64(len(s))], s)
			return
		}
		for i, v := range s {
			a.u16[at+int64(i)*stride] = f16(v)
		}
	}
}

// putI wraps a span to the access's dtype and stores it.
func (a *access) putI(s []int64, at, stride int64) {
	switch a.dtype {
	case dtype.I8:
		narrow(a.i8, s, at, stride)
	case dtype.U8:
		narrow(a.u8, s, at, stride)
	case dtype.I16:
		narrow(a.i16, s, at, stride)
	case dtype.I32:
		narrow(a.i32, s, at, stride)
	case dtype.I64:
		narrow(a.i64, s, at, stride)
	case dtype.Bool:
		for i, v := range s {
			a.u8[at+int64(i)*stride] = uint8(truth(v != 0))
		}
	}
}

// gatherF loads elements with an index each; zero if the index is out of range.
func (a *access) gatherF(d []float32, idx []int64, at, stride int64) {
	for i, p := range idx {
		if a.index.has(p) {
			a.getF(d[i:i+1], at+int64(i)*stride+p*a.index.stride, 0)
		} else {
			d[i] = 0
		}
	}
}

func (a *access) gatherI(d []int64, idx []int64, at, stride int64) {
	for i, p := range idx {
		if a.index.has(p) {
			a.getI(d[i:i+1], at+int64(i)*stride+p*a.index.stride, 0)
		} else {
			d[i] = 0
		}
	}
}

// scatterF stores elements with an index each; it stores nothing if the index is out of
// range.
func (a *access) scatterF(s []float32, idx []int64, at, stride int64) {
	for i, p := range idx {
		if a.index.takes(p) {
			a.putF(s[i:i+1], at+int64(i)*stride+p*a.index.stride, 0)
		}
	}
}

func (a *access) scatterI(s []int64, idx []int64, at, stride int64) {
	for i, p := range idx {
		if a.index.takes(p) {
			a.putI(s[i:i+1], at+int64(i)*stride+p*a.index.stride, 0)
		}
	}
}

type integer interface {
	int8 | uint8 | int16 | int32 | int64
}

// convert loads integers. From int64 to float32 getF rounds by nearest instead.
func convert[D float32 | int64, S integer](d []D, src []S, at, stride int64) {
	switch stride {
	case 0:
		v := D(src[at])
		for i := range d {
			d[i] = v
		}
	case 1:
		s := src[at : at+int64(len(d))]
		for i := range d {
			d[i] = D(s[i])
		}
	default:
		for i := range d {
			d[i] = D(src[at+int64(i)*stride])
		}
	}
}

func narrow[D integer](dst []D, s []int64, at, stride int64) {
	if stride == 1 {
		d := dst[at : at+int64(len(s))]
		for i := range d {
			d[i] = D(s[i])
		}
		return
	}
	for i, v := range s {
		dst[at+int64(i)*stride] = D(v)
	}
}

func getF32(d, src []float32, at, stride int64) {
	switch stride {
	case 0:
		fillF(d, src[at])
	case 1:
		copy(d, src[at:at+int64(len(d))])
	default:
		for i := range d {
			d[i] = src[at+int64(i)*stride]
		}
	}
}

// getHalf loads a span of bf16 or f16 whose elements are not neighbours.
func getHalf(d []float32, src []uint16, at, stride int64, widen func(uint16) float32) {
	if stride == 0 {
		fillF(d, widen(src[at]))
		return
	}
	for i := range d {
		d[i] = widen(src[at+int64(i)*stride])
	}
}
