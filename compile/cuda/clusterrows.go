package cuda

import (
	"strconv"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/loop"
)

// told is the shared memory in which the warps of a block, and then the blocks of a
// cluster, tell each other what they have reduced. Phases use one half and the other in
// turns: what a block writes in a phase nobody has read since the barrier of the phase
// before.
type told struct {
	half int // bytes
	turn int
	loop bool // the phase is one, of which each trip takes its turn
}

// which is the half that a phase uses.
func (t *told) which() string {
	switch {
	case !t.loop:
		return strconv.Itoa(t.turn)
	case t.turn == 0:
		return "trip % 2"
	}
	return "(trip + 1) % 2"
}

// repeat writes a phase that is a loop of so many trips.
func (t *told) repeat(trips int, phase func()) {
	if t == nil {
		phase()
		return
	}
	turn := t.turn
	t.loop = true
	phase()
	t.loop = false
	if t.turn != turn { // the phase reduces
		t.turn = (turn + trips) % 2
	}
}

// accBytes is at least the size of an accumulator.
func accBytes(acc string) int {
	switch acc {
	case "float", "int":
		return 4
	case "double", "long long":
		return 8
	}
	return 16 // best
}

// toldBytes is what n accumulators take, in steps of 16.
func toldBytes(acc string, n int) int { return (accBytes(acc)*n + 15) / 16 * 16 }

// toldEach is the distance of reductions that follow one another, in accumulators.
func toldEach(acc string, warps, cluster int) int {
	return (toldBytes(acc, warps) + toldBytes(acc, cluster)) / accBytes(acc)
}

// alike cuts a list of reductions into runs of one kind, of up to most each, that go
// between blocks together. Accumulators of more than one number go alone.
func alike(list []loop.Instr, of func(loop.Instr) cgen.Reduction, most int) [][]loop.Instr {
	var out [][]loop.Instr
	for _, in := range list {
		n := len(out) - 1
		if n >= 0 && len(out[n]) < most && in.Op != loop.ArgMax && of(in) == of(out[n][0]) {
			out[n] = append(out[n], in)
			continue
		}
		out = append(out, []loop.Instr{in})
	}
	return out
}

// told declares the memory that the largest phase needs; nil without a cluster, or a loop
// of phases: else each phase of a block has its own.
func (e *emitter) told(p rowPlan, loops bool) *told {
	if p.warps <= 1 || p.cluster == 1 && !loops {
		return nil
	}
	t := &told{}
	for _, ph := range e.K.Phases {
		bytes := 0
		for _, in := range ph.Body {
			if in.Op.Reduces() {
				acc := e.Reduction(in).Acc
				bytes += toldBytes(acc, p.warps)
				if p.cluster > 1 {
					bytes += toldBytes(acc, p.cluster)
				}
			}
		}
		t.half = max(t.half, bytes)
	}
	if t.half > 0 {
		e.Line("__shared__ uint4 told[2][%d];", t.half/16)
	}
	return t
}
