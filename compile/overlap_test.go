package compile_test

import (
	"fmt"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/host"
	"pwc/internal/testkit"
	"pwc/program"
)

// summed is a module with an all_reduce whose sum is read after n GEMMs.
func summed(n int) string {
	var b strings.Builder
	b.WriteString(`pwc 1
module "m" {
  group dp in 2
  weight @w : f32[8, 8]
  func @f(%x: f32[8, 8] varying over dp) -> (f32[8, 8] varying over dp, f32[8, 8]) {
    %g = linear(%x, @w)
    %sum = all_reduce(%g, group=dp)
    %h0 = relu(%x)
`)
	for i := range n {
		fmt.Fprintf(&b, "    %%h%d = linear(%%h%d, @w)\n", i+1, i)
	}
	fmt.Fprintf(&b, "    %%y = mul(%%sum, 0.5)\n    return %%h%d, %%y\n  }\n}\n", n)
	return b.String()
}

// TestOverlap: an all_reduce whose sum is read much later is async, and the step before the one that reads it waits
// for it. No step between them gets its memory as scratch.
func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		gemms   int
		disable []string
		want    bool
	}{{8, nil, true}, {1, nil, false}, {0, nil, false}, {8, []string{"overlap"}, false}} {
		p, err := compile.Compile(t.Context(), testkit.Parse(t, summed(c.gemms)), compile.Shape{}, host.New(), compile.Options{Disable: c.disable})
		if err != nil {
			t.Fatal(err)
		}
		call, wait := -1, -1
		async := false
		for i, s := range p.Steps {
			switch s.Extern {
			case program.CollectivePrefix + "all_reduce":
				call = i
				for _, a := range s.Attrs {
					async = async || a.Name == "async" && a.Bool
				}
			case program.CollectiveWait:
				wait = i
			}
		}
		if async != c.want || (wait > call) != c.want {
			t.Errorf("%d GEMMs, without %v: the call is step %d, async %v, and step %d waits:\n%s", c.gemms, c.disable, call, async, wait, p)
			continue
		}
		if !c.want {
			continue
		}
		if got, want := fmt.Sprint(p.Steps[wait].Args), fmt.Sprint(p.Steps[call].Args); got != want {
			t.Errorf("the wait has buffers %s, the call %s", got, want)
		}
		for _, b := range p.Steps[call].Args {
			if buf := p.Buffers[b]; buf.Kind != program.BufferScratch || int(buf.First) > call || int(buf.Last) < wait {
				t.Errorf("buffer %d has the span of steps %d to %d, but the call runs in steps %d to %d", b, buf.First, buf.Last, call, wait)
			}
			for i := call + 1; i < wait; i++ {
				for _, a := range p.Steps[i].Args {
					if a == b {
						t.Errorf("step %d touches buffer %d of the call", i, b)
					}
				}
			}
		}
		reads := false
		for _, a := range p.Steps[wait+1].Args {
			reads = reads || a == p.Steps[wait].Args[0]
		}
		if !reads {
			t.Errorf("step %d waits long before the sum is read:\n%s", wait, p)
		}
	}
}
