package ir_test

import (
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// refused has modules that the builder or the verifier refuses. They cannot be written as text,
// or the parser reports another error for their text.
var refused = []struct {
	name string
	make func() error
	want string // a regular expression for each error, one a line
}{
	{"an unknown op of weight expressions", func() error {
		b := ir.NewBuilder("m")
		b.Weight("w", ir.TypeOf(dtype.F32, dim.Const(2)), &ir.WeightExpr{Op: ir.WeightOp(99)})
		_, err := b.Build()
		return err
	}, `weight @w: 99 is no op of weight expressions`},
	{"expressions", func() error {
		b := ir.NewBuilder("m")
		b.Weight("w", f32(2), &ir.WeightExpr{Name: "t", Args: []*ir.WeightExpr{nil}})
		b.Weight("v", f32(2), &ir.WeightExpr{Op: ir.WeightCast, Args: []*ir.WeightExpr{nil}, Attrs: []ir.Attr{ir.DTypeAttr(dtype.F32)}})
		return build(b)
	}, "weight @w: tensor \"t\" has operands or attributes, which only ops have\nweight @v: a nil expression"},
	{"nil declarations", func() error {
		b := ir.NewBuilder("m")
		b.AddSymbol(nil)
		b.Extern(nil)
		b.AddWeight(nil)
		b.AddState(nil)
		b.AddUnread(nil)
		b.AddGroup(nil)
		return build(b)
	}, "a nil symbol is declared\na nil extern op is declared\na nil weight is declared\na nil state is declared\na nil declaration of an unread tensor\na nil group is declared"},
	{"groups", func() error {
		b := ir.NewBuilder("m")
		b.AddGroup(&ir.Group{Name: "a b", Size: 2})
		b.AddGroup(&ir.Group{Name: "tp", Size: 2, Rank: "r"})
		b.Func("f").PlaceResult(0)
		return build(b)
	}, "\"a b\" is no name for a group\ngroup tp: symbol r of its rank is not declared\nPlaceResult of result 0: @f has 0 results"},
	{"values of another function", func() error {
		b := ir.NewBuilder("m")
		fb := b.Func("f")
		fb.Op1("neg", []ir.Value{7})
		fb.SetName(-3, "x")
		fb.Return(ir.Value(9))
		return build(b)
	}, "value 7 is not one of the 0 values of the function\nvalue -3 is not one of the 0 values of the function\nvalue 9 is not one of the 0 values of the function"},
	{"inlining", func() error {
		m, err := ir.Parse("g.ir", []byte("pwc 1\nmodule \"g\" {\n weight @w : f32[2]\n func @g(%x: f32[2]) -> (f32[2]) {\n %y = add(%x, @w)\n return %y\n }\n}\n"))
		if err != nil {
			return err
		}
		b := ir.NewBuilder("m")
		b.State("w", ir.TypeOf(dtype.F32, dim.Const(3)))
		fb := b.Func("f")
		x, y := fb.Param("x", ir.TypeOf(dtype.F32, dim.Const(2))), fb.Param("y", ir.TypeOf(dtype.F32, dim.Const(3)))
		fb.Inline(nil, ir.Inlining{})
		fb.Inline(m.Funcs[0], ir.Inlining{})
		fb.Inline(m.Funcs[0], ir.Inlining{Args: []ir.Value{y}})
		fb.Inline(m.Funcs[0], ir.Inlining{Args: []ir.Value{x}})
		return build(b)
	}, "a nil function is inlined\nthe inlined @g has 1 parameters, got 0 values\n%x of the inlined @g is f32\\[2\\], got f32\\[3\\]\ng.ir:5:7: @w of the inlined @g is f32\\[2\\], got f32\\[3\\]"},
	{"names", func() error {
		b := ir.NewBuilder("m")
		b.Symbol("a b", 1, 2, ir.Plain)
		b.Symbol("nan", 1, 2, ir.Plain)
		b.Weight("", f32(2), nil)
		b.Func("")
		b.Func("f")
		b.Func("f")
		return build(b)
	}, `"a b" is no name for a symbol
"nan" is no name for a symbol
a weight or state needs a name
a function needs a name
function @f is declared twice`},

	{"types", func() error {
		b := ir.NewBuilder("m")
		b.Weight("w", ir.Type{}, nil)
		b.Weight("e", ir.TypeOf(dtype.F32, dim.Const(1).FloorDiv(0)), nil)
		fb := b.Func("f")
		fb.Param("x", ir.TypeOf(dtype.F32, dim.Sym("N")))
		fb.Param("y", ir.TypeOf(dtype.F32, ir.UnknownDim()))
		return build(b)
	}, `weight @w: no dtype
weight @e: extent: dim: divisor is not positive: 1 / 0
@f: parameter %x: symbol N is not declared|parameter %x: symbol N is not declared
parameter %y: only the results of a call may have unknown extents`},

	{"extern", func() error {
		b := ir.NewBuilder("m")
		b.Extern(&ir.Extern{Name: "a::b", Results: -1})
		return build(b)
	}, `extern op "a::b": negative number of results`},

	{"unknown names", func() error {
		return inFunc(func(b *ir.Builder, fb *ir.FuncBuilder) {
			fb.Weight("w")
			fb.State("s")
			fb.Op("foo", nil)
			fb.Call("a::none", nil, []ir.Type{f32(2)})
			fb.Op1("split", []ir.Value{fb.Param("x", f32(4))}, ir.IntsAttr("sizes", 2, 2))
		})
	}, `weight @w is not declared
state @s is not declared
unknown op "foo"
extern op "a::none" is not declared
split does not have one result`},

	{"draws", func() error {
		return inFunc(func(b *ir.Builder, fb *ir.FuncBuilder) {
			g, m := fb.Param("g", ir.GeneratorType), fb.MutParam("m", ir.GeneratorType)
			shape, dt := ir.IntsAttr("shape", 2), ir.DTypeAttr(dtype.F32)
			fb.Op1("neg", []ir.Value{g})
			fb.Op1("uniform", []ir.Value{g}, shape, dt)
			fb.Op1("uniform", []ir.Value{g}, shape, dt, ir.IntAttr("offset", 0))
			fb.Op1("uniform", []ir.Value{m}, shape, dt)
		})
	}, `uniform: offset 0 is used by uniform, node 1; leave the offset out, or write redraw=true to draw the same numbers again
uniform: the generator must be a parameter that is not mut, or a state that the function does not write`},

	{"attributes", func() error {
		return inFunc(func(b *ir.Builder, fb *ir.FuncBuilder) {
			x := fb.Param("x", f32(4))
			fb.Op("slice", []ir.Value{x}, ir.IntAttr("axis", 0), ir.IntAttr("start", 0), ir.DimAttr("end", dim.Sym("K")))
			fb.Op("slice", []ir.Value{x}, ir.IntAttr("axis", 0), ir.IntAttr("start", 0), ir.DimAttr("end", dim.Const(1).FloorDiv(0)))
			b.Symbol("N", 1, 2, ir.Plain)
			b.Extern(&ir.Extern{Name: "a::b"})
			fb.Call("a::b", nil, nil, ir.IntAttr("a b", 1))
			fb.Call("a::b", nil, nil, ir.IntAttr("nan", 1))
			fb.Call("a::b", nil, nil, ir.EnumAttr("mode", "a b"))
			fb.Call("a::b", nil, nil, ir.EnumAttr("mode", "N"))
			fb.Call("a::b", nil, nil, ir.DimAttr("d", dim.Sym("K")))
		})
	}, `slice: attribute end: symbol K is not declared
slice: attribute end: dim: divisor
a::b: "a b" is no name for an attribute
a::b: "nan" is no name for an attribute
a::b: attribute mode: "a b" is no bare name
a::b: attribute mode: N is a symbol, not a name
a::b: attribute d: symbol K is not declared`},

	{"results of calls", func() error {
		return inFunc(func(b *ir.Builder, fb *ir.FuncBuilder) {
			b.Extern(&ir.Extern{Name: "a::b", Results: 1})
			fb.Call("a::b", nil, []ir.Type{{}})
			fb.Call("a::b", nil, []ir.Type{ir.TypeOf(dtype.F32, dim.Sym("K"))})
			fb.Call("a::b", nil, []ir.Type{ir.TypeOf(dtype.F32, ir.UnknownDim().Add(dim.Const(1)))})
			fb.Call("a::b", nil, []ir.Type{ir.TypeOf(dtype.F32, dim.Const(1).FloorDiv(0))})
		})
	}, `a::b: a result has no dtype
a::b: symbol K is not declared
a::b: an unknown extent cannot be part of an expression
a::b: extent: dim: divisor`},

	{"returns", func() error {
		return inFunc(func(b *ir.Builder, fb *ir.FuncBuilder) {
			b.Extern(&ir.Extern{Name: "a::b", Results: 1})
			r := fb.Call("a::b", nil, []ir.Type{ir.TypeOf(dtype.F32, ir.UnknownDim())})
			fb.Return(r[0], fb.Int(1))
		})
	}, `@f returns f32\[\?\] as result 0: an extent that only the op knows cannot leave the function
@f returns a literal`},

	{"a pass that drops a value", func() error {
		m := chain()
		_, err := ir.Rewrite(m, m.Funcs[0], func(rw *ir.Rewriter, i int, n *ir.Node) {
			if i > 0 {
				rw.Keep(n)
			}
		})
		return err
	}, `@f node 0 \(second\): a pass dropped a value that is still used
@f node 1: a pass dropped a value that is still used
@f node 1: a pass dropped a value that is still used
@f node 1: a pass dropped a value that is still used`},

	// The verifier, on functions that a pass has broken.
	{"no value", broken(func(f *ir.Func) { f.Nodes[1].Args[0] = 99 }),
		`@f node 1 \(second\): operand 0 of neg is no value of the function`},
	{"use before definition", broken(func(f *ir.Func) { f.Nodes[0], f.Nodes[1] = f.Nodes[1], f.Nodes[0] }),
		`@f node 0 \(second\): operand 0 of neg is used before it is defined
@f node 1 \(first\): neg: a result is defined elsewhere`},
	{"a stale version", broken(func(f *ir.Func) { f.Nodes[4].Args[0] = f.Nodes[2].Results[0] }),
		`@f node 4: operand 0 of neg is a version of its storage that a later write replaced`},
	{"a returned stale version", broken(func(f *ir.Func) { f.Returns[0] = f.Nodes[2].Results[0] }),
		`@f: returned value 0 of @f is a version of its storage that a later write replaced`},
	{"a wrong type", broken(func(f *ir.Func) { f.Values[f.Nodes[1].Results[0]].Type = f32(3) }),
		`@f node 1 \(second\): neg has results \[f32\[3\]\], its operands give \[f32\[2\]\]
@f node 3: copy: dst is f32\[2\], src is f32\[3\]
@f: @f returns f32\[3\] as result 0, declares f32\[2\]`},
	{"a result of another node", broken(func(f *ir.Func) { f.Nodes[1].Results[0] = f.Nodes[0].Results[0] }),
		`@f node 1 \(second\): neg: a result is defined elsewhere
@f node 3: operand 1 of copy is used before it is defined
@f: returned value 0 of @f is used before it is defined`},
	{"a version of another storage", broken(func(f *ir.Func) { f.Nodes[3].Versions[0].Value = f.Nodes[0].Results[0] }),
		`@f node 3: copy: the version of operand 0 does not belong to it
@f node 4: operand 0 of neg is used before it is defined`},
	{"a write without a version", broken(func(f *ir.Func) { f.Nodes[3].Versions = nil }),
		`@f node 3: copy writes operand 0 without a version for it
@f node 4: operand 0 of neg is used before it is defined`},
	{"a value of no kind", broken(func(f *ir.Func) { f.Values[0].Kind = 9 }),
		`@f: value 0 of @f is of unknown kind 9
@f: parameter 0 of @f is not a parameter value with that index`},
	{"a parameter of another number", broken(func(f *ir.Func) { f.Values[0].Index = 7 }),
		`@f: value 0 of @f has index 7, want less than 1
@f: parameter 0 of @f is not a parameter value with that index`},
	{"a value of no node", broken(func(f *ir.Func) { f.Values[1].Node = 99 }), `@f: value 1 of @f has node 99, which cannot define it`},
	{"a literal of a node", broken(func(f *ir.Func) { f.Values[0].Node = 1 }), `@f: value 0 of @f has node 1, which cannot define it`},
	{"a value with another base", broken(func(f *ir.Func) { f.Values[1].Base = 0 }), `@f: value 1 of @f has value 0 as its base`},
	{"a version of a version", broken(func(f *ir.Func) {
		v := f.Nodes[3].Versions[0].Value
		f.Values[v].Base = v
	}), `@f: value 4 of @f has value 4 as its base`},
	{"a node without an op", broken(func(f *ir.Func) { f.Nodes[1].Op = nil }), `@f node 1: the node has no op`},
	{"a call of nothing", broken(func(f *ir.Func) { f.Nodes[1].Op = ir.OpCall.Op() }), `@f node 1 \(second\): call: a call needs an extern op, and another op cannot have one`},
	{"a result that is no value", broken(func(f *ir.Func) { f.Nodes[1].Results[0] = 99 }),
		`@f node 1 \(second\): neg has a result that is no value of the function`},
	{"a version that is no value", broken(func(f *ir.Func) { f.Nodes[3].Versions[0].Value = -1 }),
		`@f node 3: copy has a version whose operand or value does not exist`},
	{"a version of no operand", broken(func(f *ir.Func) { f.Nodes[3].Versions[0].Arg = 2 }),
		`@f node 3: copy has a version whose operand or value does not exist`},
	{"too few returns", broken(func(f *ir.Func) { f.Returns = nil }),
		`@f: @f returns 0 values, declares 1`},
	{"a write of a weight", func() error {
		return inFunc(func(b *ir.Builder, fb *ir.FuncBuilder) {
			b.Weight("w", f32(2), nil)
			fb.Op("copy", []ir.Value{fb.Weight("w"), fb.Param("x", f32(2))})
		})
	}, `@f node 0: copy writes operand 0, which is neither a result of empty, empty_like, full or a call, nor a state or a mut parameter`},
}

func f32(shape ...int64) ir.Type {
	t := ir.TypeOf(dtype.F32)
	for _, n := range shape {
		t.Shape = append(t.Shape, dim.Const(n))
	}
	return t
}

func build(b *ir.Builder) error {
	_, err := b.Build()
	return err
}

func inFunc(body func(*ir.Builder, *ir.FuncBuilder)) error {
	b := ir.NewBuilder("m")
	body(b, b.Func("f"))
	return build(b)
}

// chain is a module with two negations, memory that a copy writes, and a read
// of that memory.
func chain() *ir.Module {
	b := ir.NewBuilder("m")
	fb := b.Func("f")
	x := fb.Param("x", f32(2))
	fb.SetLoc("first")
	y := fb.Op1("neg", []ir.Value{x})
	fb.SetLoc("second")
	z := fb.Op1("neg", []ir.Value{y})
	fb.SetLoc("")
	e := fb.Op1("empty_like", []ir.Value{x})
	fb.Op("copy", []ir.Value{e, z})
	fb.Op1("neg", []ir.Value{e})
	fb.Return(z)
	m, err := b.Build()
	if err != nil {
		panic(err)
	}
	return m
}

// broken verifies a chain after an edit that a builder cannot make.
func broken(edit func(*ir.Func)) func() error {
	return func() error {
		m := chain()
		edit(m.Funcs[0])
		return m.Verify()
	}
}

func TestRefused(t *testing.T) {
	for _, c := range refused {
		t.Run(c.name, func(t *testing.T) {
			var list ir.ErrorList
			if !errors.As(c.make(), &list) {
				t.Fatal("no errors")
			}
			want := strings.Split(c.want, "\n")
			for i, e := range list {
				if i >= len(want) || !regexp.MustCompile("^(?:@f.*: )?(?:"+want[i]+")").MatchString(e.Error()) {
					t.Errorf("error %d: %v", i, e)
				}
			}
			if len(list) != len(want) {
				t.Errorf("%d errors, want %d", len(list), len(want))
			}
		})
	}
}

// TestWritesMakeVersions checks C1: a later read of a name reads the newest version, and each
// version is a separate value.
func TestWritesMakeVersions(t *testing.T) {
	m := chain()
	f := m.Funcs[0]
	base := f.Nodes[2].Results[0]
	v := f.Nodes[3].Versions[0].Value
	if v == base || f.Nodes[4].Args[0] != v {
		t.Errorf("the read after the write means %d, want %d, a version of %d", f.Nodes[4].Args[0], v, base)
	}
	if info := f.Values[v]; info.Kind != ir.VersionValue || info.Base != base || info.Node != 3 || !info.Type.Equal(f.Type(base)) {
		t.Errorf("the version is %+v", info)
	}
	if f.Def(v) != f.Nodes[3] || f.Base(v) != base || f.Def(f.Params[0]) != nil {
		t.Error("Def or Base is wrong")
	}
}

// TestLiterals holds that a literal has the dtype of the other operands, separately for each
// use.
func TestLiterals(t *testing.T) {
	b := ir.NewBuilder("m")
	fb := b.Func("f")
	two := fb.Int(2)
	x := fb.Op1("add", []ir.Value{fb.Param("x", f32(2)), two})
	y := fb.Op1("add", []ir.Value{two, fb.Param("y", ir.TypeOf(dtype.I8, dim.Const(2)))})
	nan := fb.Op1("mul", []ir.Value{x, fb.Float(math.Float64frombits(0x7ff8000000000123))})
	fb.Return(x, y, nan)
	m, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	f := m.Funcs[0]
	for i, want := range []struct {
		arg int
		dt  dtype.DType
	}{{1, dtype.F32}, {0, dtype.I8}, {1, dtype.F32}} {
		if got := f.Type(f.Nodes[i].Args[want.arg]); got.DType != want.dt || got.Rank() != 0 {
			t.Errorf("the literal of node %d is %s, want %s[]", i, got, want.dt)
		}
	}
	if lit := f.Values[f.Nodes[2].Args[1]].Literal; math.Float64bits(lit.Float64()) != math.Float64bits(math.NaN()) {
		t.Errorf("the NaN has bits %x", math.Float64bits(lit.Float64()))
	}
	if (ir.Literal{IsInt: true, Int: -3}).Float64() != -3 {
		t.Error("Float64 of the literal -3 is another number")
	}
}

// TestCanonicalAttrs checks that a node has its attributes in the order of the op table,
// converted to the kinds of the table, and without defaults. Node.Int returns a default.
func TestCanonicalAttrs(t *testing.T) {
	b := ir.NewBuilder("m")
	fb := b.Func("f")
	x := fb.Param("x", f32(2, 4))
	n := fb.Func()
	fb.Op("slice", []ir.Value{x}, ir.IntAttr("step", 1), ir.IntAttr("end", 4), ir.IntAttr("start", 1), ir.IntAttr("axis", -1))
	fb.Op("rms_norm", []ir.Value{x, fb.Param("w", f32(4))}, ir.IntAttr("eps", 1))
	fb.Op("const", nil, ir.DTypeAttr(dtype.I8), ir.IntsAttr("values", 1, 2))
	if _, err := b.Build(); err != nil {
		t.Fatal(err)
	}
	want := [][]ir.Attr{
		{ir.IntAttr("axis", -1), ir.IntAttr("start", 1), ir.IntAttr("end", 4)},
		{ir.FloatAttr("eps", 1)},
		{ir.FloatsAttr("values", 1, 2), ir.DTypeAttr(dtype.I8)},
	}
	for i, attrs := range want {
		if !slices.EqualFunc(n.Nodes[i].Attrs, attrs, ir.Attr.Equal) {
			t.Errorf("node %d has %v, want %v", i, n.Nodes[i].Attrs, attrs)
		}
	}
	slice := n.Nodes[0]
	if slice.Int("step") != 1 || slice.Int("start") != 1 || slice.Axis("axis", 2) != 1 || slice.Int("none") != 0 {
		t.Errorf("slice has step %d, start %d, axis %d and none %d", slice.Int("step"), slice.Int("start"), slice.Axis("axis", 2), slice.Int("none"))
	}
	if a, ok := slice.Attr("none"); ok {
		t.Errorf("there is no attribute %v", a)
	}
	fb2 := b.Func("g")
	fb2.Op("transpose", []ir.Value{fb2.Param("x", f32(2, 4))}, ir.IntsAttr("perm", 1, 0))
	if got := fb2.Func().Nodes[0].Ints("perm"); !slices.Equal(got, []int64{1, 0}) {
		t.Errorf("perm is %v", got)
	}
}
