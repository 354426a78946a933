package whole_test

import (
	"slices"
	"testing"

	"pwc/graphs"
	"pwc/graphs/tree"
	"pwc/graphs/whole"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
)

// TestGeneratorsOfParts: each part of a cut function draws from the generators of its own states.
func TestGeneratorsOfParts(t *testing.T) {
	e := open(t, whole.BackendOptions{Partition: true}, tree.Options{})
	defer e.close()
	e.mod = testkit.Must[*ir.Module](t)(ir.Parse("m.ir", []byte(`pwc 1
module "m" {
  op "my::double"(tensor, mut tensor)
  state @a : i64[2]
  state @b : i64[2]
  func @f(%x: f32[4]) -> (f32[4], f32[4]) {
    %u = uniform(@b, shape=[4], dtype=f32)
    %y = add(%x, %u) : f32[4]
    %o = empty_like(%y) : f32[4]
    call "my::double"(%y, %o)
    %v = uniform(@a, shape=[4], dtype=f32)
    %w = uniform(@a, shape=[4], dtype=f32)
    %z = add(%v, %w) : f32[4]
    %r = add(%z, %o) : f32[4]
    return %r, %z
  }
}
`)))
	a, b := e.s.NewGenerator(1), e.s.NewGenerator(2)
	f := e.fn("f", whole.FunctionOptions{Generators: []*graphs.Generator{a, b}})
	if graphed, all := f.Parts(); graphed != 2 || all != 3 {
		t.Errorf("%d of %d parts are graphed, want 2 of 3", graphed, all)
	}
	x := e.tensor(1, 2, 3, 4)
	state := testkit.Must[graphs.Tensor](t)(e.s.TensorOf("state", make([]byte, 16), dtype.I64, 2))
	for i := range uint64(4) {
		e.m.MarkStep()
		drop(t, testkit.Must[[]graphs.Tensor](t)(f.Call(tree.Borrow(x, state, state)))...)
		if of, n := testkit.Must[graphs.GeneratorState](t)(a.State()), testkit.Must[graphs.GeneratorState](t)(b.State()); of.Offset != 8*(i+1) || n.Offset != 4*(i+1) {
			t.Errorf("call %d: the generators are at %+v and %+v, want offsets %d and %d", i, of, n, 8*(i+1), 4*(i+1))
		}
	}
	drop(t, x, state)
}

// TestSizeOfOpResult: an op between graphs returns a tensor whose size depends on a symbol, and its operand's size is a
// multiple of the symbol.
func TestSizeOfOpResult(t *testing.T) {
	e := open(t, whole.BackendOptions{Partition: true}, tree.Options{})
	defer e.close()
	e.mod = testkit.Must[*ir.Module](t)(ir.Parse("m.ir", []byte(`pwc 1
module "m" {
  sym N in [1, 8]
  op "my::double"(tensor) -> (tensor)
  func @f(%x: f32[2*N]) -> (f32[2*N]) {
    %o = call "my::double"(%x) : f32[2*N]
    return %o
  }
}
`)))
	f := e.fn("f", whole.FunctionOptions{Symbols: map[string]int64{"N": 2}})
	x := e.tensor(1, 2, 3, 4)
	out := testkit.Must[[]graphs.Tensor](t)(f.Call(tree.Borrow(x)))
	if got := out[0].Shape(); !slices.Equal(got, []int64{4}) {
		t.Fatalf("the result has shape %v, want [4]", got)
	}
	e.want("the result", out[0], 2, 4, 6, 8)
	drop(t, out[0], x)
}

// TestOnlyAllocations: a function that only allocates runs without a graph and without a skip.
func TestOnlyAllocations(t *testing.T) {
	e := open(t, whole.BackendOptions{Partition: true}, tree.Options{})
	defer e.close()
	e.mod = testkit.Must[*ir.Module](t)(ir.Parse("m.ir", []byte(`pwc 1
module "m" {
  func @f() -> (f32[4]) {
    %o = empty(shape=[4], dtype=f32) : f32[4]
    return %o
  }
}
`)))
	f := e.fn("f", whole.FunctionOptions{})
	out := testkit.Must[[]graphs.Tensor](t)(f.Call(nil))
	if f.Skipped() != nil || len(e.said) != 0 || out[0].Size() != 16 {
		t.Errorf("skipped %v, said %v, the result is %s", f.Skipped(), e.said, out[0])
	}
	drop(t, out[0])
}
