package cgen

import (
	"fmt"
	"slices"
	"strconv"

	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// Row writes instructions that run once per row.
func (e *Emitter) Row(list []loop.Instr, s *Context) {
	at := *s
	at.Cols = slices.Repeat([]string{"0"}, len(e.K.Cols))
	at.Live = ""
	for n, in := range list {
		switch in.Op {
		case loop.Const, loop.Dim:
		case loop.Load:
			e.loadOne(in, &at, "")
		case loop.Store:
			cond := e.guard(in, &at, fmt.Sprintf("stores%d", n))
			switch {
			case cond == "":
				cond = s.StoresRow
			case s.StoresRow != "":
				cond = s.StoresRow + " && " + cond
			}
			e.storeOne(in, &at, "", cond)
		case loop.Iota:
			e.Define(in, e.Address(in.Access, &at, ""))
		default:
			e.Define(in, e.expression(in, e.operands(in)))
		}
	}
}

// operands returns the C expressions of the operands.
func (e *Emitter) operands(in loop.Instr) []string {
	args := make([]string, len(in.Args))
	for i, a := range in.Args {
		args[i] = e.Value(a)
	}
	return args
}

// Columns writes the instructions of a body for the columns of the context: first the loads of vectors
// and the loads that are the same for all columns, then the computation for each column with its other
// loads and stores, then the stores of vectors in their order. For one column it writes all stores last.
func (e *Emitter) Columns(list []loop.Instr, s *Context) {
	if s.Width == 1 {
		e.oneColumn(list, s)
		return
	}
	c := &columns{e: e, s: s, list: list, moves: e.moves(list), vectors: e.Vectors(list, s)}
	e.scanColumns(list, s, c.vectors)
	c.runs = e.philoxRuns(list, s)
	if c.declareOuts() {
		e.Line("#pragma unroll")
		e.Open("for (int j = 0; j < %d; j++)", s.Width)
		for n, in := range list {
			c.column(n, in)
		}
		e.Close()
	}
	for n, in := range list {
		if in.Op == loop.Store && c.outs[n] != "" {
			c.store(n, in)
		}
	}
}

// columns is a body that is being written for several columns.
type columns struct {
	e       *Emitter
	s       *Context
	list    []loop.Instr
	moves   map[loop.Value]bool   // loaded and stored, and not used otherwise
	vectors map[loop.Value]string // loaded as vectors
	runs    map[loop.Value]string // vectors of random numbers
	outs    []string              // by instruction: the vector that is stored
}

// declareOuts declares the vectors that are stored after the computation, and reports whether the body
// computes anything.
func (c *columns) declareOuts() (computes bool) {
	e := c.e
	c.outs = make([]string, len(c.list))
	for n, in := range c.list {
		switch {
		case in.Op == loop.Store && nest.IsConst(nest.Inner(in.Access), 1) && !nest.PerColumn(e.K, in.Access):
			v := in.Args[0]
			if x, ok := c.vectors[v]; ok && e.K.Args[in.Access.Arg].DType == e.K.Values[v].DType {
				c.outs[n] = x
				continue
			}
			c.outs[n] = fmt.Sprintf("y%d", n)
			e.Line("vec<%s, %d> y%d;", e.Storage(e.K.Args[in.Access.Arg].DType), c.s.Width, n)
			computes = true
		case in.Op == loop.Load && c.moves[in.Dst]:
		case in.Op != loop.Const && in.Op != loop.Dim:
			computes = true
		}
	}
	return computes
}

// column writes the n-th instruction for column j.
func (c *columns) column(n int, in loop.Instr) {
	e := c.e
	x, vector := c.vectors[in.Dst]
	run, random := c.runs[in.Dst]
	switch {
	case in.Op == loop.Load && vector:
		if !c.moves[in.Dst] {
			e.loaded(in, x+"[j]")
		}
	case in.Op == loop.Load:
		if nest.PerColumn(e.K, in.Access) || !nest.IsConst(nest.Inner(in.Access), 0) {
			e.loadOne(in, c.s, "j")
		}
	case in.Op == loop.Store && c.outs[n] == "":
		e.storeOne(in, c.s, "j", e.guard(in, c.s, fmt.Sprintf("stores%d", n)))
	case in.Op == loop.Store:
		if c.outs[n] == fmt.Sprintf("y%d", n) {
			e.Line("%s[j] = %s;", c.outs[n], e.stored(in))
		}
	case random:
		e.Define(in, run+"[j]")
	default:
		e.compute(in, c.s, "j")
	}
}

// store writes the store of a vector.
func (c *columns) store(n int, in loop.Instr) {
	e, s := c.e, c.s
	if s.Sink != nil {
		s.Sink(in, c.outs[n])
		return
	}
	cond := e.guard(in, s, fmt.Sprintf("stores%d", n))
	if cond != "" {
		cond = "if (" + cond + ") "
	}
	e.Use("vec")
	if s.Unstored == nil || !s.Unstored(in) {
		e.Line("%sstore(a%d + %s, %s);", cond, in.Access.Arg, e.Address(in.Access, s, ""), c.outs[n])
	}
	if s.Visited != nil {
		s.Visited(in, c.outs[n])
	}
}

// philoxRuns writes vectors of random numbers for columns whose indices into the random sequence are
// consecutive and begin at a multiple of the width: the columns then share blocks of the generator. It
// returns the names of the vectors.
func (e *Emitter) philoxRuns(list []loop.Instr, s *Context) map[loop.Value]string {
	out := make(map[loop.Value]string)
	index := make(map[loop.Value]*loop.Access)
	for _, in := range list {
		if in.Op == loop.Iota && nest.IsConst(nest.Inner(in.Access), 1) && aligned(in.Access, s.Width) {
			index[in.Dst] = in.Access
		}
		if in.Op != loop.Philox {
			continue
		}
		a, ok := index[in.Args[2]]
		if !ok || !e.sameForRow(in.Args[0]) || !e.sameForRow(in.Args[1]) {
			continue
		}
		name := "u" + strconv.Itoa(int(in.Dst))
		e.Line("const vec<float, %d> %s = %s<%d>(%s, %s, %s);", s.Width, name, e.Use("philox_run"), s.Width, e.Value(in.Args[0]), e.Value(in.Args[1]), e.Address(a, s, ""))
		out[in.Dst] = name
	}
	return out
}

// sameForRow reports whether a value is known before the columns are visited.
func (e *Emitter) sameForRow(v loop.Value) bool {
	_, known := e.known[v]
	return known || e.K.Values[v].Row
}

// oneColumn writes a body for a single column.
func (e *Emitter) oneColumn(list []loop.Instr, s *Context) {
	for _, in := range list {
		switch in.Op {
		case loop.Load:
			e.loadOne(in, s, "")
		case loop.Store:
		default:
			e.compute(in, s, "")
		}
	}
	for n, in := range list {
		switch {
		case in.Op != loop.Store:
		case s.Sink != nil:
			s.Sink(in, e.stored(in))
		default:
			e.storeOne(in, s, "", e.guard(in, s, fmt.Sprintf("stores%d", n)))
		}
	}
}

// compute writes an instruction that reaches no memory.
func (e *Emitter) compute(in loop.Instr, s *Context, j string) {
	switch {
	case in.Op == loop.Const, in.Op == loop.Dim:
	case in.Op == loop.Iota:
		e.Define(in, e.Address(in.Access, s, j))
	case in.Op == loop.Acc:
		if j == "" {
			j = "0"
		}
		e.Define(in, s.Acc+"["+j+"]")
	case in.Op == loop.CumSum:
		e.scan(in, s)
	case in.Op.Reduces():
		e.accumulate(in, s, j)
	default:
		e.Define(in, e.expression(in, e.operands(in)))
	}
}
