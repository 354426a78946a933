package compile_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/compile"
	"pwc/compile/host"
	"pwc/ir"
	"pwc/program"
)

// TestCollectives pins properties that the runtime relies on: a collective is a library
// step outside of any choice, on contiguous memory, and the blocks of ranks are along its
// first axis.
func TestCollectives(t *testing.T) {
	m, err := ir.Parse("collectives.ir", []byte(`pwc 1
module "m" {
  sym N in [1, 8] batch
  group tp in 2
  func @f(%x: f16[N, 4] partial over tp, %y: i32[N, 2] shard 1 over tp) -> (f16[N, 4], i32[N, 4], f16[N, 2] shard 1 over tp, i32[N, 2]) {
    %t = mul(%x, 0.5)
    %sum = all_reduce(%t, group=tp)
    %all = all_gather(%y, group=tp, axis=1)
    %part = reduce_scatter(%x, group=tp, axis=1)
    %root = broadcast(%y, group=tp, root=1)
    return %sum, %all, %part, %root
  }
}`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := compile.Compile(t.Context(), m, compile.Shape{}, host.New(), compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range p.Steps {
		if s.Kind != program.StepLibrary {
			continue
		}
		var text []string
		for _, a := range s.Attrs {
			text = append(text, fmt.Sprintf("%s=%s%s", a.Name, a.Str, strings.Repeat(a.Dim.String(), int(1-min(1, len(a.Str))))))
		}
		to, from := p.Buffers[s.Args[0]], p.Buffers[s.Args[1]]
		got = append(got, fmt.Sprintf("%s %v %s%v < %s%v", s.Extern, text, to.DType, to.Shape, from.DType, from.Shape))
	}
	want := []string{
		"collective::all_reduce [group=tp size=2] f16[N 4] < f16[N 4]",
		"collective::all_gather [group=tp size=2] i32[2 N 2] < i32[1 N 2]",
		"collective::reduce_scatter [group=tp size=2] f16[N 2] < f16[2 N 2]",
		"collective::broadcast [group=tp size=2 root=1] i32[N 2] < i32[N 2]",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("steps (-want +got):\n%s", d)
	}
}
