package ptx

// setp decodes comparisons: p = (a op b) join c, and q = !(a op b) join c.
func (d *decoder) setp() exec {
	k := d.typ()
	ftz := d.flag("ftz")
	join := d.choice("", "and", "or", "xor")
	if len(d.parts) == 0 {
		return nil
	}
	name := d.parts[0]
	d.parts = d.parts[1:]
	n := 3
	if join != "" {
		n = 4
	}
	d.operands(n, n)
	p, _ := d.predicate(0)
	q := int32(-1)
	if s := d.operand(0).second; s != nil && s.kind == operandRegister && s.reg.kind.class == classPred {
		q = s.reg.index
	} else if s != nil {
		d.fail("%q is no predicate", s.text)
	}
	a, b := d.source(1, k), d.source(2, k)
	var compare exec
	switch {
	case k.float() && k.bits == 32:
		f := comparison[float32](name, true)
		if ftz && f != nil {
			g := f
			f = func(a, b float32) bool { return g(flush(a), flush(b)) }
		}
		compare = tests(p, a, b, f)
	case k.float():
		compare = tests(p, a, b, comparison[float64](name, true))
	case !k.integer() || k.bits == 8:
		return nil
	case k.bits == 64 && k.signed():
		compare = tests(p, a, b, comparison[int64](name, false))
	case k.bits == 64:
		compare = tests(p, a, b, comparison[uint64](name, false))
	case k.bits == 32 && k.signed():
		compare = tests(p, a, b, comparison[int32](name, false))
	case k.signed():
		f := comparison[int32](name, false)
		if f == nil {
			return nil
		}
		compare = test(p, a, b, func(a, b int32) bool { return f(int32(int16(a)), int32(int16(b))) })
	default:
		compare = tests(p, a, b, comparison[uint32](name, false))
	}
	if compare == nil || join == "" && q < 0 {
		return compare
	}
	c, negated := int32(0), false
	if join != "" {
		c, negated = d.predicate(3)
	}
	return func(w *warp, m uint32) {
		with := uint32(0)
		if join != "" {
			with = predicateOf(w, c, negated)
		}
		old := w.preds[p]
		compare(w, m)
		yes, no := w.preds[p], ^w.preds[p]
		switch join {
		case "and":
			yes, no = yes&with, no&with
		case "or":
			yes, no = yes|with, no|with
		case "xor":
			yes, no = yes^with, no^with
		}
		w.preds[p] = old&^m | yes&m
		if q >= 0 {
			w.preds[q] = w.preds[q]&^m | no&m
		}
	}
}

// tests returns test, or nil if f is nil.
func tests[T number](p int32, a, b slot, f func(a, b T) bool) exec {
	if f == nil {
		return nil
	}
	return test(p, a, b, f)
}

// comparison returns a comparison by name; nil for an unknown name.
func comparison[T number](name string, float bool) func(a, b T) bool {
	switch name {
	case "eq":
		return func(a, b T) bool { return a == b }
	case "ne":
		return func(a, b T) bool { return a < b || a > b }
	case "lt", "lo":
		return func(a, b T) bool { return a < b }
	case "le", "ls":
		return func(a, b T) bool { return a <= b }
	case "gt", "hi":
		return func(a, b T) bool { return a > b }
	case "ge", "hs":
		return func(a, b T) bool { return a >= b }
	}
	if !float {
		return nil
	}
	switch name { // comparisons that are true if an operand is NaN, and tests for NaN
	case "equ":
		return func(a, b T) bool { return !(a < b || a > b) }
	case "neu":
		return func(a, b T) bool { return a != b }
	case "ltu":
		return func(a, b T) bool { return !(a >= b) }
	case "leu":
		return func(a, b T) bool { return !(a > b) }
	case "gtu":
		return func(a, b T) bool { return !(a <= b) }
	case "geu":
		return func(a, b T) bool { return !(a < b) }
	case "num":
		return func(a, b T) bool { return a == a && b == b }
	case "nan":
		return func(a, b T) bool { return a != a || b != b }
	}
	return nil
}
