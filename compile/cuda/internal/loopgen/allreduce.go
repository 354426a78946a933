package loopgen

import (
	"fmt"

	"pwc/collective/cuda/peer"
	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/cuda/src"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// AllReduceRows returns the largest number of rows for which a kernel computes its loop.AllReduce
// itself, or 0 if it cannot. A block sums the rows that it processes, through receive buffers that a
// group has for peer.Blocks blocks. It sends its rows to every rank (one-shot). Sizes for which a
// reduce-scatter and an all-gather (two-shot) are faster are left to the collective.
func AllReduceRows(k *loop.Kernel, on cgen.GPU) int64 {
	r := k.AllReduce
	cols, known := nest.Product(k.Cols).Const()
	switch dt := k.Args[r.Source].DType; {
	case !known || k.Serial || !nest.Rowwise(k):
		return 0
	case dt != dtype.F32 && dt != dtype.F16 && dt != dtype.BF16, r.Ranks < 2 || r.Ranks > peer.MaxRanks:
		return 0
	}
	p := newWriter(k, on).rowSplit(&cgen.Context{Width: nest.VectorWidth(k)})
	if p.cluster > 1 || p.across {
		return 0
	}
	most := int64(peer.Blocks) * int64(p.rowsOfBlock)
	return min(most, peer.OneShotBytes(int(r.Ranks))/max(1, cols*k.Args[r.Source].DType.Bytes(1)))
}

// allReduce writes the sum of the rows of a block over all ranks.
func (e *writer) allReduce(rows dim.Dim, p rowSplit) {
	r := e.K.AllReduce
	dt := e.K.Args[r.Source].DType
	each, _ := nest.Product(e.K.Cols).Const()
	each *= dt.Bytes(1)
	part := each * int64(p.rowsOfBlock)
	e.Peers = r.Group
	e.Generate(src.Snippet{Name: "peers", Text: peer.Inline(int(r.Ranks))})
	bytes := fmt.Sprint(part)
	e.Line("const unsigned long long first_byte = blockIdx.x * %dull;", part)
	if p.rowsOfBlock > 1 {
		e.Line("const unsigned long long bytes = min(%dull, %s * %dull - first_byte);", part, e.Dim(rows), each)
		bytes = "bytes"
	}
	e.Line("%s", peer.Call(dt.String(), fmt.Sprintf("a%d", r.Sum), fmt.Sprintf("a%d", r.Source), "first_byte", bytes, part))
}

// This does not compile unless each thread of a block has a packet in a round.
const _ = uint(peer.Packets - maxThreads)
