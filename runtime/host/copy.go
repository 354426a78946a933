package host

// copyPart is the size of the parts of a long copy in bytes. Workers check the stream's context
// between parts.
const copyPart = 1 << 20

// copying is a long copy in parts, which the workers share: most time of a copy to memory
// that is used for the first time is the operating system's, which clears pages.
type copying struct{ dst, src []byte }

func (c *copying) run(part int64, _ *lane) {
	from := part * copyPart
	to := min(from+copyPart, int64(len(c.src)))
	copy(c.dst[from:to], c.src[from:to])
}

// copy copies as the builtin does. Long copies between ranges that do not overlap run on all workers,
// and end early if the stream's work must stop.
func (s *Stream) copy(dst, src []byte) {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	if n < 2*copyPart || overlap(dst, src) {
		defer s.lane.caught(protect())
		copy(dst, src)
		return
	}
	s.copying = copying{dst, src}
	s.dev.pool.run(&s.copying, int64((n+copyPart-1)/copyPart), &s.lane)
	s.copying = copying{}
}
