package ir

import (
	"fmt"
	"slices"

	"pwc/ir/dim"
)

// Verify checks the functions of a module and returns the violations as an [ErrorList], or nil.
// It runs after parsing and after every pass. If a pass has left the tables of a function
// inconsistent, Verify reports only that of the function. Otherwise it checks nodes, results and,
// if these have no error, placements. It does not check declarations and the types of
// parameters: a [Builder] does.
func (m *Module) Verify() error {
	var errs ErrorList
	symbols := m.intervals()
	for _, f := range m.Funcs {
		errs = append(errs, verifyFunc(m, symbols, f)...)
	}
	return errs.Err()
}

// verifier checks one function, in program order.
type verifier struct {
	m       *Module
	f       *Func
	symbols map[string]dim.Interval
	latest  []Value // by base: newest version so far
	defined []bool  // by value
	draws   draws
	errs    ErrorList
}

// intervals returns the ranges of the module's symbols.
func (m *Module) intervals() map[string]dim.Interval {
	out := make(map[string]dim.Interval, len(m.Symbols))
	for _, s := range m.Symbols {
		out[s.Name] = dim.Interval{Lo: s.Lo, Hi: s.Hi}
	}
	return out
}

// verifyFunc verifies f, a function over m's declarations; symbols are m's intervals.
func verifyFunc(m *Module, symbols map[string]dim.Interval, f *Func) ErrorList {
	v := &verifier{m: m, f: f, symbols: symbols, latest: make([]Value, len(f.Values)), defined: make([]bool, len(f.Values))}
	v.tables()
	if len(v.errs) > 0 {
		return v.errs // the checks below rely on the tables
	}
	for i, info := range f.Values {
		v.latest[i] = Value(i)
		v.defined[i] = info.Node < 0
	}
	for i, n := range f.Nodes {
		v.node(i, n)
	}
	v.returns()
	if len(v.errs) == 0 {
		v.placements()
	}
	return v.errs
}

// report records a violation at node i, or at the end of the function.
func (v *verifier) report(i int, format string, args ...any) {
	v.errs = append(v.errs, v.m.ErrorAt(v.f, i, format, args...))
}

func (v *verifier) bounds(sym string) (dim.Interval, bool) {
	iv, ok := v.symbols[sym]
	return iv, ok
}

// is reports whether x is a value of the function.
func (v *verifier) is(x Value) bool { return x >= 0 && int(x) < len(v.f.Values) }

// tables checks the indices that the function's tables hold into each other, so that later
// checks can use them. Indices of operands and returned values are checked at their uses.
func (v *verifier) tables() {
	f := v.f
	for i := range f.Values {
		if why := v.valueError(Value(i)); why != "" {
			v.report(-1, "value %d of @%s %s", i, f.Name, why)
		}
	}
	for i, p := range f.Params {
		if !v.is(p) || f.Values[p].Kind != ParamValue || int(f.Values[p].Index) != i {
			v.report(-1, "parameter %d of @%s is not a parameter value with that index", i, f.Name)
		}
	}
	for i, n := range f.Nodes {
		switch {
		case n == nil || n.Op == nil:
			v.errs = append(v.errs, &Error{Source: v.m.Source, Func: f.Name, Node: i, Msg: "the node has no op"})
		case (n.Op.Class == Call) != (n.Extern != nil):
			v.report(i, "%s: a call needs an extern op, and another op cannot have one", n.Op.Name)
		case slices.ContainsFunc(n.Results, func(r Value) bool { return !v.is(r) }):
			v.report(i, "%s has a result that is no value of the function", n.Name())
		case slices.ContainsFunc(n.Versions, func(w Version) bool { return !v.is(w.Value) || w.Arg < 0 || w.Arg >= len(n.Args) }):
			v.report(i, "%s has a version whose operand or value does not exist", n.Name())
		}
	}
}

// valueError returns what is wrong with the fields of a value, or "".
func (v *verifier) valueError(x Value) string {
	info := &v.f.Values[x]
	made, count := false, -1
	switch info.Kind {
	case ParamValue:
		count = len(v.f.Params)
	case WeightValue:
		count = len(v.m.Weights)
	case StateValue:
		count = len(v.m.States)
	case ResultValue, VersionValue:
		made = true
	case LiteralValue:
	default:
		return fmt.Sprintf("is of unknown kind %d", info.Kind)
	}
	own := info.Base == x
	if info.Kind == VersionValue {
		own = v.is(info.Base) && v.f.Values[info.Base].Kind != VersionValue
	}
	switch {
	case count >= 0 && (info.Index < 0 || int(info.Index) >= count):
		return fmt.Sprintf("has index %d, want less than %d", info.Index, count)
	case made && (info.Node < 0 || int(info.Node) >= len(v.f.Nodes)), !made && info.Node != -1:
		return fmt.Sprintf("has node %d, which cannot define it", info.Node)
	case !own:
		return fmt.Sprintf("has value %d as its base", info.Base)
	}
	return ""
}

// problem returns why a value cannot be read here, or "".
func (v *verifier) problem(x Value) string {
	switch {
	case !v.is(x):
		return "is no value of the function"
	case !v.defined[x]:
		return "is used before it is defined"
	case v.latest[v.f.Values[x].Base] != x:
		return "is a version of its storage that a later write replaced"
	}
	return ""
}

// node checks a node and defines its results and versions, even if it has an error: uses of
// them then report no further errors. A version that is not of this node or of the operand's storage
// may stay undefined.
func (v *verifier) node(i int, n *Node) {
	good := true
	for j, a := range n.Args {
		if msg := v.problem(a); msg != "" {
			v.report(i, "operand %d of %s %s", j, n.Name(), msg)
			good = false
		}
	}
	if !good || !v.types(i, n) {
		for _, r := range n.Results {
			v.defined[r] = true
		}
		for _, w := range n.Versions {
			v.write(w)
		}
		return
	}
	for _, r := range n.Results {
		if v.f.Values[r].Node != int32(i) || v.defined[r] {
			v.report(i, "%s: a result is defined elsewhere", n.Name())
		}
		v.defined[r] = true
	}
	for _, w := range n.Versions {
		info := v.f.Values[w.Value]
		if info.Kind != VersionValue || info.Node != int32(i) || info.Base != v.f.Values[n.Args[w.Arg]].Base {
			v.report(i, "%s: the version of operand %d does not belong to it", n.Name(), w.Arg)
			continue
		}
		v.write(w)
	}
	for j := range n.Args {
		if mutOperand(n, j) && !slices.ContainsFunc(n.Versions, func(w Version) bool { return w.Arg == j }) {
			v.report(i, "%s writes operand %d without a version for it", n.Name(), j)
		}
	}
}

func (v *verifier) write(w Version) {
	v.defined[w.Value] = true
	v.latest[v.f.Values[w.Value].Base] = w.Value
}

// types checks operands, attributes and writes, and that results have the types
// that follow from these. It returns false if no types follow.
func (v *verifier) types(i int, n *Node) bool {
	stated := make([]Type, len(n.Results))
	for j, r := range n.Results {
		stated[j] = v.f.Values[r].Type
	}
	probe := *n // inferNode brings attributes into canonical form
	types, msgs := inferNode(v.f, &probe, stated, scope{v.bounds, v.m.Group})
	for _, s := range append(msgs, writeErrors(v.f, n)...) {
		v.report(i, "%s", s)
	}
	if len(msgs) > 0 {
		return false
	}
	for _, s := range v.draws.add(v.f, n, types) {
		v.report(i, "%s", s)
	}
	if !slices.EqualFunc(types, stated, Type.Equal) {
		v.report(i, "%s has results %v, its operands give %v", n.Name(), stated, types)
	}
	return true
}

// returns checks the function's results.
func (v *verifier) returns() {
	f := v.f
	if len(f.Returns) != len(f.ResultTypes) {
		v.report(-1, "@%s returns %d values, declares %d", f.Name, len(f.Returns), len(f.ResultTypes))
		return
	}
	for j, x := range f.Returns {
		if msg := v.problem(x); msg != "" {
			v.report(-1, "returned value %d of @%s %s", j, f.Name, msg)
			continue
		}
		switch info := f.Values[x]; {
		case info.Kind == LiteralValue:
			v.report(-1, "@%s returns a literal", f.Name)
		case info.Type.HasUnknown():
			v.report(-1, "@%s returns %s as result %d: an extent that only the op knows cannot leave the function", f.Name, info.Type, j)
		case !info.Type.Equal(f.ResultTypes[j]):
			v.report(-1, "@%s returns %s as result %d, declares %s", f.Name, info.Type, j, f.ResultTypes[j])
		}
	}
}
