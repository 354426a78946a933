// Package attention generates the kernels of attention for training, and of its gradient.
package attention

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// shape is how an attention is cut into tiles. A block has a number of rows of one sequence, queries or
// keys, and iterates over tiles of cols positions of the other.
type shape struct {
	kernel     string // prefix of its functions in src
	rows, cols int64
	stages     int64 // tiles of cols in shared memory, with tensor cores
	threads    int32
	blocks     int   // blocks that a multiprocessor should hold at least; 0: any number
	shared     int64 // bytes
}

// simtShape returns the shape on CUDA cores. With heads of more than 128 elements, tiles have half as
// many rows and columns, to fit into the 99 KiB of shared memory that a block of sm_86 may have.
func simtShape(a *loop.Attention) shape {
	s := shape{kernel: "attention_simt", rows: 32, cols: 32}
	if a.Size > 128 {
		s.rows, s.cols = 16, 16
	}
	s.threads = int32(4 * s.rows)
	tiles := 2*(s.rows+s.cols)*(a.Size+1) + 2*s.rows*(s.cols+1)
	s.shared = 4 * tiles
	return s
}

// mmaShape returns the shape on tensor cores, and whether these can compute the attention: it is of bf16
// or f16, heads have at most 128 elements, and every row can be loaded in accesses of 16 bytes. With a
// scale of 0, infinity or NaN, masked scores (-inf) could become NaN, so CUDA cores compute it.
func mmaShape(k *loop.Kernel) (shape, bool) {
	a := k.Attention
	dt := k.Args[a.Q.Arg].DType
	ok := (dt == dtype.BF16 || dt == dtype.F16) && a.Size%8 == 0 && a.Size <= 128 && a.Scale != 0 && !math.IsInf(a.Scale, 0) && !math.IsNaN(a.Scale)
	a.Each(func(x *loop.Access, _ dim.Dim) {
		if len(x.Cols) < 3 {
			return
		}
		ok = ok && nest.IsConst(x.Cols[2], 1)
		for _, d := range slices.Concat([]dim.Dim{x.Offset}, x.Rows, x.Cols[:2]) {
			ok = ok && nest.Multiple(d, 8)
		}
	})
	s := shape{kernel: "attention_mma", rows: 64, cols: 64, stages: 2, threads: 128}
	tiles := s.rows
	// Measured on an H100 with heads of 64: three stages are slower than two, and in the forward pass 32
	// columns with four blocks on a multiprocessor are faster than 64 with three.
	switch {
	case a.Grad != nil:
		tiles *= 2
		if a.Size <= 64 {
			s.blocks = 3
		}
	case a.Size <= 64:
		s.cols, s.blocks = 32, 4
	}
	s.shared = (tiles + 2*s.stages*s.cols) * ((a.Size+15)/16*16 + 8) * 2
	return s, ok
}

// Source returns the source of an attention, or of its gradient, as one launch. The gradient has blocks
// of keys first, then blocks of queries. With a causal mask the blocks with the most work come first.
func Source(k *loop.Kernel, on cgen.GPU) (cgen.Source, error) {
	a := k.Attention
	w := &writer{Emitter: cgen.NewEmitter(k, on), a: a, shape: simtShape(a)}
	if s, ok := mmaShape(k); ok {
		w.shape = s
		element := w.Storage(k.Args[a.Q.Arg].DType)
		w.Use("mma_" + element)
		w.Use("pack2_" + element)
	}
	if !w.short(a.Queries) || !w.short(a.Keys) {
		return cgen.Source{}, fmt.Errorf("sequences of %s queries and %s keys may have more than %d positions; give their symbols smaller ranges", a.Queries, a.Keys, int64(nest.MaxIndex))
	}
	w.Threads, w.MinBlocks, w.Shared = w.shape.threads, w.shape.blocks, dim.Const(w.shape.shared)
	w.Use(w.shape.kernel)
	w.Wait()
	w.Line("%s block = blockIdx.x;", w.Index())
	if a.Grad == nil {
		w.Grid[0] = w.tiles(a.Queries, a.Heads, a.Causal, w.forward)
	} else {
		keys := w.tiles(a.Keys, a.Groups, false, w.keys)
		w.Grid[0] = keys.Add(w.tiles(a.Queries, a.Heads, a.Causal, w.queries))
	}
	mask := ""
	if a.Causal {
		mask = ", causal"
	}
	return w.Finish(fmt.Sprintf("%s: batches %s of %s queries and %s keys, %d query heads and %d key-value heads of %d elements%s", k.Name, nest.Extents(k.Rows), a.Queries, a.Keys, a.Heads, a.Groups, a.Size, mask)), w.Err
}

// writer writes an attention.
type writer struct {
	*cgen.Emitter
	a     *loop.Attention
	shape shape
	ctx   cgen.Context // the batch
}

// short reports whether a length is known to be at most nest.MaxIndex.
func (w *writer) short(d dim.Dim) bool {
	iv, ok := nest.Bounds(w.K, d)
	return ok && iv.Hi <= nest.MaxIndex
}

// tiles writes the code of the next blocks, one for each tile of a sequence and each head, and returns
// their number. With back they take the tiles in reverse order.
func (w *writer) tiles(length dim.Dim, heads int64, back bool, body func()) dim.Dim {
	all := nest.Product(w.K.Rows).Mul(dim.Const(heads))
	count := length.CeilDiv(w.shape.rows)
	blocks := all.Mul(count)
	w.Open("if (block < %s)", w.Dim(blocks))
	tile := fmt.Sprintf("block / %s", w.Dim(all))
	if back {
		tile = fmt.Sprintf("%s - 1 - %s", w.Dim(count), tile)
	}
	w.Line("const int tile = %s;", tile)
	w.Line("const %s item = block %% %s, head = item %% %d;", w.Index(), w.Dim(all), heads)
	w.ctx.Rows = w.Axes("i", fmt.Sprintf("item / %d", heads), w.K.Rows)
	body()
	w.Line("return;")
	w.Close()
	w.Line("block -= %s;", w.Dim(blocks))
	return blocks
}

// head returns a head_view of x. head is the C expression of the head's index.
func (w *writer) head(x *loop.Access, head string) string {
	s := w.ctx
	s.Cols = []string{"0", head, "0"}
	mode, arg := "const ", w.K.Args[x.Arg]
	if arg.Write {
		mode = ""
	}
	return fmt.Sprintf("%s<%s%s>{a%d + (%s), %s, %s}", w.Use("head_view"), mode, w.Storage(arg.DType), x.Arg, w.Address(x, &s, ""), w.Dim(x.Cols[0]), w.Dim(x.Cols[2]))
}

// row returns the address of a head's elements of x, which has one element for each position.
func (w *writer) row(x *loop.Access, head string) string {
	s := w.ctx
	s.Cols = []string{"0", head}
	return fmt.Sprintf("a%d + (%s)", x.Arg, w.Address(x, &s, ""))
}

// call writes the call of a template of the kernel in src.
func (w *writer) call(suffix string, args ...string) {
	a := w.a
	stages := ""
	if w.shape.stages > 0 {
		stages = fmt.Sprintf(" %d,", w.shape.stages)
	}
	w.Line("%s%s<%s, %d, %d, %d,%s %t>(%s, %s, %s, %s, %s);", w.shape.kernel, suffix, w.Storage(w.K.Args[a.Q.Arg].DType), a.Size, w.shape.rows, w.shape.cols, stages, a.Causal,
		strings.Join(args, ", "), w.Dim(a.Queries), w.Dim(a.Keys), cgen.Float(a.Scale), "tile")
}

func (w *writer) forward() {
	a, group := w.a, fmt.Sprintf("head / %d", w.a.Heads/w.a.Groups)
	w.call("", w.head(&a.Q, "head"), w.head(&a.K, group), w.head(&a.V, group), w.head(&a.Out, "head"), w.row(&a.LSE, "head"), w.Dim(a.LSE.Cols[0]))
}

// rows returns a row_vector of x. head is the C expression of the head's index.
func (w *writer) rows(x *loop.Access, head string) string {
	return fmt.Sprintf("row_vector{%s, %s}", w.row(x, head), w.Dim(x.Cols[0]))
}

func (w *writer) queries() {
	a, group := w.a, fmt.Sprintf("head / %d", w.a.Heads/w.a.Groups)
	w.call("_queries", w.head(&a.Q, "head"), w.head(&a.K, group), w.head(&a.V, group), w.head(&a.Out, "head"),
		w.rows(&a.LSE, "head"), w.rows(&a.Grad.Delta, "head"), w.head(&a.Grad.DQ, "head"))
}

// keys writes the gradient of a group's keys and values, which sums over the heads of the group.
func (w *writer) keys() {
	a, share := w.a, w.a.Heads/w.a.Groups
	first := fmt.Sprintf("head * %d", share)
	w.call("_keys", w.head(&a.Q, first), w.Dim(a.Q.Cols[1]), w.head(&a.K, "head"), w.head(&a.V, "head"), w.head(&a.Out, first), w.Dim(a.Out.Cols[1]),
		w.rows(&a.LSE, first), w.Dim(a.LSE.Cols[1]), w.rows(&a.Grad.Delta, first), w.Dim(a.Grad.Delta.Cols[1]),
		w.head(&a.Grad.DK, "head"), w.head(&a.Grad.DV, "head"), cgen.Integer(share))
}
