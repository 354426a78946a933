package loopgen

import "strconv"

// reductionBuffer is the shared memory through which the warps of a block, and then the blocks of a
// cluster (DSMEM), exchange partial results. It is double-buffered: phases alternate between its halves.
// A phase may write to its half without a barrier, because all threads have passed the barrier of the
// phase before, and so have read the results of the phase that used this half last.
type reductionBuffer struct {
	bytes  int  // of a half
	next   int  // the half of the next phase
	rolled bool // the phase is a loop whose iterations alternate between the halves
}

// half returns the C expression of the index of the half that a phase uses.
func (t *reductionBuffer) half() string {
	switch {
	case !t.rolled:
		return strconv.Itoa(t.next)
	case t.next == 0:
		return "iteration % 2"
	}
	return "(iteration + 1) % 2"
}

// roll calls phase to write a phase that is a loop of the given number of iterations.
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

// accBytes is an upper bound of the size of an accumulator.
func accBytes(acc string) int {
	switch acc {
	case "float", "int":
		return 4
	case "double", "long long":
		return 8
	}
	return 16 // indexed_value
}

// bufferBytes is the size of n accumulators, rounded up to 16 bytes.
func bufferBytes(acc string, n int) int { return (accBytes(acc)*n + 15) / 16 * 16 }

// bufferStride is the distance between consecutive reductions in the buffer, in accumulators.
func bufferStride(acc string, warps, cluster int) int {
	return (bufferBytes(acc, warps) + bufferBytes(acc, cluster)) / accBytes(acc)
}

// newReductionBuffer declares two halves, each large enough for the largest phase. It returns nil unless
// several warps of a block compute a row and the kernel has clusters or rolled loops.
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
