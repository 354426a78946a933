package host

// copyPart is how many bytes of a long copy a worker takes, and copies between two looks at the
// context.
const copyPart = 1 << 20

// copying is a copy of a stream in parts, which the workers share: of memory that is used for the
// first time most of it is the system's work, of zeroing pages.
type copying struct{ dst, src []byte }

func (c *copying) run(part int64, _ *lane) {
	from := part * copyPart
	to := min(from+copyPart, int64(len(c.src)))
	copy(c.dst[from:to], c.src[from:to])
}

// copy is the builtin.
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
