package ir

import (
	"fmt"
	"slices"
	"strings"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// LanguageVersion is the newest version of the text language, with which
// every module begins ("pwc 1").
const LanguageVersion = 1

// Unknown is the name of the pseudo-symbol for an extent that only an extern
// op knows. It is written "?" and is legal only in the results of calls. No symbol can
// have this name.
const Unknown = "_"

// UnknownDim returns the extent that only an extern op knows.
func UnknownDim() dim.Dim { return dim.Sym(Unknown) }

func isUnknown(d dim.Dim) bool { return d.Equal(UnknownDim()) }

// MaxRank is the largest number of extents of a type.
const MaxRank = 32

// Type is the type of a value: an element type and a shape. A tensor is always
// contiguous, row-major; a Type with no extents is a scalar ("f32[]").
type Type struct {
	DType dtype.DType
	Shape []dim.Dim
}

// TypeOf returns the type of the given dtype and extents.
func TypeOf(dt dtype.DType, shape ...dim.Dim) Type { return Type{DType: dt, Shape: shape} }

// Rank returns the number of extents.
func (t Type) Rank() int { return len(t.Shape) }

// Equal reports whether both types have the same dtype and the same extents,
// compared by normal form.
func (t Type) Equal(u Type) bool {
	return t.DType == u.DType && slices.EqualFunc(t.Shape, u.Shape, dim.Dim.Equal)
}

// Elements returns the number of elements as a dim.
func (t Type) Elements() dim.Dim {
	n := dim.Const(1)
	for _, d := range t.Shape {
		n = n.Mul(d)
	}
	return n
}

// String returns the text form, for example "bf16[N, 256]".
func (t Type) String() string {
	var b strings.Builder
	b.WriteString(t.DType.String())
	b.WriteByte('[')
	for i, d := range t.Shape {
		if i > 0 {
			b.WriteString(", ")
		}
		if isUnknown(d) {
			b.WriteByte('?')
		} else {
			b.WriteString(d.String())
		}
	}
	b.WriteByte(']')
	return b.String()
}

// HasUnknown reports whether an extent is [Unknown].
func (t Type) HasUnknown() bool {
	for _, d := range t.Shape {
		if slices.Contains(d.Symbols(), Unknown) {
			return true
		}
	}
	return false
}

// Trivia has the comment lines before a declaration or a node, and the comment at the end
// of its line. [Format] writes them, and a [Rewriter] keeps those of nodes that it keeps; Print and
// hashes leave them out. Comments are stored with their leading "//". An empty string in Lead is a blank
// line.
type Trivia struct {
	Lead  []string
	Trail string
}

// Module is a model: declarations and functions.
//
// WeightsFrom, Strict, Unread, Context and EOS describe the model's checkpoint and how the
// model is served. They are part of no hash, because code does not depend on them.
type Module struct {
	Name        string
	WeightsFrom string    // path of the checkpoint that weights are loaded from, a directory or a file
	Strict      bool      // loading refuses a tensor of the checkpoint that no weight or state reads and Unread does not list
	Unread      []*Unread // tensors that the checkpoint may hold though no weight or state reads them
	Context     int64     // the longest sequence that the model supports, in tokens; 0: unknown
	EOS         []int32   // token ids that end a sequence
	Symbols     []*Symbol
	Groups      []*Group
	Externs     []*Extern
	Weights     []*Weight
	States      []*State
	Funcs       []*Func

	// Source is the text that positions of the module refer to, for error messages; nil: there
	// is no text.
	Source *Source

	// Trivia of the version line, the module line, the closing brace, and the
	// lines "weights from", "weights strict", "context" and "eos".
	Header, Trivia, Tail                               Trivia
	FromTrivia, StrictTrivia, ContextTrivia, EOSTrivia Trivia
}

// Unread is a declaration of checkpoint tensors that no weight or state reads:
// unread "h.*.attn.bias", or unread "lm_head.weight" = "model.embed_tokens.weight".
type Unread struct {
	// Name is a tensor's name, whose parts are separated by dots. The part * matches any one part, and the last part
	// ** one or more.
	Name string
	// Equal names another tensor; Name then has no pattern. If the checkpoint has both, their
	// shapes, dtypes and bytes must be equal. Empty: the tensor's values do not matter.
	Equal  string
	Pos    Pos
	Trivia Trivia
}

// Matches reports whether the declaration covers the tensor of that name.
func (u *Unread) Matches(name string) bool {
	want, got := strings.Split(u.Name, "."), strings.Split(name, ".")
	if last := len(want) - 1; want[last] == "**" && len(got) >= len(want) {
		want, got = want[:last], got[:last]
	}
	return slices.EqualFunc(want, got, func(w, g string) bool { return w == g || w == "*" })
}

// Symbol returns the declared symbol of that name, or nil.
func (m *Module) Symbol(name string) *Symbol {
	for _, s := range m.Symbols {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Extern returns the declared extern op of that full name, or nil.
func (m *Module) Extern(name string) *Extern {
	for _, e := range m.Externs {
		if e.Name == name {
			return e
		}
	}
	return nil
}

// Called returns the declared extern ops that functions call, in the order of
// their declarations. The others need no implementation.
func (m *Module) Called() []*Extern {
	used := map[*Extern]bool{}
	for _, f := range m.Funcs {
		for _, n := range f.Nodes {
			if n.Extern != nil {
				used[n.Extern] = true
			}
		}
	}
	var out []*Extern
	for _, e := range m.Externs {
		if used[e] {
			out = append(out, e)
		}
	}
	return out
}

// Func returns the function of that name (without "@"), or nil.
func (m *Module) Func(name string) *Func {
	for _, f := range m.Funcs {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// Bounds returns the declared inclusive range of a symbol, in the form that
// [dim.Dim.Bounds] takes.
func (m *Module) Bounds(sym string) (dim.Interval, bool) {
	if s := m.Symbol(sym); s != nil {
		return dim.Interval{Lo: s.Lo, Hi: s.Hi}, true
	}
	return dim.Interval{}, false
}

// SymbolKind says when a symbol gets its value.
type SymbolKind uint8

const (
	// Plain symbols get a value for each run, from the shapes of the inputs or from the caller.
	Plain SymbolKind = iota
	// Batch symbols count rows of a step (tokens, sampled rows). A run may pad them to a
	// capture size.
	Batch
	// Load symbols are bound once, when the module is loaded (KV blocks).
	Load
)

var symbolKindNames = [...]string{"", "batch", "load"}

// String returns the keyword of the kind; "" for Plain.
func (k SymbolKind) String() string {
	if int(k) >= len(symbolKindNames) {
		return fmt.Sprintf("SymbolKind(%d)", uint8(k))
	}
	return symbolKindNames[k]
}

// Symbol is a declared integer that extents depend on, "sym N in [1, 8192] batch".
type Symbol struct {
	Name   string
	Lo, Hi int64 // inclusive
	Kind   SymbolKind
	Pos    Pos
	Trivia Trivia
}

// Extern is a declared extern op: a runner's own kernel, or attention.
type Extern struct {
	Name    string // "ns::op" or "ns::op.overload"
	Mut     []bool // by operand: whether the op writes it
	Results int    // number of fresh tensors it returns
	Split   bool   // the graph is cut at it by default
	Capture bool   // it may be recorded into a graph
	Random  bool   // its results differ from call to call
	Rowwise bool   // rows are independent: row i of results and of written operands depends only on row i of operands, and on operands without rows
	Host    bool   // it reads or changes host state
	Version string // part of the hash, so that a changed kernel has another key
	Pos     Pos
	Trivia  Trivia
}

// Effects returns the side effects of a call of the op.
func (e *Extern) Effects() Effects {
	var f Effects
	if slices.Contains(e.Mut, true) {
		f |= Write
	}
	if e.Random {
		f |= Random
	}
	if e.Host {
		f |= Host
	}
	return f
}

// Weight is a constant tensor of the model: loaded once, never written.
type Weight struct {
	Name string
	Type Type
	Expr *WeightExpr // nil: the checkpoint tensor that has the weight's own name

	// Placements are the weight's placements if no shard in Expr defines them, as in pieces. A weight whose
	// Expr has a shard over a group must not have any.
	Placements []Placement

	Pos    Pos
	Trivia Trivia
}

// WeightExpr computes a weight from checkpoint tensors when it is loaded: it is a tensor,
// or an op over other expressions.
type WeightExpr struct {
	Op    WeightOp
	Name  string // of the tensor, if Op is WeightTensor; else ""
	Args  []*WeightExpr
	Attrs []Attr
	Pos   Pos
}

// State is a tensor that the runner owns and that lives across steps.
type State struct {
	Name string
	Type Type
	Expr *WeightExpr // the initial value, with which all extents of Type must be constants; nil: zeros

	Placements []Placement // how it is spread over ranks; over groups that are left out it is replicated. Shards in Expr must fit.

	Pos    Pos
	Trivia Trivia
}

// Initial returns the state's initial value as a weight with its name and type, or nil if
// it is zeros.
func (s *State) Initial() *Weight {
	if s.Expr == nil {
		return nil
	}
	return &Weight{Name: s.Name, Type: s.Type, Expr: s.Expr, Placements: s.Placements, Pos: s.Pos}
}

// Loaded returns the weights that loading computes from tensors of a checkpoint: the module's
// weights, then the initial values of states that are not zeros.
func (m *Module) Loaded() []*Weight {
	out := slices.Clone(m.Weights)
	for _, s := range m.States {
		if w := s.Initial(); w != nil {
			out = append(out, w)
		}
	}
	return out
}

// Func is straight-line code over a dense table of values.
type Func struct {
	Name        string
	Params      []Value
	ResultTypes []Type

	// ResultPlacements are the placements of results, by result. Results without an entry are
	// replicated.
	ResultPlacements [][]Placement

	Returns    []Value // the operands of the return statement, one for each of ResultTypes
	Nodes      []*Node // program order
	Values     []ValueInfo
	Pos        Pos
	ReturnPos  Pos
	Trivia     Trivia
	ReturnLead Trivia
}

// Value is the dense id of a value: an index into [Func.Values].
type Value int32

// NoValue is no value.
const NoValue Value = -1

// ValueKind says where a value comes from.
type ValueKind uint8

const (
	ParamValue   ValueKind = iota // a parameter of the function
	ResultValue                   // a result of a node
	VersionValue                  // a storage after a node wrote it
	WeightValue                   // a weight of the module
	StateValue                    // a state of the module, before any write in the function
	LiteralValue                  // a scalar written in place of an operand
)

// ValueInfo describes one value.
type ValueInfo struct {
	Kind ValueKind
	Type Type
	Name string // without "%"; empty: the printer numbers it
	Node int32  // index of the defining node (ResultValue, VersionValue), else -1

	// Index is the index into the parameters, the results of the node, the operands
	// of the writing node (VersionValue), or the weights or states of the module.
	Index int32

	// Base is the storage's first value. For a VersionValue it is the mut parameter, the
	// state or the result of empty, empty_like, full or a call that was written first. For
	// every other value it is the value itself.
	Base Value

	Mut     bool    // ParamValue: the function may write it
	Padded  bool    // ParamValue: padded rows hold -1, which is no valid index, in place of 0
	Literal Literal // LiteralValue

	Placements []Placement // ParamValue: how it is spread over ranks

	Pos Pos
}

// Literal is a scalar operand written in the text. It has the dtype of the node's
// attribute dtype, or else of its tensor operands (of where: of a or b). A float keeps
// all its bits (all NaNs are one) and is not rounded to a narrower dtype.
type Literal struct {
	IsInt bool
	Int   int64
	Float float64
}

// Float64 returns the literal's value as a float64.
func (l Literal) Float64() float64 {
	if l.IsInt {
		return float64(l.Int)
	}
	return l.Float
}

// Node is one op applied to values.
type Node struct {
	Op       *Op     // entry of the op table; OpCall for extern ops
	Extern   *Extern // of a call, else nil
	Args     []Value
	Attrs    []Attr // in the order of the op's table entry (calls: as given), defaults left out
	Results  []Value
	Versions []Version // one for each operand it writes, in operand order
	Origin             // where it comes from; kept by every pass, part of no hash
	Trivia   Trivia
}

// Version is the new value of an operand that a node writes.
type Version struct {
	Arg   int   // operand index
	Value Value // the storage after the write
}

// Name returns the op's name in the table, or the full name of the extern op. Splitting,
// listings and errors use it.
func (n *Node) Name() string {
	if n.Extern != nil {
		return n.Extern.Name
	}
	return n.Op.Name
}

// Effects returns the side effects of the node.
func (n *Node) Effects() Effects {
	if n.Extern != nil {
		return n.Extern.Effects()
	}
	return n.Op.Effects
}

// Type returns the type of a value.
func (f *Func) Type(v Value) Type { return f.Values[v].Type }

// Base returns the first value of v's storage.
func (f *Func) Base(v Value) Value { return f.Values[v].Base }

// Def returns the node that defines v, or nil.
func (f *Func) Def(v Value) *Node {
	if i := f.Values[v].Node; i >= 0 {
		return f.Nodes[i]
	}
	return nil
}
