package interp

import (
	"errors"
	"fmt"
	"math"

	"pwc/ir"
)

// DefaultMaxBytes is the limit if Env.MaxBytes is 0: 16 GiB, or on 32-bit platforms half of the
// largest int.
const DefaultMaxBytes = int64(min(16<<30, addressable))

// addressable is the largest limit of a run.
const addressable = math.MaxInt / 2

// ErrMemory is matched by a [MemoryError].
var ErrMemory = errors.New("interp: the run needs more memory than it may take")

// MemoryError is a run that would exceed Env.MaxBytes. The run computed nothing. It matches
// [ErrMemory].
type MemoryError struct {
	At           *ir.Error // the first node that exceeds the limit; Node is -1: the copies of the results do
	Bytes, Limit int64     // Bytes are those of the run at that node, or with the copies; MaxInt64: a value has more than 2^36 elements
}

// Error gives the numbers with the node's position.
func (e *MemoryError) Error() string {
	if e.At == nil {
		return fmt.Sprintf("%v: %d bytes of %d", ErrMemory, e.Bytes, e.Limit)
	}
	return e.At.Error()
}

// Unwrap returns ErrMemory and the error at the node.
func (e *MemoryError) Unwrap() []error {
	if e.At == nil {
		return []error{ErrMemory}
	}
	return []error{ErrMemory, e.At}
}

const elementBytes = 8 // of a float64 or an int64

// checkMemory compares the memory of the run at each node with Env.MaxBytes. It counts the values
// that the node or later ones read and the node's results. For the node itself it adds the size of
// its results and the longest axis of its operands, which reductions and sorts need, or, for an
// extern op, the size of its operands, which are compared with copies. Results with a size that
// only an extern op knows count as 0.
func (r *run) checkMemory(last []int) error {
	limit := r.env.MaxBytes
	limit = min(limit, addressable)
	if limit <= 0 {
		limit = DefaultMaxBytes
	}
	bytes := make([]int64, len(r.f.Values)) // of a value, if it is the first version of its storage
	first := make([]ir.Value, len(r.f.Values))
	until := append([]int(nil), last...) // by first version: the last use of any version
	for v := range first {
		first[v] = ir.Value(v)
	}
	for _, n := range r.f.Nodes {
		for _, w := range n.Versions {
			first[w.Value] = first[n.Args[w.Arg]]
			until[first[w.Value]] = max(until[first[w.Value]], last[w.Value])
		}
	}
	held := int64(0)
	for i, n := range r.f.Nodes {
		var results, longest int64
		for _, v := range n.Results {
			t := r.f.Type(v)
			if t.HasUnknown() {
				continue
			}
			shape, err := evalAll(t.Shape, r.symbols)
			if err != nil {
				continue // the node reports its own error
			}
			count, err := elements(shape)
			if err != nil {
				return &MemoryError{At: r.m.ErrorAt(r.f, i, "%s: %v", n.Name(), err), Bytes: math.MaxInt64, Limit: limit}
			}
			bytes[v] = count * elementBytes
			results += bytes[v]
		}
		for _, v := range n.Args {
			shape, err := evalAll(r.f.Type(v).Shape, r.symbols)
			count, tooMany := elements(shape)
			switch {
			case err != nil || tooMany != nil || count == 0:
			case n.Extern != nil:
				longest += count * elementBytes // operands are compared with copies
			default:
				for _, d := range shape {
					longest = max(longest, d*elementBytes)
				}
			}
		}
		if now := held + 2*results + longest; now > limit {
			at := r.m.ErrorAt(r.f, i, "%s: the interpreter would hold %d bytes here, %d for each element; it may hold %d", n.Name(), now, int64(elementBytes), limit)
			return &MemoryError{At: at, Bytes: now, Limit: limit}
		}
		held += results
		for _, vs := range [][]ir.Value{n.Args, n.Results} {
			for _, v := range vs {
				if v = first[v]; until[v] <= i {
					held -= bytes[v]
					bytes[v] = 0
				}
			}
		}
	}
	results := int64(0)
	for _, v := range r.f.Returns {
		results += bytes[first[v]]
	}
	if held+results > limit {
		at := r.m.ErrorAt(r.f, -1, "the interpreter would hold %d bytes with the results of @%s; it may hold %d", held+results, r.f.Name, limit)
		return &MemoryError{At: at, Bytes: held + results, Limit: limit}
	}
	return nil
}
