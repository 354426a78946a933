package loopgen

import "strconv"

// reductionBuffer is the shared memory in which the warps of a block, and then the blocks of a
// cluster (DSMEM), give each other what they have reduced. It is double-buffered: phases use one
// half and the other in turns, so that no thread still reads what a phase writes since the barrier
// of the phase before.
type reductionBuffer struct {
	bytes  int  // of a half
	next   int  // the half of the next phase
	rolled bool // the phase is a loop, of which each iteration uses the other half
}

// half is the half that a phase uses.
func (t *reductionBuffer) half() string {
	switch {
	case !t.rolled:
		return strconv.Itoa(t.next)
	case t.next == 0:
		return "iteration % 2"
	}
	return "(iteration + 1) % 2"
}

// roll writes a phase that is a loop of so many iterations.
func (t *reductionBuffer) roll(iterations int, phase func()) {
	if t == nil {
		phase()
		return
	}
	first := t.next
	t.rolled = true
	phase()
	t.rolled = false
	if t.next != first { // the phase reduces
		t.next = (first + iterations) % 2
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
	return 16 // indexed_value
}

// bufferBytes is what n accumulators take, in steps of 16.
func bufferBytes(acc string, n int) int { return (accBytes(acc)*n + 15) / 16 * 16 }

// bufferStride is the distance of reductions that follow one another, in accumulators.
func bufferStride(acc string, warps, cluster int) int {
	return (bufferBytes(acc, warps) + bufferBytes(acc, cluster)) / accBytes(acc)
}

// newReductionBuffer declares the memory that the largest phase needs; nil without a cluster, or a
// loop of phases: else each phase of a block has memory of its own.
func (e *writer) newReductionBuffer(p rowSplit, loops bool) *reductionBuffer {
	if p.warps <= 1 || p.cluster == 1 && !loops {
		return nil
	}
	t := &reductionBuffer{}
	for _, ph := range e.K.Phases {
		bytes := 0
		for _, in := range ph.Body {
			if in.Op.Reduces() {
				acc := e.Reduction(in).Acc
				bytes += bufferBytes(acc, p.warps)
				if p.cluster > 1 {
					bytes += bufferBytes(acc, p.cluster)
				}
			}
		}
		t.bytes = max(t.bytes, bytes)
	}
	if t.bytes > 0 {
		e.Line("__shared__ uint4 reduction_buffer[2][%d];", t.bytes/16)
	}
	return t
}
