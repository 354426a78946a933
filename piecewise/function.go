package piecewise

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"pwc/internal/opattr"
	"pwc/ir"
	"pwc/ir/padding"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/split"
)

// storageKind says whose memory a storage is.
type storageKind uint8

const (
	inParam  storageKind = iota // a parameter: its own memory, or that of a linked result
	inWeight                    // a weight of the module
	inState                     // a state of the module
	inResult                    // a result that the function computes, in a slot
	inWork                      // the arena, from unit first to unit last
)

// storage is memory outside of units: one for each parameter of the function, and for each other base
// value that is an operand or a result of a unit, or that the function returns.
type storage struct {
	base        ir.Value
	kind        storageKind
	index       int // parameter, module weight, module state or result slot
	typ         ir.Type
	first, last int // units, of inWork
}

// unit is one thing that a run launches: a compiled piece or a splitting call.
type unit struct {
	item      int // in split.Plan.Items
	splitting bool
	piece     *split.Piece // nil: a call
	node      int          // of the call
	op        device.Op    // of the call; nil: a backend without a device has no implementation
	attrs     []program.Attr
	args      []int32 // storages: a piece's program parameters; a call's operands and results
	results   []int32 // storages of a piece's results
	name      string  // for ProfileRanges
}

// input is one parameter of a function, as runs fill it.
type input struct {
	name  string
	value ir.Value
	typ   ir.Type
	bytes amount
	lead  int  // index in function.symbols of a symbol that equals the first extent; -1: there is no such symbol
	fill  byte // of padded rows: 0, or minusOne
	// counted is the index of a batch symbol (countsRows or isOther) that the first extent
	// depends on; -1: there is no such symbol.
	counted int
	rows    bool // its bytes are proportional to the size symbol
	// written: a run of the function, or of a function with a result that aliases the
	// parameter, changes its memory, so it is copied before every run.
	written bool
	// rowBytes is the size of one row if the first extent equals a symbol and rows
	// all have one size; else 0.
	rowBytes int64
	from     *function // linked: the earlier function whose result it shares; nil: not linked
	slot     int       // of from
	place    *place    // linked: the place of the result
}

// slot is a function result with memory of its own or of an aliased parameter.
type slot struct {
	storage int32
	place   *place
	aliased bool // the place is that of a parameter
}

// function holds the decisions of New about one function of the module. Nothing changes it after
// New; its [instance] holds the state of Load, Capture and runs.
type function struct {
	plan  *plan
	index int // in plan.funcs

	ir      *ir.Func
	name    string // for ProfileRanges
	split   *split.Plan
	size    string // size symbol; "": the function has no size symbol, and runs as one row
	lo, hi  int64  // sizes that may run
	symbols []runSymbol

	inputs      []input
	inputByName map[string]int // index in inputs
	checks      []indexCheck

	storages  []storage
	byBase    map[ir.Value]int32
	declared  map[declared]ir.Value // weights and states that the function names
	units     []unit
	preparers []device.Preparer // ops of units, each once

	slots    []slot
	returns  []int32  // storage of each result
	rowBytes []int64  // by result: bytes of a row if the first extent equals the size symbol and rows all have one size; else, and for weights and states, 0
	writes   []*place // that nodes of the function write in place

	sizes   []int64 // capture sizes, ascending
	full    int     // how many of the sizes, from the smallest, a full graph is captured for
	pick    []int16 // by rows: index in sizes of the size that serves them; -1: no size
	mixing  []padding.Mixing
	noPad   error      // why rows must not be padded; nil: they may be padded
	noGraph error      // in a mode that captures, why no graph can serve the function; nil: graphs can
	skip    skipReason // of noGraph

	atMax *layout // of the largest size that may run
}

// declared is a weight or state by its index in the module.
type declared struct {
	kind  storageKind
	index int
}

// newFunction makes the decisions about a function. The error lists all parameters and results
// whose sizes cannot be computed; the function then serves only to find errors of later functions.
func newFunction(pl *plan, f *ir.Func, parts *split.Plan) (*function, error) {
	fn := &function{plan: pl, index: len(pl.funcs), ir: f, split: parts, name: "@" + f.Name, byBase: map[ir.Value]int32{}, inputByName: map[string]int{}, lo: 1, hi: 1}
	if name, ok := padding.SizeSymbol(pl.module, f); ok {
		s := pl.module.Symbol(name)
		fn.size, fn.lo, fn.hi = name, s.Lo, pl.opts.limit(s)
		if fn.mixing = padding.Check(pl.module, f, name, pl.slotsOf(f)...); len(fn.mixing) > 0 {
			fn.noPad = fn.mixing[0].Err
		}
	}
	errs := []error{fn.addInputs()}
	fn.chooseSizes()
	fn.addUnits()
	for i, v := range f.Returns {
		at := fn.storage(f.Base(v))
		st := &fn.storages[at]
		if st.kind == inWork {
			st.kind, st.index = inResult, len(fn.slots)
			fn.slots = append(fn.slots, slot{storage: at, place: &place{writers: []writer{{fn, len(fn.slots)}}}})
		}
		fn.returns = append(fn.returns, at)
		per := int64(0)
		if t := st.typ; (st.kind == inResult || st.kind == inParam) && fn.leads(t, fn.size) {
			a, err := fn.amountOf(t)
			if err != nil {
				errs = append(errs, fmt.Errorf("result %d of @%s: %w", i, f.Name, err))
			}
			if a.symbol >= 0 {
				per = a.per
			}
		}
		fn.rowBytes = append(fn.rowBytes, per)
	}
	return fn, errors.Join(errs...)
}

// minusOne is every byte of -1 in a signed integer dtype.
const minusOne = 0xff

// slotsOf returns the names of the parameters whose padded rows hold -1, according to the module
// or the options.
func (pl *plan) slotsOf(f *ir.Func) []string {
	var out []string
	for _, p := range f.Params {
		if info := &f.Values[p]; info.Padded || slices.ContainsFunc(pl.opts.Capture.PaddedSlots, func(s string) bool { return s == info.Name || s == f.Name+"."+info.Name }) {
			out = append(out, info.Name)
		}
	}
	return out
}

// chooseSizes sets the capture sizes, or the reason why no graph can serve the function. A function
// without a size symbol has one size, 1, unless the list of the options is empty and not nil.
func (fn *function) chooseSizes() {
	o := &fn.plan.opts
	switch {
	case o.Capture.Mode == None:
		return
	case len(fn.plain()) > 0:
		fn.noGraph, fn.skip = fmt.Errorf("@%s: %s bound at each run, and a graph is for one value", fn.ir.Name, areSymbols(fn.plain())), skipPlain
		return
	}
	if fn.skip, fn.noGraph = fn.linkedRows(); fn.noGraph != nil {
		return
	}
	if fn.size == "" {
		if o.Capture.Sizes == nil || len(o.Capture.Sizes) > 0 {
			fn.sizes = []int64{1}
		}
		fn.full = len(fn.sizes)
	} else {
		fn.sizes = o.sizes(max(fn.lo, 1), fn.hi)
		fn.full = o.decodeSizes(fn.sizes)
	}
	if !o.Capture.Mode.full() {
		fn.full = 0
	}
	if o.Capture.Mode == Full {
		fn.full = len(fn.sizes)
	}
	fn.buildPick()
}

// areSymbols returns "symbol K is" or "symbols K and L are".
func areSymbols(names []string) string {
	if len(names) == 1 {
		return "symbol " + names[0] + " is"
	}
	last := len(names) - 1
	return "symbols " + strings.Join(names[:last], ", ") + " and " + names[last] + " are"
}

// storage returns the storage of a base value, adding it when it is new.
func (fn *function) storage(base ir.Value) int32 {
	if i, ok := fn.byBase[base]; ok {
		return i
	}
	info := fn.ir.Values[base]
	s := storage{base: base, typ: info.Type, index: int(info.Index), kind: inWork, first: -1}
	switch info.Kind {
	case ir.ParamValue:
		s.kind = inParam
	case ir.WeightValue:
		s.kind = inWeight
	case ir.StateValue:
		s.kind = inState
	}
	i := int32(len(fn.storages))
	fn.storages = append(fn.storages, s)
	fn.byBase[base] = i
	return i
}

// addUnits sets the units of the split plan in launch order, and the lifetimes of
// storages in units.
func (fn *function) addUnits() {
	unwritten := map[ir.Value]bool{}
	for _, pu := range fn.split.Units {
		it := fn.split.Items[pu.Item]
		u := unit{item: pu.Item, splitting: it.Splitting, piece: pu.Piece, node: pu.Call}
		if u.piece != nil {
			for _, n := range u.piece.Func.Nodes {
				if n.Extern != nil {
					fn.addPreparer(fn.plan.ops[n.Extern.Name])
				}
			}
			for _, p := range u.piece.Params {
				u.args = append(u.args, fn.storage(p.Base))
			}
			for _, w := range u.piece.Weights {
				u.args = append(u.args, fn.module(inWeight, w))
			}
			for _, s := range u.piece.States {
				u.args = append(u.args, fn.module(inState, s))
			}
			for _, r := range u.piece.Results {
				u.results = append(u.results, fn.storage(r.Base))
				// Memory of an empty tensor that the piece does not write has no
				// contents yet: its lifetime begins with the unit that first takes it.
				if n := fn.ir.Def(r.Base); n != nil && n.IsEmpty() && r.Value == r.Base {
					unwritten[r.Base] = true
				}
			}
		} else {
			n := fn.ir.Nodes[pu.Call]
			for _, v := range slices.Concat(n.Args, n.Results) {
				u.args = append(u.args, fn.storage(fn.ir.Base(v)))
			}
			u.op = fn.plan.ops[n.Extern.Name]
			u.attrs = opattr.Of(n.Attrs)
			fn.addPreparer(u.op)
		}
		u.name = fn.nameOf(&u)
		fn.units = append(fn.units, u)
	}
	for _, s := range fn.split.Storages {
		st := &fn.storages[fn.storage(s.Base)]
		st.first, st.last = s.First, s.Last
	}
	for id := range fn.units {
		for _, a := range fn.units[id].args {
			if st := &fn.storages[a]; unwritten[st.base] && id > st.first {
				st.first = id
				delete(unwritten, st.base)
			}
		}
	}
}

// addPreparer adds an op to preparers if it is a [device.Preparer].
func (fn *function) addPreparer(op device.Op) {
	p, ok := op.(device.Preparer)
	same := func(q device.Preparer) bool { return q.Signature().Name == p.Signature().Name }
	if ok && !slices.ContainsFunc(fn.preparers, same) {
		fn.preparers = append(fn.preparers, p)
	}
}

// module returns the storage of a weight or state by its index in the module.
func (fn *function) module(kind storageKind, index int) int32 {
	if fn.declared == nil {
		fn.declared = map[declared]ir.Value{}
		for v, info := range fn.ir.Values {
			switch info.Kind {
			case ir.WeightValue:
				fn.declared[declared{inWeight, int(info.Index)}] = ir.Value(v)
			case ir.StateValue:
				fn.declared[declared{inState, int(info.Index)}] = ir.Value(v)
			}
		}
	}
	return fn.storage(fn.declared[declared{kind, index}])
}

// nameOf names a unit for profilers: its function, its piece, and where the piece
// begins in the model.
func (fn *function) nameOf(u *unit) string {
	node := u.node
	if u.piece != nil && len(u.piece.Origins) > 0 {
		node = u.piece.Origins[0]
	}
	name := fmt.Sprintf("%s %d", fn.name, fn.split.Items[u.item].ID)
	if loc := fn.ir.Nodes[node].Loc; loc != "" {
		return name + " " + loc
	}
	return name
}

// loc returns the op and the source location of a node of a unit. origin is the node's index
// in the piece (Origin of a program's step).
func (fn *function) loc(u *unit, origin int32) string {
	node := u.node
	if u.piece != nil {
		if int(origin) >= len(u.piece.Origins) || origin < 0 {
			return "unknown op"
		}
		node = u.piece.Origins[origin]
	}
	n := fn.ir.Nodes[node]
	if n.Loc == "" {
		return fmt.Sprintf("%s (node %d of @%s)", n.Name(), node, fn.ir.Name)
	}
	return fmt.Sprintf("%s (%s)", n.Name(), n.Loc)
}
