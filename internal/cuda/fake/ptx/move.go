package ptx

import "math/bits"

// mov decodes mov, which also packs and unpacks vectors.
func (d *decoder) mov() exec {
	k := d.typ()
	d.operands(2, 2)
	to, from := d.operand(0), d.operand(1)
	switch {
	case k.class == classPred:
		p, _ := d.predicate(0)
		if from.kind == operandImmediate {
			v := uint32(0)
			if from.value != 0 {
				v = all
			}
			return func(w *warp, m uint32) { w.preds[p] = w.preds[p]&^m | v&m }
		}
		q, negated := d.predicate(1)
		return func(w *warp, m uint32) { w.preds[p] = w.preds[p]&^m | predicateOf(w, q, negated)&m }
	case from.kind == operandVector:
		return d.pack(to, from.list, k)
	case to.kind == operandVector:
		return d.unpack(to.list, from, k)
	case from.kind == operandSpecial && (from.text == "%clock64" || from.text == "%globaltimer"):
		x := d.output(to, k)
		return func(w *warp, m uint32) { // an instruction takes a nanosecond
			for p := lanes[uint64](w, x); m != 0; m &= m - 1 {
				p[bits.TrailingZeros32(m)] = uint64(w.m.steps)
			}
		}
	case from.kind == operandSpecial && (from.text == "%clock" || from.text == "%globaltimer_lo"):
		x := d.output(to, k)
		return func(w *warp, m uint32) {
			for p := lanes[uint32](w, x); m != 0; m &= m - 1 {
				p[bits.TrailingZeros32(m)] = uint32(w.m.steps)
			}
		}
	case from.kind == operandSpecial && k.bits != 64 && k.bits != 32:
		d.fail("%s is no register of %d bits", from.text, k.bits)
		return nil
	}
	x, p := d.output(to, k), d.input(from, k)
	if k.bits == 64 {
		return move[uint64](x, p)
	}
	return move[uint32](x, p)
}

func move[T uint32 | uint64](x, p slot) exec {
	return func(w *warp, m uint32) {
		x, p := lanes[T](w, x), lanes[T](w, p)
		if m == all {
			*x = *p
			return
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m)
			x[i] = p[i]
		}
	}
}

// elements returns the element type of a vector of n elements in k.
func (d *decoder) elements(n int, k kind) kind {
	if n < 2 || k.bits%n != 0 || k.bits/n < 16 {
		d.fail("a vector of %d", n)
		return kind{classBits, 16, 1}
	}
	return kind{classBits, k.bits / n, 1}
}

// pack decodes mov d, {a, b}.
func (d *decoder) pack(to *operand, list []operand, k kind) exec {
	e := d.elements(len(list), k)
	x := d.output(to, k)
	from := make([]slot, len(list))
	for i := range list {
		from[i] = d.input(&list[i], e)
	}
	return func(w *warp, m uint32) {
		for x0 := m; x0 != 0; x0 &= x0 - 1 {
			i := bits.TrailingZeros32(x0)
			v := uint64(0)
			for j, s := range from {
				v |= uint64(lanes[uint32](w, s)[i]) << (j * e.bits)
			}
			if k.bits == 64 {
				lanes[uint64](w, x)[i] = v
			} else {
				lanes[uint32](w, x)[i] = uint32(v)
			}
		}
	}
}

// unpack decodes mov {a, b}, s.
func (d *decoder) unpack(list []operand, from *operand, k kind) exec {
	e := d.elements(len(list), k)
	p := d.input(from, k)
	to := make([]slot, len(list))
	for i := range list {
		if to[i] = ^slot(0); list[i].kind != operandSink {
			to[i] = d.output(&list[i], e)
		}
	}
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m)
			var v uint64
			if k.bits == 64 {
				v = lanes[uint64](w, p)[i]
			} else {
				v = uint64(lanes[uint32](w, p)[i])
			}
			for j, s := range to {
				if s >= 0 {
					lanes[uint32](w, s)[i] = uint32(v>>(j*e.bits)) & (1<<e.bits - 1)
				}
			}
		}
	}
}

// selp decodes d = c ? a : b.
func (d *decoder) selp() exec {
	k := d.typ()
	d.operands(4, 4)
	x, a, b := d.target(0, k), d.source(1, k), d.source(2, k)
	p, negated := d.predicate(3)
	if k.bits == 64 {
		return choose[uint64](x, a, b, p, negated)
	}
	return choose[uint32](x, a, b, p, negated)
}

func choose[T uint32 | uint64](x, a, b slot, p int32, negated bool) exec {
	return func(w *warp, m uint32) {
		x, a, b, c := lanes[T](w, x), lanes[T](w, a), lanes[T](w, b), predicateOf(w, p, negated)
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m)
			if c>>i&1 != 0 {
				x[i] = a[i]
			} else {
				x[i] = b[i]
			}
		}
	}
}
