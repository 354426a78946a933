package ir_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir"
)

const twoGroups = `pwc 1
module "m" {
  sym N in [1, 64] batch
  sym d in [0, 1] load
  sym t in [0, 3] load
  group dp in 2 rank d
  group tp in 4 rank t
  weight @q : f32[2, 8] = shard("q", axis=0, group=tp)
  weight @kv : f32[2, 8] = concat(shard("k", axis=0, parts=2, group=tp), slice(shard("v", axis=0, group=tp), axis=0, start=0, end=1), axis=0)
  weight @o : f32[8, 2] = transpose(shard("o", axis=0, group=tp), perm=[1, 0])
  func @f(%x: f32[N, 8] shard 0 over dp) -> (f32[N, 8] shard 0 over dp) {
    %q = linear(%x, @q)
    %heads = reshape(%q, shape=[N, 2, 1])
    %turned = transpose(%heads, perm=[1, 0, 2])
    %kv = linear(%x, @kv)
    %a = mul(%q, %kv)
    %p = linear(%a, @o)
    %z = mul(%p, 0.5)
    %total = sum(%z, axes=[1])
    %y = all_reduce(%z, group=tp)
    %loss = sum(%y, axes=[0])
    return %y
  }
}`

// TestPlacements compares the placements that the verifier finds with ones worked out by hand.
func TestPlacements(t *testing.T) {
	m := mustParse(t, twoGroups)
	f := m.Func("f")
	want := map[string][2]string{ // over dp, over tp
		"x": {"shard 0 over dp", ""}, "q": {"shard 0 over dp", "shard 1 over tp"}, "heads": {"shard 0 over dp", "shard 1 over tp"},
		"turned": {"shard 1 over dp", "shard 0 over tp"}, "kv": {"shard 0 over dp", "varying over tp"}, "a": {"shard 0 over dp", "varying over tp"},
		"p": {"shard 0 over dp", "partial over tp"}, "z": {"shard 0 over dp", "partial over tp"}, "total": {"shard 0 over dp", "partial over tp"},
		"y": {"shard 0 over dp", ""}, "loss": {"partial over dp", ""},
	}
	got := map[string][2]string{}
	dp, tp := m.Placements(f, m.Group("dp")), m.Placements(f, m.Group("tp"))
	for v, info := range f.Values {
		if _, ok := want[info.Name]; ok {
			got[info.Name] = [2]string{dp[v].String(), tp[v].String()}
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("placements (-by hand +found):\n%s", d)
	}
}

// TestPlacementsOfBroadcastGEMMs: if a GEMM broadcasts the axis of the parts, the results of the
// ranks are no parts of a whole.
func TestPlacementsOfBroadcastGEMMs(t *testing.T) {
	m := mustParse(t, `pwc 1
module "m" {
  group tp in 2
  func @f(%x: f32[1, 4, 8] shard 0 over tp, %three: f32[3, 8, 5], %single: f32[1, 8, 5], %w: f32[2, 5, 8], %i: i32[3, 4]) -> () {
    %repeated = matmul(%x, %three)
    %kept = matmul(%x, %single)
    %selected = linear_select(%x, %w, %i)
    return
  }
}`)
	f := m.Func("f")
	want := map[string]string{"repeated": "varying over tp", "kept": "shard 0 over tp", "selected": "varying over tp"}
	got := map[string]string{}
	for v, p := range m.Placements(f, m.Group("tp")) {
		if name := f.Values[v].Name; want[name] != "" {
			got[name] = p.String()
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("placements (-by hand +found):\n%s", d)
	}
}

// TestWeightOf compares the parts that devices load with parts worked out by hand, in a world
// of 2 × 4 devices. k has two parts for four ranks of tp, so ranks 0 and 1 load the first part.
func TestWeightOf(t *testing.T) {
	m := mustParse(t, twoGroups)
	if m.World() != 8 {
		t.Fatalf("World is %d", m.World())
	}
	if d := cmp.Diff(map[string]int64{"d": 1, "t": 2}, m.RankSymbols(6)); d != "" {
		t.Errorf("device 6: %s", d)
	}
	parts := func(device int) [3]ir.Shard {
		q, kv := m.WeightOf(m.Weights[0], device), m.WeightOf(m.Weights[1], device)
		a, _ := q.Expr.Shard()
		b, _ := kv.Expr.Args[0].Shard()
		c, _ := kv.Expr.Args[1].Args[0].Shard()
		return [3]ir.Shard{a, b, c}
	}
	want := [3]ir.Shard{{Parts: 4, Part: 2}, {Parts: 2, Part: 1}, {Parts: 4, Part: 2}}
	if d := cmp.Diff(want, parts(6)); d != "" {
		t.Errorf("device 6 (-want +got):\n%s", d)
	}
	want = [3]ir.Shard{{Parts: 4, Part: 1}, {Parts: 2, Part: 0}, {Parts: 4, Part: 1}}
	if d := cmp.Diff(want, parts(1)); d != "" {
		t.Errorf("device 1 (-want +got):\n%s", d)
	}
	if s, _ := m.Weights[0].Expr.Shard(); s.Part != -1 || s.Group != "tp" {
		t.Errorf("the module's weight was changed: %+v", s)
	}
}

// TestGroupHash checks that the name of a group and placements are part of a module's hash, and
// that the names of rank symbols are not.
func TestGroupHash(t *testing.T) {
	text := func(size, rank, group, state string) string {
		return `pwc 1 module "m" { sym ` + rank + ` in [0, ` + size + `] load group ` + group + ` in 2 rank ` + rank +
			` weight @w : f32[2, 2] = shard("w", group=` + group + `) state @s : f32[2, 2] ` + state + ` over ` + group +
			` func @f() -> (f32[2, 2] ` + state + ` over ` + group + `) { %y = add(@w, @s) return %y } }`
	}
	base := mustParse(t, text("1", "r", "tp", "shard 0")).Hash()
	if mustParse(t, text("1", "rank_of_tp", "tp", "shard 0")).Hash() != base {
		t.Error("the name of the rank's symbol changes the hash")
	}
	for _, other := range []string{text("1", "r", "ep", "shard 0"), text("1", "r", "tp", "varying")} {
		if mustParse(t, other).Hash() == base {
			t.Errorf("the hash is that of another module: %s", other)
		}
	}
}
