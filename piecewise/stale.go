package piecewise

// history records the runs of a function, to decide which results can still be read.
type history struct {
	ran      []int64  // values of symbols at the latest run
	run      uint64   // number of runs that began, which is also the number of the latest
	lost     []uint64 // by result: the run whose result a write outside the function's runs overwrote
	spoiled  uint64   // the run whose results a warm-up overwrote
	released uint64   // the run whose results were released
	closed   bool     // the backend is closed, and the memory of results was freed
}

// replaced marks the results in a place as stale after a write. running is the function whose run
// writes, and its own results are not marked; nil: the write belongs to no run.
func (b *Backend) replaced(p *place, running *instance) {
	for _, r := range p.results {
		if fn := b.funcs[r.fn.index]; fn != running {
			fn.lost[r.i] = fn.run
		}
	}
}

// begin counts a run, and marks the results that it overwrites as stale.
func (fn *instance) begin() {
	fn.run++
	fn.overwrite()
}

// spoil is begin for a warm-up, which overwrites results like a run, but returns no results.
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
