package loopgen

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// phases is a kernel whose phases compute values of the row. Values have names, each defined once.
// Phase 0 defines the values that no other phase does: loads, constants and dims.
type phases struct {
	k     *loop.Kernel
	names map[string]loop.Value
}

// value returns a value by name: a number is a constant, one that begins with N a dim.
func (p *phases) value(name string) loop.Value {
	if v, ok := p.names[name]; ok {
		return v
	}
	v := loop.Value(len(p.k.Values))
	in := loop.Instr{Op: loop.Load, Dst: v, Access: &loop.Access{}}
	var x float64
	switch _, err := fmt.Sscan(name, &x); {
	case err == nil:
		in = loop.Instr{Op: loop.Const, Dst: v, Float: x}
	case name[0] == 'N':
		in = loop.Instr{Op: loop.Dim, Dst: v, Dim: dim.Sym(name)}
	}
	p.names[name] = v
	p.k.Values = append(p.k.Values, loop.ValueInfo{DType: dtype.F32, Row: true})
	p.k.Phases[0].Row = append(p.k.Phases[0].Row, in)
	return v
}

// phasesOf parses phases. Each is one or more of "result = op operand operand", separated by commas.
func phasesOf(text ...string) *phases {
	p := &phases{&loop.Kernel{Phases: make([]loop.Phase, len(text)+1)}, make(map[string]loop.Value)}
	for i, list := range text {
		for _, one := range strings.Split(list, ",") {
			w := strings.Fields(one)
			in := loop.Instr{Op: loop.Op(ir.LookupOp(w[2]).ID)}
			for _, name := range w[3:] {
				in.Args = append(in.Args, p.value(name))
			}
			in.Dst = loop.Value(len(p.k.Values))
			p.names[w[0]] = in.Dst
			p.k.Values = append(p.k.Values, loop.ValueInfo{DType: dtype.F32, Row: true})
			p.k.Phases[i+1].Row = append(p.k.Phases[i+1].Row, in)
		}
	}
	return p
}

// loops describes the loops: first phase and number of phases, loop-carried values (start, next, name
// after the loop), and constants that iterations select.
func (p *phases) loops() string {
	e := newWriter(p.k, cgen.GPU{})
	called := func(v loop.Value) string {
		for name, x := range p.names {
			if x == v {
				return name
			}
		}
		return "-"
	}
	var out []string
	found := e.rolledLoops(nil)
	for first := range p.k.Phases {
		r := found[first]
		if r == nil {
			continue
		}
		text := fmt.Sprintf("%d+%d:", first, r.iterations)
		for _, c := range r.carried {
			text += fmt.Sprintf(" %s>%s", called(c.start), called(c.next))
			if c.after != loop.NoValue {
				text += ">" + called(c.after)
			}
		}
		for _, c := range r.selected {
			var names []string
			for _, v := range c.of {
				names = append(names, called(v))
			}
			text += " " + strings.Join(names, "|")
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

func TestRolledLoops(t *testing.T) {
	for name, c := range map[string]struct {
		phases []string
		want   string
	}{
		"a carried value":                         {[]string{"a = add s 1", "b = add a 1", "c = add b 1"}, "1+3: s>a"},
		"read later":                              {[]string{"a = add s 1", "b = add a 1", "c = add b 1", "z = mul c c"}, "1+3: s>a>c"},
		"a value that is only read later":         {[]string{"a = add s 1, d = mul s 2", "b = add a 1, e = mul a 2", "c = add b 1, f = mul b 2", "z = exp f"}, "1+3: s>a ->d>f"},
		"nothing carried":                         {[]string{"a = add s t", "b = add s t", "c = add s t"}, "1+3:"},
		"too few":                                 {[]string{"a = add s 1", "b = add a 1"}, ""},
		"another op":                              {[]string{"a = add s 1", "b = add a 1", "c = mul b 1"}, ""},
		"another result":                          {[]string{"a = add s 1, d = exp a", "b = add a 1, e = exp a", "c = add b 1, f = exp c"}, ""},
		"a value from before the loop":            {[]string{"a = add s t", "b = add a t", "c = add b t"}, "1+3: s>a"},
		"another value from before the loop":      {[]string{"a = add s t", "b = add a t", "c = add b u"}, ""},
		"another value in the first phase":        {[]string{"a = add s t", "b = add a u", "c = add b u", "d = add c u"}, "2+3: a>b"},
		"read by the phase after the next":        {[]string{"a = add s 1", "b = add a 1", "c = add b 1", "d = add b 1"}, ""},
		"a selected constant":                     {[]string{"a = add s 1", "b = add a 2", "c = add b 3"}, "1+3: s>a 1|2|3"},
		"one selected constant for two operands":  {[]string{"a = add s 1, d = mul s 1", "b = add a 2, e = mul a 2", "c = add b 3, f = mul b 3"}, "1+3: s>a 1|2|3"},
		"two selected constants":                  {[]string{"a = add s 1, d = mul s 1", "b = add a 2, e = mul a 2", "c = add b 3, f = mul b 4"}, "1+3: s>a 1|2|3 1|2|4"},
		"a constant as start value":               {[]string{"a = add 0 1", "b = add a 1", "c = add b 1"}, "1+3: 0>a"},
		"a constant instead of the carried value": {[]string{"a = add s 1", "b = add 5 1", "c = add 5 1", "d = add 5 1"}, "2+3:"},
		"two starts":                              {[]string{"a = add s 1, d = mul t 1", "b = add a 1, e = mul a 1", "c = add b 1, f = mul b 1"}, "1+3: s>a t>a"},
		"the first phase reads its own value":     {[]string{"a = add s 1, d = mul a 1", "b = add a 1, e = mul a 1", "c = add b 1, f = mul b 1", "g = add c 1, h = mul c 1"}, "2+3: a>b"},
		"a dim":                                   {[]string{"a = add s N", "b = add a N", "c = add b N"}, "1+3: s>a"},
		"another dim":                             {[]string{"a = add s N", "b = add a N", "c = add b N2"}, ""},
		"two loops":                               {[]string{"a = add s 1", "b = add a 1", "c = add b 1", "d = mul c 1", "e = mul d 1", "f = mul e 1"}, "1+3: s>a>c; 4+3: c>d"},
	} {
		if got := phasesOf(c.phases...).loops(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestRolledLoopsIndirect: a later phase that loads at an index reads the value with the index, so the
// loop ends with the phase that computes it; phases that load at an index are not rolled.
func TestRolledLoopsIndirect(t *testing.T) {
	list := []string{"a = add s 1", "b = add a 1", "c = add b 1", "d = add c 1", "z = exp s"}
	p := phasesOf(list...)
	lookup := loop.Instr{Op: loop.Load, Dst: p.names["z"], Access: &loop.Access{Index: &loop.Index{At: p.names["c"]}}}
	p.k.Phases[5].Row = []loop.Instr{lookup}
	if got, want := p.loops(), "1+3: s>a>c"; got != want {
		t.Errorf("indexed load after the loop: %q, want %q", got, want)
	}
	p = phasesOf(list...)
	for i := range 4 {
		row := &p.k.Phases[i+1].Row
		lookup.Dst = loop.Value(len(p.k.Values))
		lookup.Access = &loop.Access{Index: &loop.Index{At: p.names["s"]}}
		p.k.Values = append(p.k.Values, loop.ValueInfo{DType: dtype.F32, Row: true})
		*row = slices.Insert(*row, 0, lookup)
	}
	if got := p.loops(); got != "" {
		t.Errorf("indexed loads in phases: %q, want no loop", got)
	}
}

// TestRolledLoopsTypes: a loop-carried value has the same dtype in all iterations.
func TestRolledLoopsTypes(t *testing.T) {
	p := phasesOf("a = cast s", "b = cast a", "c = cast b", "d = cast c")
	if got, want := p.loops(), "1+4: s>a"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	p.k.Values[p.names["s"]].DType = dtype.I64
	if got, want := p.loops(), "2+3: a>b"; got != want {
		t.Errorf("from i64: %q, want %q", got, want)
	}
	p.k.Values[p.names["c"]].DType = dtype.BF16
	if got := p.loops(); got != "" {
		t.Errorf("to bf16 between: %q, want no loop", got)
	}
}
