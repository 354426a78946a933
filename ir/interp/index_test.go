package interp

import (
	"context"
	"strings"
	"testing"

	"pwc/ir"
	"pwc/ir/dtype"
)

func TestGather(t *testing.T) {
	table := of(dtype.BF16, s(3, 2), 1, 2, 3, 4, 5, 6)
	check(t, "embedding", apply1(t, "embedding", []any{table, i32(2, 0, 2)}), of(dtype.BF16, s(3, 2), 5, 6, 1, 2, 5, 6))
	check(t, "matrix of ids", apply1(t, "embedding", []any{table, of(dtype.I64, s(2, 1), 1, 0)}), of(dtype.BF16, s(2, 1, 2), 3, 4, 1, 2))
	check(t, "scalar id", apply1(t, "embedding", []any{table, of(dtype.U8, s(), 1)}), bf16(3, 4))
	check(t, "vector table", apply1(t, "embedding", []any{i32(7, 8, 9), i32(1)}), i32(8))
	check(t, "no ids", apply1(t, "embedding", []any{table, of(dtype.I32, s(0))}), of(dtype.BF16, s(0, 2)))
	axis := ir.IntAttr("axis", -1)
	x := of(dtype.I32, s(2, 3), 1, 2, 3, 4, 5, 6)
	check(t, "gather", apply1(t, "gather", []any{x, i32(2, 2)}, axis), of(dtype.I32, s(2, 2), 3, 3, 6, 6))
	check(t, "scalar index", apply1(t, "gather", []any{x, of(dtype.I32, s(), 1)}, axis), i32(2, 5))
	check(t, "first axis", apply1(t, "gather", []any{x, i32(1)}), of(dtype.I32, s(1, 3), 4, 5, 6))
}

const indexText = `pwc 1
module "index" {
  sym N in [1, 64] batch
  state @kv : f32[4, 2]
  func @scatter(%at: i32[N], %rows: f32[N, 2]) -> (f32[4, 2]) {
    scatter(@kv, %at, %rows) loc("layer.kv")
    return @kv
  }
  func @columns(%at: i32[2]) -> (f32[2, 3]) {
    %d = full(0, shape=[2, 3], dtype=f32) : f32[2, 3]
    %s = iota(shape=[2, 2], dtype=f32, axis=1) : f32[2, 2]
    scatter(%d, %at, %s, axis=1)
    return %d
  }
  func @lookup(%table: f32[3, 2], %ids: i32[N], %x: f32[0, 3]) -> (f32[N, 2], f32[0, N]) {
    %y = embedding(%table, %ids) : f32[N, 2] loc("model.embed_tokens")
    %z = gather(%x, %ids, axis=1) : f32[0, N]
    return %y, %z
  }
  func @experts(%x: f32[N, 2], %w: f32[3, 1, 2], %b: f32[3, 1], %at: i32[N], %none: f32[3, 0, 2]) -> (f32[N, 1], f32[N, 0]) {
    %y = linear_select(%x, %w, %at, %b) : f32[N, 1] loc("mlp.experts")
    %z = linear_select(%x, %none, %at) : f32[N, 0]
    return %y, %z
  }
}
`

func parse(t *testing.T, text string) *ir.Module {
	t.Helper()
	m, err := ir.Parse("test.ir", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestScatter(t *testing.T) {
	m := parse(t, indexText)
	kv := of(dtype.F32, s(4, 2), 1, 1, 2, 2, 3, 3, 4, 4)
	env := &Env{States: map[string]*Tensor{"kv": kv}}
	rows := of(dtype.F32, s(3, 2), 10, 11, 20, 21, 30, 31)
	out, err := Run(context.Background(), m, m.Func("scatter"), env, []*Tensor{i32(2, 0, 2), rows})
	if err != nil {
		t.Fatal(err)
	}
	want := of(dtype.F32, s(4, 2), 20, 21, 2, 2, 30, 31, 4, 4) // of the two writes to 2 the last stays
	check(t, "state", kv, want)
	check(t, "result", out[0], want)
	if len(env.IndexErrors) != 0 {
		t.Errorf("reports %v", env.IndexErrors)
	}
	kv.Set(0, -1)
	check(t, "a result shares no storage", out[0], want)

	out, err = Run(context.Background(), m, m.Func("columns"), env, []*Tensor{i32(2, 0)})
	if err != nil {
		t.Fatal(err)
	}
	check(t, "along axis 1", out[0], of(dtype.F32, s(2, 3), 1, 0, 0, 1, 0, 0))

	sums := parse(t, `pwc 1
module "sums" {
  func @sums(%at: i32[5], %x: i8[5], %y: f32[5, 1]) -> (f32[2, 1], i8[2]) {
    %d = full(0.5, shape=[2, 1], dtype=f32) : f32[2, 1]
    scatter(%d, %at, %y, add=true)
    %e = full(1, shape=[2], dtype=i8) : i8[2]
    scatter(%e, %at, %x, add=true)
    return %d, %e
  }
}
`)
	out, err = Run(context.Background(), sums, sums.Func("sums"), &Env{}, []*Tensor{i32(1, -1, 1, 0, 1), of(dtype.I8, s(5), 100, 7, 20, -3, 10), of(dtype.F32, s(5, 1), 1, 2, 4, 8, 16)})
	if err != nil {
		t.Fatal(err)
	}
	check(t, "added", out[0], of(dtype.F32, s(2, 1), 8.5, 21.5))
	check(t, "added, wrapping around", out[1], of(dtype.I8, s(2), -2, -125))
}

// TestOutOfRange checks C12: an index out of range reads zero, writes nothing, and is reported.
func TestOutOfRange(t *testing.T) {
	m := parse(t, indexText)
	kv := of(dtype.F32, s(4, 2), 1, 1, 2, 2, 3, 3, 4, 4)
	env := &Env{States: map[string]*Tensor{"kv": kv}}
	rows := of(dtype.F32, s(3, 2), 10, 11, 20, 21, 30, 31)
	if _, err := Run(context.Background(), m, m.Func("scatter"), env, []*Tensor{i32(1, -1, 4), rows}); err != nil { // -1 is no slice, and no error
		t.Fatal(err)
	}
	check(t, "writes nothing", kv, of(dtype.F32, s(4, 2), 1, 1, 10, 11, 3, 3, 4, 4))
	table := of(dtype.F32, s(3, 2), 1, 2, 3, 4, 5, 6)
	out, err := Run(context.Background(), m, m.Func("lookup"), env, []*Tensor{table, i32(1, 3, 0), of(dtype.F32, s(0, 3))})
	if err != nil {
		t.Fatal(err)
	}
	check(t, "reads zero", out[0], of(dtype.F32, s(3, 2), 3, 4, 0, 0, 1, 2))
	if len(env.IndexErrors) != 2 { // the gather from a tensor without elements is not reported
		t.Fatalf("reports %v", env.IndexErrors)
	}
	a, b := env.IndexErrors[0], env.IndexErrors[1]
	if a.Op != "scatter" || a.Loc != "layer.kv" || a.Count != 1 || a.Element != 2 || a.Index != 4 || a.Extent != 4 || a.At.Func != "scatter" || a.At.Node != 0 {
		t.Errorf("report %+v", a)
	}
	if b.Op != "embedding" || b.Loc != "model.embed_tokens" || b.Count != 1 || b.Element != 1 || b.Index != 3 || b.Extent != 3 {
		t.Errorf("report %+v", b)
	}
	if text := b.Error(); !strings.HasPrefix(text, "test.ir:16:10: ") || !strings.Contains(text, "embedding: element 1 of the index is 3, out of range of an extent of 3 (indices out of range: 1)") {
		t.Errorf("report reads %q", text)
	}

	env.IndexErrors = nil
	out, err = Run(context.Background(), m, m.Func("experts"), env, []*Tensor{of(dtype.F32, s(3, 2), 1, 2, 3, 4, 5, 6), of(dtype.F32, s(3, 1, 2), 1, 1, 1, 1, 1, 1), of(dtype.F32, s(3, 1), 10, 20, 30), i32(-1, 2, 3), of(dtype.F32, s(3, 0, 2))})
	if err != nil {
		t.Fatal(err)
	}
	check(t, "no matrix", out[0], of(dtype.F32, s(3, 1), 0, 37, 0))
	if len(env.IndexErrors) != 1 { // the result without elements reads no index
		t.Fatalf("reports %v", env.IndexErrors)
	}
	if e := env.IndexErrors[0]; e.Op != "linear_select" || e.Loc != "mlp.experts" || e.Count != 2 || e.Element != 0 || e.Index != -1 || e.Extent != 3 {
		t.Errorf("report %+v", e)
	}
}
