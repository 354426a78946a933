package ir

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"pwc/internal/termsafe"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Builder makes a module. Frontends, the parser and most passes go through it, so that a rule of
// the language is checked in one place. Methods collect errors, which Build returns.
type Builder struct {
	m       *Module
	errs    ErrorList
	weights map[string]int
	states  map[string]int
	externs map[string]*Extern
	symbols map[string]*Symbol
	funcs   map[string]bool
}

// NewBuilder starts a module of that name.
func NewBuilder(name string) *Builder {
	return &Builder{m: &Module{Name: name}, weights: map[string]int{}, states: map[string]int{},
		externs: map[string]*Extern{}, symbols: map[string]*Symbol{}, funcs: map[string]bool{}}
}

// Module returns the module under construction.
func (b *Builder) Module() *Module { return b.m }

// at returns the origin for a position of the module's text.
func (b *Builder) at(pos Pos) Origin {
	if !pos.IsValid() || b.m.Source == nil {
		return Origin{Pos: pos}
	}
	return Origin{File: b.m.Source.Name, Pos: pos}
}

// Errorf records an error that belongs to no node; pos may be zero.
func (b *Builder) Errorf(pos Pos, format string, args ...any) {
	b.errs = append(b.errs, &Error{Source: b.m.Source, Origin: b.at(pos), Node: -1, Msg: fmt.Sprintf(format, args...)})
}

// WeightsFrom sets the path of the checkpoint that weights are loaded from, a directory or a file.
func (b *Builder) WeightsFrom(path string) { b.m.WeightsFrom = path }

// WeightsStrict says that loading refuses tensors of the checkpoint that no weight or state
// reads and that are not declared unread.
func (b *Builder) WeightsStrict() { b.m.Strict = true }

// maxUnread bounds the declarations of unread tensors: each tensor of a checkpoint is
// compared with each of them.
const maxUnread = 256

// Unread declares a tensor that a checkpoint may hold though no weight or state reads it. equal may
// name a second tensor: if the checkpoint has both, their shapes, dtypes and bytes must be
// equal.
func (b *Builder) Unread(name, equal string) { b.AddUnread(&Unread{Name: name, Equal: equal}) }

// AddUnread declares u.
func (b *Builder) AddUnread(u *Unread) {
	if u == nil {
		b.Errorf(Pos{}, "a nil declaration of an unread tensor")
		return
	}
	twice := slices.ContainsFunc(b.m.Unread, func(v *Unread) bool { return v.Name == u.Name })
	parts := strings.Split(u.Name, ".")
	pattern := slices.Contains(parts, "*") || parts[len(parts)-1] == "**"
	switch {
	case u.Name == "":
		b.Errorf(u.Pos, "unread names no tensor")
	case twice:
		b.Errorf(u.Pos, "%q is declared unread twice", termsafe.Clip(u.Name, 60))
	case u.Equal != "" && (pattern || u.Name == u.Equal):
		b.Errorf(u.Pos, "unread %q = %q: want the names of two tensors, without patterns", termsafe.Clip(u.Name, 60), termsafe.Clip(u.Equal, 60))
	case len(b.m.Unread) == maxUnread:
		b.Errorf(u.Pos, "more than %d declarations of unread tensors", maxUnread)
	}
	b.m.Unread = append(b.m.Unread, u)
}

// MaxContext is the largest context of a module: a token's number in its sequence is an i32.
const MaxContext = math.MaxInt32

// Context declares the longest sequence that the model supports, in tokens: in [1, MaxContext].
func (b *Builder) Context(tokens int64) { b.context(tokens, Pos{}) }

func (b *Builder) context(tokens int64, pos Pos) {
	if tokens < 1 || tokens > MaxContext {
		b.Errorf(pos, "context %d is not in [1, %d]", tokens, MaxContext)
	}
	b.m.Context = tokens
}

// maxEOS bounds the ids that end a sequence: each token is compared with each of them.
const maxEOS = 256

// EOS declares the token ids that end a sequence: 1 to 256 different ids of at least 0.
func (b *Builder) EOS(ids ...int32) { b.eos(ids, Pos{}) }

func (b *Builder) eos(ids []int32, pos Pos) {
	if len(ids) == 0 || len(ids) > maxEOS {
		b.Errorf(pos, "eos has %d ids, want 1 to %d", len(ids), maxEOS)
		return
	}
	for i, id := range ids {
		switch {
		case id < 0:
			b.Errorf(pos, "eos: id %d is negative", id)
		case slices.Contains(ids[:i], id):
			b.Errorf(pos, "eos: id %d occurs twice", id)
		}
	}
	b.m.EOS = ids
}

// Symbol declares an extent in [lo, hi] and returns it as a dim.
func (b *Builder) Symbol(name string, lo, hi int64, kind SymbolKind) dim.Dim {
	return b.AddSymbol(&Symbol{Name: name, Lo: lo, Hi: hi, Kind: kind})
}

// AddSymbol declares s and returns it as a dim.
func (b *Builder) AddSymbol(s *Symbol) dim.Dim {
	if s == nil {
		b.Errorf(Pos{}, "a nil symbol is declared")
		return dim.Dim{}
	}
	switch {
	case b.symbols[s.Name] != nil:
		b.Errorf(s.Pos, "symbol %s is declared twice", s.Name)
	case !dim.ValidName(s.Name) || isReserved(s.Name) || s.Name == Unknown:
		b.Errorf(s.Pos, "%q is no name for a symbol", s.Name)
	case s.Lo < 0 || s.Hi < s.Lo:
		b.Errorf(s.Pos, "symbol %s: range [%d, %d] is empty or negative", s.Name, s.Lo, s.Hi)
	}
	b.symbols[s.Name] = s
	b.m.Symbols = append(b.m.Symbols, s)
	return dim.Sym(s.Name)
}

func (b *Builder) bounds(sym string) (dim.Interval, bool) {
	if s := b.symbols[sym]; s != nil {
		return dim.Interval{Lo: s.Lo, Hi: s.Hi}, true
	}
	return dim.Interval{}, false
}

// Extern declares an extern op and returns it.
func (b *Builder) Extern(e *Extern) *Extern {
	if e == nil {
		b.Errorf(Pos{}, "a nil extern op is declared")
		return &Extern{}
	}
	if b.externs[e.Name] != nil {
		b.Errorf(e.Pos, "extern op %q is declared twice", e.Name)
	}
	if !validExternName(e.Name) {
		b.Errorf(e.Pos, "extern op %q: a name is ns::op or ns::op.overload", e.Name)
	}
	if e.Results < 0 {
		b.Errorf(e.Pos, "extern op %q: negative number of results", e.Name)
	}
	b.externs[e.Name] = e
	b.m.Externs = append(b.m.Externs, e)
	return e
}

// Weight declares a weight; a nil expression means the checkpoint tensor of
// the same name.
func (b *Builder) Weight(name string, t Type, expr *WeightExpr) *Weight {
	return b.AddWeight(&Weight{Name: name, Type: t, Expr: expr})
}

// AddWeight declares w.
func (b *Builder) AddWeight(w *Weight) *Weight {
	if w == nil {
		b.Errorf(Pos{}, "a nil weight is declared")
		return &Weight{}
	}
	errs := len(b.errs)
	b.declare(w.Name, w.Pos)
	b.checkType(w.Type, w.Pos, "weight @"+w.Name, func(s *Symbol) string {
		return fmt.Sprintf("a weight's extents are constants, %s is not", s.Name)
	})
	if w.Expr != nil {
		b.checkWeightExpr(w.Expr, "weight @"+w.Name)
	}
	w.Placements = b.placements(w.Placements, w.Type, w.Pos, "weight @"+w.Name)
	if len(b.errs) == errs {
		b.checkWeightSpread(w)
	}
	b.weights[w.Name] = len(b.m.Weights)
	b.m.Weights = append(b.m.Weights, w)
	return w
}

// State declares a state, owned by the runner, that starts from zeros; its extents are
// constants and load symbols.
func (b *Builder) State(name string, t Type) *State { return b.AddState(&State{Name: name, Type: t}) }

// AddState declares s.
func (b *Builder) AddState(s *State) *State {
	if s == nil {
		b.Errorf(Pos{}, "a nil state is declared")
		return &State{}
	}
	errs := len(b.errs)
	b.declare(s.Name, s.Pos)
	b.checkType(s.Type, s.Pos, "state @"+s.Name, func(y *Symbol) string {
		switch {
		case y.Kind == Load && s.Expr == nil:
			return ""
		case y.Kind == Load:
			return fmt.Sprintf("the extents of a state that starts from tensors are constants, %s is not", y.Name)
		}
		return fmt.Sprintf("a state's extents are constants and load symbols, %s is neither", y.Name)
	})
	s.Placements = b.placements(s.Placements, s.Type, s.Pos, "state @"+s.Name)
	if s.Expr != nil {
		b.checkWeightExpr(s.Expr, "state @"+s.Name)
	}
	if len(b.errs) == errs {
		b.checkStateSpread(s)
	}
	b.states[s.Name] = len(b.m.States)
	b.m.States = append(b.m.States, s)
	return s
}

func (b *Builder) declare(name string, pos Pos) {
	_, w := b.weights[name]
	_, s := b.states[name]
	if w || s {
		b.Errorf(pos, "@%s is declared twice", name)
	}
	if name == "" {
		b.Errorf(pos, "a weight or state needs a name")
	}
}

// checkType checks a type. Errors begin with what. refuse, if not nil, returns why an extent may
// not have a symbol, or "".
func (b *Builder) checkType(t Type, pos Pos, what string, refuse func(*Symbol) string) {
	if !t.DType.Valid() {
		b.Errorf(pos, "%s: no dtype", what)
	}
	if t.Rank() > MaxRank {
		b.Errorf(pos, "%s: %d axes, want at most %d", what, t.Rank(), MaxRank)
		return
	}
	for _, d := range t.Shape {
		if err := d.Err(); err != nil {
			b.Errorf(pos, "%s: extent: %v", what, err)
			return
		}
		for _, name := range d.Symbols() {
			s := b.symbols[name]
			if name == Unknown {
				b.Errorf(pos, "%s: only the results of a call may have unknown extents", what)
				return
			}
			if s == nil {
				b.Errorf(pos, "%s: symbol %s is not declared", what, name)
				return
			}
			if refuse != nil {
				if why := refuse(s); why != "" {
					b.Errorf(pos, "%s: %s", what, why)
					return
				}
			}
		}
		if iv, ok := d.Bounds(b.bounds); !ok || iv.Lo < 0 {
			b.Errorf(pos, "%s: extent %s is not known to be at least 0", what, d)
			return
		}
	}
	if _, ok := t.Elements().Bounds(b.bounds); !ok {
		b.Errorf(pos, "%s: %s has more elements than an int64 can count", what, t)
	}
}

// checkWeightExpr checks the expression of a weight or state. Errors begin with what, such as
// "weight @w".
func (b *Builder) checkWeightExpr(e *WeightExpr, what string) {
	switch {
	case e == nil:
		b.Errorf(Pos{}, "%s: a nil expression", what)
		return
	case e.Op == WeightTensor && e.Name == "":
		b.Errorf(e.Pos, "%s: a tensor needs a name", what)
		return
	case e.Op == WeightTensor && len(e.Args)+len(e.Attrs) > 0:
		b.Errorf(e.Pos, "%s: tensor %q has operands or attributes, which only ops have", what, e.Name)
		return
	case e.Op == WeightTensor:
		return
	}
	op := e.Op.Op()
	if op == nil {
		b.Errorf(e.Pos, "%s: %d is no op of weight expressions", what, uint8(e.Op))
		return
	}
	attrs, errs := checkAttrs(op, e.Attrs)
	for _, s := range errs {
		b.Errorf(e.Pos, "%s: %s", what, s)
	}
	e.Attrs = attrs
	for _, a := range attrs {
		if slices.ContainsFunc(append(slices.Clip(a.Dims), a.Dim), func(d dim.Dim) bool { _, ok := d.Const(); return !ok }) {
			b.Errorf(e.Pos, "%s: %s: attribute %s must be constant", what, e.Op, a.Name)
		}
	}
	if lo, hi := operandCount(op); len(e.Args) < lo || len(e.Args) > hi {
		b.Errorf(e.Pos, "%s: %s takes %s, has %d", what, e.Op, countText(lo, hi), len(e.Args))
	}
	b.checkShard(e, what)
	for _, a := range e.Args {
		b.checkWeightExpr(a, what)
	}
}

func validExternName(s string) bool {
	for i := 0; i+2 < len(s); i++ {
		if s[i] == ':' && s[i+1] == ':' {
			return i > 0
		}
	}
	return false
}

// Func adds a function without parameters and nodes, and returns its builder.
func (b *Builder) Func(name string) *FuncBuilder { return b.startFunc(name, Pos{}) }

func (b *Builder) startFunc(name string, pos Pos) *FuncBuilder {
	switch {
	case name == "":
		b.Errorf(pos, "a function needs a name")
	case b.funcs[name]:
		b.Errorf(pos, "function @%s is declared twice", name)
	}
	b.funcs[name] = true
	fb := &FuncBuilder{b: b, f: &Func{Name: name, Pos: pos}, weights: map[int]Value{}, states: map[int]Value{}}
	b.m.Funcs = append(b.m.Funcs, fb.f)
	return fb
}

// Build verifies the module and returns it. Its error is an [ErrorList]: the errors that
// methods have recorded, or, if there are none, those of verification.
func (b *Builder) Build() (*Module, error) {
	if err := b.errs.Err(); err != nil {
		return nil, err
	}
	if err := b.m.Verify(); err != nil {
		return nil, err
	}
	return b.m, nil
}

// FuncBuilder makes one function, node by node in program order.
type FuncBuilder struct {
	b       *Builder
	f       *Func
	weights map[int]Value
	states  map[int]Value
	latest  []Value // by value: for the base of a storage its newest version; else unused
	draws   draws
	origin  Origin
	placers []*placer // by group, for Placed
}

// Func returns the function under construction.
func (fb *FuncBuilder) Func() *Func { return fb.f }

// SetLoc sets the place in the model that following nodes carry.
func (fb *FuncBuilder) SetLoc(loc string) { fb.origin.Loc = loc }

// SetPos sets the position in the module's text that following nodes and errors carry.
func (fb *FuncBuilder) SetPos(pos Pos) {
	at := fb.b.at(pos)
	fb.origin.File, fb.origin.Pos = at.File, at.Pos
}

// SetOrigin sets the origin of the nodes and errors that follow: the origin of the
// node of another function from which they are made.
func (fb *FuncBuilder) SetOrigin(o Origin) { fb.origin = o }

// Errorf records an error at the next node.
func (fb *FuncBuilder) Errorf(format string, args ...any) {
	fb.b.errs = append(fb.b.errs, &Error{Source: fb.b.m.Source, Origin: fb.origin, Func: fb.f.Name, Node: len(fb.f.Nodes), Msg: fmt.Sprintf(format, args...)})
}

func (fb *FuncBuilder) value(info ValueInfo) Value {
	v := Value(len(fb.f.Values))
	if info.Kind != VersionValue {
		info.Base = v
	}
	if info.Pos == (Pos{}) {
		info.Pos = fb.origin.Pos
	}
	fb.f.Values = append(fb.f.Values, info)
	fb.latest = append(fb.latest, v)
	return v
}

// Param adds a parameter. Its name has no "%", and may be empty.
func (fb *FuncBuilder) Param(name string, t Type) Value { return fb.param(name, t, false) }

// MutParam adds a parameter that the function may write, as Param does.
func (fb *FuncBuilder) MutParam(name string, t Type) Value { return fb.param(name, t, true) }

func (fb *FuncBuilder) param(name string, t Type, mut bool) Value {
	fb.b.checkType(t, fb.origin.Pos, "parameter %"+name, nil)
	v := fb.value(ValueInfo{Kind: ParamValue, Type: t, Name: name, Node: -1, Index: int32(len(fb.f.Params)), Mut: mut})
	fb.f.Params = append(fb.f.Params, v)
	return v
}

// Padded promises that padded rows of a parameter hold -1 in place of 0. Scatter writes
// nothing at this index; for other ops that take indices it is out of range. The parameter has a signed
// integer dtype, and a batch symbol in its first extent.
func (fb *FuncBuilder) Padded(v Value) {
	if !fb.has(v) {
		return
	}
	info := &fb.f.Values[v]
	dt, rows := info.Type.DType, false
	if info.Type.Rank() > 0 {
		for _, name := range info.Type.Shape[0].Symbols() {
			s := fb.b.symbols[name]
			rows = rows || s != nil && s.Kind == Batch
		}
	}
	if info.Kind != ParamValue || !dt.Int() || !dt.Signed() || !rows {
		fb.Errorf("%%%s is %s: only parameters of signed integers with a batch symbol in the first extent are padded with -1", info.Name, info.Type)
		return
	}
	info.Padded = true
}

// Weight returns the weight of that name as a value. If it is not declared, Weight records an
// error and returns NoValue.
func (fb *FuncBuilder) Weight(name string) Value {
	if i, ok := fb.b.weights[name]; ok {
		return fb.module(fb.weights, i, ValueInfo{Kind: WeightValue, Type: fb.b.m.Weights[i].Type, Name: name})
	}
	fb.Errorf("weight @%s is not declared", name)
	return NoValue
}

// State returns the newest version of the state of that name as a value. If it is not declared,
// State records an error and returns NoValue.
func (fb *FuncBuilder) State(name string) Value {
	if i, ok := fb.b.states[name]; ok {
		return fb.Latest(fb.module(fb.states, i, ValueInfo{Kind: StateValue, Type: fb.b.m.States[i].Type, Name: name}))
	}
	fb.Errorf("state @%s is not declared", name)
	return NoValue
}

func (fb *FuncBuilder) module(seen map[int]Value, i int, info ValueInfo) Value {
	v, ok := seen[i]
	if !ok {
		info.Node, info.Index = -1, int32(i)
		v = fb.value(info)
		seen[i] = v
	}
	return v
}

// Int returns an integer literal operand.
func (fb *FuncBuilder) Int(x int64) Value { return fb.Literal(Literal{IsInt: true, Int: x}) }

// Float returns a float literal operand.
func (fb *FuncBuilder) Float(x float64) Value { return fb.Literal(Literal{Float: x}) }

// Literal returns a literal operand; its dtype comes from the op that takes it.
func (fb *FuncBuilder) Literal(l Literal) Value {
	if math.IsNaN(l.Float) {
		l.Float = math.NaN() // the text has one NaN
	}
	return fb.value(ValueInfo{Kind: LiteralValue, Node: -1, Literal: l})
}

// has reports whether v is a value of the function. If not, it records an error, except for
// NoValue: the error was recorded where NoValue was returned.
func (fb *FuncBuilder) has(v Value) bool {
	if v != NoValue && (v < 0 || int(v) >= len(fb.f.Values)) {
		fb.Errorf("value %d is not one of the %d values of the function", v, len(fb.f.Values))
		return false
	}
	return v != NoValue
}

// Latest returns the newest version of v's storage, which later nodes read in place of v.
func (fb *FuncBuilder) Latest(v Value) Value {
	if !fb.has(v) {
		return NoValue
	}
	return fb.latest[fb.f.Values[v].Base]
}

// Type returns the type of a value.
func (fb *FuncBuilder) Type(v Value) Type {
	if !fb.has(v) {
		return Type{}
	}
	return fb.f.Values[v].Type
}

// SetName names a value in the text; an empty name lets the printer number it.
func (fb *FuncBuilder) SetName(v Value, name string) {
	if fb.has(v) {
		fb.f.Values[v].Name = name
	}
}

// Op adds a node of the op table and returns its results. If there is an error, it
// returns NoValue for each, and at least one.
func (fb *FuncBuilder) Op(name string, args []Value, attrs ...Attr) []Value {
	op := LookupOp(name)
	if op == nil || op.Class == Call {
		fb.Errorf("unknown op %q", name)
		return []Value{NoValue}
	}
	n := fb.emit(op, nil, args, attrs, nil)
	if n == nil {
		return slices.Repeat([]Value{NoValue}, max(op.Results, 1))
	}
	return n.Results
}

// Op1 adds a node with one result and returns it.
func (fb *FuncBuilder) Op1(name string, args []Value, attrs ...Attr) Value {
	if r := fb.Op(name, args, attrs...); len(r) == 1 {
		return r[0]
	}
	fb.Errorf("%s does not have one result", name)
	return NoValue
}

// Call adds a call of an extern op. The types of its fresh results are given
// by the caller, since an extern op has no shape rule; an extent may be [Unknown].
func (fb *FuncBuilder) Call(name string, args []Value, results []Type, attrs ...Attr) []Value {
	e := fb.b.externs[name]
	if e == nil {
		fb.Errorf("extern op %q is not declared", name)
		return slices.Repeat([]Value{NoValue}, len(results))
	}
	n := fb.emit(OpCall.Op(), e, args, attrs, results)
	if n == nil {
		return slices.Repeat([]Value{NoValue}, len(results))
	}
	return n.Results
}

// Return sets the results of the function: the newest versions of the values. It is called once,
// after all nodes.
func (fb *FuncBuilder) Return(values ...Value) {
	fb.f.ReturnPos = fb.origin.Pos
	for _, v := range values {
		v = fb.Latest(v)
		fb.f.Returns = append(fb.f.Returns, v)
		fb.f.ResultTypes = append(fb.f.ResultTypes, fb.Type(v))
	}
}

// emit adds a node, or records why it cannot be and returns nil.
func (fb *FuncBuilder) emit(op *Op, ext *Extern, args []Value, attrs []Attr, results []Type) *Node {
	for _, a := range args {
		if !fb.has(a) {
			return nil
		}
	}
	before := len(fb.b.errs)
	n := &Node{Op: op, Extern: ext, Args: slices.Clone(args), Attrs: attrs, Origin: fb.origin}
	for i, a := range n.Args {
		n.Args[i] = fb.Latest(a)
		if info := fb.f.Values[a]; info.Kind == LiteralValue && info.Type.DType != dtype.Invalid {
			n.Args[i] = fb.Literal(info.Literal) // an earlier node has given it a dtype, which may differ here
		}
	}
	n.Attrs = fb.draws.place(fb.f, n, attrs)
	types, errs := inferNode(fb.f, n, results, scope{fb.b.bounds, fb.b.m.Group})
	errs = append(errs, writeErrors(fb.f, n)...)
	if len(errs) == 0 {
		errs = fb.draws.add(fb.f, n, types)
	}
	for _, e := range errs {
		fb.Errorf("%s", e)
	}
	if len(fb.b.errs) > before {
		return nil
	}
	id := int32(len(fb.f.Nodes))
	for i, t := range types {
		n.Results = append(n.Results, fb.value(ValueInfo{Kind: ResultValue, Type: t, Node: id, Index: int32(i)}))
	}
	for i := range n.Args {
		if mutOperand(n, i) {
			base := fb.f.Values[n.Args[i]].Base
			v := fb.value(ValueInfo{Kind: VersionValue, Type: fb.f.Values[base].Type, Name: fb.f.Values[base].Name, Node: id, Index: int32(i), Base: base})
			n.Versions = append(n.Versions, Version{Arg: i, Value: v})
			fb.latest[base] = v
		}
	}
	fb.f.Nodes = append(fb.f.Nodes, n)
	return n
}

func mutOperand(n *Node, i int) bool {
	if n.Extern != nil {
		return i < len(n.Extern.Mut) && n.Extern.Mut[i]
	}
	return i < len(n.Op.Operands) && n.Op.Operands[i].Mut
}

// writeErrors checks the rules of writing (C1): only results of empty, empty_like, full and
// calls, states and mut parameters may be written, and no other operand of the node may
// have the storage of a written one.
func writeErrors(f *Func, n *Node) []string {
	var errs []string
	for i, a := range n.Args {
		if !mutOperand(n, i) {
			continue
		}
		info := f.Values[f.Values[a].Base]
		ok := false
		switch info.Kind {
		case ParamValue:
			ok = info.Mut
		case StateValue:
			ok = true
		case ResultValue:
			ok = f.Nodes[info.Node].Writable()
		}
		if !ok {
			errs = append(errs, fmt.Sprintf("%s writes operand %d, which is neither a result of empty, empty_like, full or a call, nor a state or a mut parameter", n.Name(), i))
		}
		for j, b := range n.Args {
			if j != i && f.Values[b].Base == f.Values[a].Base && (j > i || !mutOperand(n, j)) {
				errs = append(errs, fmt.Sprintf("%s writes operand %d, which is also operand %d", n.Name(), i, j))
			}
		}
	}
	return errs
}
