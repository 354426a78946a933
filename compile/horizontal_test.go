package compile_test

import (
	"context"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/loop"
	"pwc/internal/testkit"
	"pwc/program"
)

// pairs is a backend that fuses up to most kernels horizontally.
type pairs struct{ most int }

func (pairs) Target() string { return "pairs" }

func (pairs) Lower(k *loop.Kernel) (compile.Code, error) {
	return compile.One(program.Kernel{Name: k.Name, Format: program.KernelCUDA, Code: []byte("x")}, program.Launch{}), nil
}

func (b pairs) FusesHorizontally(ks []*loop.Kernel) bool { return len(ks) <= b.most }

func (pairs) LowerHorizontal(ks []*loop.Kernel) (compile.Code, error) {
	var names []string
	for _, k := range ks {
		names = append(names, k.Name)
	}
	return compile.One(program.Kernel{Name: strings.Join(names, "+"), Format: program.KernelCUDA, Code: []byte("x")}, program.Launch{}), nil
}

// TestBeside pins which kernels become one launch: neighbours, if no kernel writes memory
// that another one uses, up to the number that the backend takes.
func TestBeside(t *testing.T) {
	for _, c := range []struct {
		name, body, result string
		most               int
		want               string
	}{
		{"two of three", `
    %a = sum(%x, axes=[1]) : f32[N]
    %b = max(%y, axes=[0]) : f32[8]
    %c = prod(%y, axes=[1]) : f32[N]
    return %a, %b, %c`, "f32[N], f32[8], f32[N]", 2, "sum+max prod"},
		{"all", `
    %a = sum(%x, axes=[1]) : f32[N]
    %b = max(%y, axes=[0]) : f32[8]
    %c = prod(%y, axes=[1]) : f32[N]
    return %a, %b, %c`, "f32[N], f32[8], f32[N]", 3, "sum+max+prod"},
		{"none", `
    %a = sum(%x, axes=[1]) : f32[N]
    %b = max(%y, axes=[0]) : f32[8]
    return %a, %b`, "f32[N], f32[8]", 1, "sum max"},
		{"reads what was written", `
    %a = linear(%x, %w) : f32[N, 8]
    %b = max(%a, axes=[0]) : f32[8]
    %c = prod(%y, axes=[1]) : f32[N]
    return %a, %b, %c`, "f32[N, 8], f32[8], f32[N]", 9, "linear max+prod"},
		{"writes what is read", `
    %e = empty(shape=[N, 8], dtype=f32) : f32[N, 8]
    copy(%e, %x)
    %a = max(%e, axes=[0]) : f32[8]
    copy(%e, %y)
    return %a, %e`, "f32[8], f32[N, 8]", 9, "copy max copy"},
	} {
		m := testkit.Parse(t, `pwc 1
module "beside" {
  sym N in [1, 64] batch
  func @piece(%x: f32[N, 8], %y: f32[N, 8], %w: f32[8, 8]) -> (`+c.result+`) {`+c.body+`
  }
}`)
		p, err := compile.Compile(context.Background(), m, compile.Shape{}, pairs{c.most}, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		var names []string
		for _, s := range p.Steps {
			names = append(names, p.Kernels[s.Kernel].Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
