package ptx

import "math/bits"

// evictFirst is the value of the cache policy L2::evict_first. Results do not depend on policies, but the
// operand of a hint has to be one.
const evictFirst = 0x12f0 << 48

// policy decodes createpolicy.
func (d *decoder) policy() exec {
	if !d.flag("fractional") || !d.flag("L2::evict_first") || !d.flag("b64") {
		return nil
	}
	d.operands(1, 1)
	to := d.target(0, kind{classBits, 64, 1})
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			lanes[uint64](w, to)[bits.TrailingZeros32(m)] = evictFirst
		}
	}
}

// hinted removes the last operand, a cache policy, of an access with a cache hint. It returns the check of
// the policy, or nil for an access without a hint.
func (d *decoder) hinted() exec {
	if !d.flag("L2::cache_hint") {
		return nil
	}
	n := len(d.in.operands) - 1
	d.operands(3, 5)
	if d.err != nil {
		return nil
	}
	policy := d.source(n, kind{classBits, 64, 1})
	in := *d.in
	in.operands = in.operands[:n]
	d.in = &in
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			lane := bits.TrailingZeros32(m)
			if p := lanes[uint64](w, policy)[lane]; p != evictFirst {
				w.fault(AddressFault, lane, "%#x is no cache policy", p)
			}
		}
	}
}

// both returns first followed by second. first may be nil; if second is nil, the result is nil.
func both(first, second exec) exec {
	if first == nil || second == nil {
		return second
	}
	return func(w *warp, m uint32) {
		first(w, m)
		second(w, m)
	}
}
