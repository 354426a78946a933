package device

import (
	"fmt"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
)

// Assigned is the memory of a bound program.
type Assigned struct {
	Buffers []Buffer // one for each buffer of the program, of its declared size; the zero Buffer if that is 0
	Extern  Buffer   // scratch memory that the calls of ops use one after the other
}

// Assign finds the memory of every buffer of a resolved program in the arguments
// of Bind, and checks their sizes. constant returns the memory of a constant.
// usable returns an error if the device cannot use memory with an alignment. It is
// called with alignment 1 for each parameter and each result without Alias and Same, and
// with the buffer's own alignment for each buffer that is not empty.
func (r *Resolved) Assign(p *program.Program, env program.Env, args Args, constant func(i int32) Buffer, usable func(b Buffer, align int64) error) (*Assigned, error) {
	if len(args.Params) != len(p.Params) || len(args.Results) != len(p.Results) {
		return nil, fmt.Errorf("%d parameters and %d results for a program of %d and %d", len(args.Params), len(args.Results), len(p.Params), len(p.Results))
	}
	given := func(dt dtype.DType, shape []dim.Dim, have Buffer) error {
		want, err := program.Bytes(dt, shape, env)
		if err != nil {
			return err
		}
		if have.Size < want {
			return fmt.Errorf("%d bytes of memory, want at least %d", have.Size, want)
		}
		return usable(have, 1)
	}
	for i, q := range p.Params {
		if err := given(q.DType, q.Shape, args.Params[i]); err != nil {
			return nil, fmt.Errorf("parameter %d: %w", i, err)
		}
	}
	for i, q := range p.Results {
		if q.Alias >= 0 || q.Same >= 0 {
			continue
		}
		if err := given(q.DType, q.Shape, args.Results[i]); err != nil {
			return nil, fmt.Errorf("result %d: %w", i, err)
		}
	}
	if args.Scratch.Size < r.Scratch {
		return nil, fmt.Errorf("scratch of %d bytes, want at least %d", args.Scratch.Size, r.Scratch)
	}
	out := &Assigned{Buffers: make([]Buffer, len(p.Buffers))}
	for i := range p.Buffers {
		if err := r.assign(p, i, env, args, constant, usable, &out.Buffers[i]); err != nil {
			return nil, fmt.Errorf("buffer %d: %w", i, err)
		}
	}
	if r.Scratch > 0 {
		out.Extern = args.Scratch.Slice(r.Extern, r.Scratch-r.Extern)
	}
	return out, nil
}

// assign finds the memory of one buffer.
func (r *Resolved) assign(p *program.Program, i int, env program.Env, args Args, constant func(i int32) Buffer, usable func(Buffer, int64) error, out *Buffer) error {
	buf := &p.Buffers[i]
	want, err := buf.Bytes(env)
	if err != nil {
		return err
	}
	var from Buffer
	switch buf.Kind {
	case program.BufferParam:
		from = args.Params[buf.Index]
	case program.BufferResult:
		from = args.Results[buf.Index]
	case program.BufferScratch:
		if want > 0 {
			from = args.Scratch.Slice(r.Offsets[i], want)
		}
	case program.BufferConst:
		from = constant(buf.Index)
	}
	if from.Size < want {
		return fmt.Errorf("%d bytes of memory, want at least %d", from.Size, want)
	}
	if want == 0 {
		return nil
	}
	from.Size = want
	*out = from
	return usable(from, buf.Alignment())
}

// Call returns the call of an op's step, with the memory of its operands and results.
func (m *Assigned) Call(s *ResolvedStep) *OpCall {
	for j, a := range s.Args {
		s.Tensors[j].Buffer = m.Buffers[a]
	}
	call := &OpCall{Args: s.Tensors, Attrs: s.Values, Origin: s.Origin}
	if s.Need > 0 {
		call.Scratch = m.Extern.Slice(0, s.Need)
	}
	return call
}

// Recorded checks, after an op was launched while capturing, that it recorded a node, unless
// it has no results or all of them are empty: a replay would not repeat work that the op did
// in its launch.
// recorded is the number of nodes that it recorded.
func (c *OpCall) Recorded(sig Signature, recorded int) error {
	if recorded > 0 {
		return nil
	}
	for _, t := range c.Args[max(len(c.Args)-sig.Results, 0):] {
		if t.Size > 0 {
			return fmt.Errorf("%w: %s recorded nothing, so a replay would not compute its results; enqueue the work on the call's stream", ErrNotCapturable, sig.Name)
		}
	}
	return nil
}
