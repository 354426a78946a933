package piecewise

// history is what runs of a function leave behind: which results can still be read.
type history struct {
	ran      []int64  // values of symbols at the latest run
	run      uint64   // runs that began
	lost     []uint64 // by result: the run whose result something else overwrote
	spoiled  uint64   // the run whose results a warm-up overwrote
	released uint64   // the run whose results were released
	closed   bool     // the backend is closed: memory of results may be another's
}

// replaced makes the results that lay at a place stale, but for those of the function whose
// run it is; by may be nil.
func (b *Backend) replaced(p *place, by *instance) {
	for _, r := range p.results {
		if fn := b.funcs[r.fn.index]; fn != by {
			fn.lost[r.i] = fn.run
		}
	}
}

// begin makes stale what a run of the function overwrites.
func (fn *instance) begin() {
	fn.run++
	fn.overwrite()
}

// spoil is begin for a warm-up, which overwrites results as a run does, but has none itself.
func (fn *instance) spoil() {
	fn.spoiled = fn.run
	fn.overwrite()
}

func (fn *instance) overwrite() {
	for i := range fn.slots {
		fn.b.replaced(fn.slots[i].place, fn)
	}
	for _, p := range fn.writes {
		fn.b.replaced(p, fn)
	}
}
