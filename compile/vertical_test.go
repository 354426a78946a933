package compile_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/loop"
	"pwc/internal/testkit"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
)

// chained is a backend that takes chains of the given kernels: for one row it runs one
// kernel, which does not have the dead arguments, and for more rows the kernels one by one.
type chained struct {
	pairs
	take []string
}

func names(ks []*loop.Kernel) string {
	var out []string
	for _, k := range ks {
		out = append(out, k.Name)
	}
	return strings.Join(out, "+")
}

func (b chained) FusesVertically(c *compile.Chain) bool {
	return slices.Contains(b.take, names(c.Kernels))
}

func (b chained) LowerVertical(c *compile.Chain) (compile.Code, error) {
	kernel := func(name string) program.Kernel {
		return program.Kernel{Name: name, Format: program.KernelCUDA, Code: []byte("x")}
	}
	one := compile.Step{Kernel: kernel(names(c.Kernels)), Args: []int32{}}
	apart := compile.Variant{}
	at := int32(0)
	for _, k := range c.Kernels {
		s := compile.Step{Kernel: kernel(k.Name)}
		for i := range k.Args {
			a := at + int32(i)
			s.Args = append(s.Args, a)
			if c.Same[a] == a && !c.Dead[a] {
				one.Args = append(one.Args, a)
			}
		}
		at += int32(len(k.Args))
		apart.Steps = append(apart.Steps, s)
	}
	// A routine writes a Temp, and a kernel reads it.
	apart.Steps = append(apart.Steps, compile.Step{Library: "lib::routine", Args: []int32{0, at}}, compile.Step{Kernel: kernel("after"), Args: []int32{at, 0}})
	n := program.Guard{Expr: dim.Sym("N"), Lo: 2, Hi: 64}
	apart.Guard = n
	return compile.Code{Variants: []compile.Variant{apart, {Steps: []compile.Step{one}}}, Temps: []compile.Temp{{DType: dtype.F32, Shape: []dim.Dim{dim.Sym("N")}}}}, nil
}

// stepTexts shows the steps of a program by their kernels and buffers.
func stepTexts(p *program.Program) []string {
	text := func(s *program.Step) string {
		name := s.Extern
		if s.Kind == program.StepKernel {
			name = p.Kernels[s.Kernel].Name
		}
		var args []string
		for _, a := range s.Args {
			b := &p.Buffers[a]
			args = append(args, map[program.BufferKind]string{program.BufferParam: "p", program.BufferResult: "r", program.BufferScratch: "s", program.BufferConst: "c"}[b.Kind]+
				map[bool]string{true: fmt.Sprintf("%d@%d-%d", a, b.First, b.Last), false: fmt.Sprint(b.Index)}[b.Kind == program.BufferScratch])
		}
		return name + "(" + strings.Join(args, " ") + ")"
	}
	var out []string
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Kind != program.StepChoice {
			out = append(out, text(s))
			continue
		}
		for _, v := range s.Variants {
			line := "else "
			if !v.Guard.Always() {
				line = "if "
			}
			for n := range v.Steps {
				line += text(&v.Steps[n]) + " "
			}
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// TestChain pins which chains the backend makes code of (it is asked for the longest first), which
// arguments are the same or dead, and in which buffers they are.
func TestChain(t *testing.T) {
	const norm, rest = `
    %a = sum(%x, axes=[1]) : f32[N]
    %b = linear(%x, %w) : f32[N, 8]
    %c = max(%b, axes=[0]) : f32[8]
    %d = prod(%c, axes=[0], keepdims=true) : f32[1]
`, `
    return %a, %d`
	for _, c := range []struct {
		name, body, result string
		take               []string
		want               []string
	}{
		{"none is taken", norm + rest, "f32[N], f32[1]", nil,
			[]string{"sum(p0 r0)", "linear(s2@1-2 p0 p2)", "max(s2@1-2 s4@2-3)", "prod(s4@2-3 r1)"}},
		{"sum is no part of it", norm + rest, "f32[N], f32[1]", []string{"sum+linear"},
			[]string{"sum(p0 r0)", "linear(s2@1-2 p0 p2)", "max(s2@1-2 s4@2-3)", "prod(s4@2-3 r1)"}},
		{"the longest wins", norm + rest, "f32[N], f32[1]", []string{"linear+max", "linear+max+prod", "max+prod"},
			[]string{"sum(p0 r0)",
				"if linear(s2@1-1 p0 p2) max(s2@1-1 s4@1-1) prod(s4@1-1 r1) lib::routine(s2@1-1 s6@1-1) after(s6@1-1 s2@1-1)",
				"else linear+max+prod(p0 p2 r1)"}},
		{"a later start", norm + rest, "f32[N], f32[1]", []string{"max+prod"},
			[]string{"sum(p0 r0)", "linear(s2@1-2 p0 p2)",
				"if max(s2@1-2 s4@2-2) prod(s4@2-2 r1) lib::routine(s2@1-2 s6@2-2) after(s6@2-2 s2@1-2)",
				"else max+prod(s2@1-2 r1)"}},
		{"read by another step", norm + `
    %e = max(%b, axes=[1]) : f32[N]
    return %a, %d, %e`, "f32[N], f32[1], f32[N]", []string{"linear+max+prod"},
			[]string{"sum(p0 r0)",
				"if linear(s2@1-2 p0 p2) max(s2@1-2 s4@1-1) prod(s4@1-1 r1) lib::routine(s2@1-2 s6@1-1) after(s6@1-1 s2@1-2)",
				"else linear+max+prod(s2@1-2 p0 p2 r1)", "max(s2@1-2 r2)"}},
		{"a result", norm + `
    return %a, %d, %b`, "f32[N], f32[1], f32[N, 8]", []string{"linear+max+prod"},
			[]string{"sum(p0 r0)",
				"if linear(r2 p0 p2) max(r2 s4@1-1) prod(s4@1-1 r1) lib::routine(r2 s6@1-1) after(s6@1-1 r2)",
				"else linear+max+prod(r2 p0 p2 r1)"}},
	} {
		m := testkit.Parse(t, `pwc 1
module "chain" {
  sym N in [1, 64] batch
  func @piece(%x: f32[N, 8], %y: f32[N, 8], %w: f32[8, 8]) -> (`+c.result+`) {`+c.body+`
  }
}`)
		p, err := compile.Compile(context.Background(), m, compile.Shape{}, chained{pairs{1}, c.take}, compile.Options{})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := stepTexts(p); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
		apart, err := compile.Compile(context.Background(), m, compile.Shape{}, chained{pairs{1}, c.take}, compile.Options{Disable: []string{"chain"}})
		if err != nil || slices.ContainsFunc(apart.Steps, func(s program.Step) bool { return s.Kind == program.StepChoice }) {
			t.Errorf("%s: chained with the pass switched off (%v)", c.name, err)
		}
	}
}
