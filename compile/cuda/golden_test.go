package cuda_test

import (
	"context"
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"pwc/compile"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/program"
)

var update = flag.Bool("update", false, "rewrite the expectations in testdata")

// TestGolden generates the sources of the modules in testdata. A case has in.ir and a comment
// with lines like
//
//	target cuda:sm_90
//	N = 1..64        the range of symbol N to compile for
//	only rows1       show the text only of entries with this suffix
//	# a remark
//
// It expects, for every kernel, the guard, the launch and the arguments, and, unless only excludes the
// entry, the names of the helpers before it and its text. For a library call it expects the guard, the
// arguments and the attributes.
func TestGolden(t *testing.T) {
	testkit.Golden(t, "testdata/*.txtar", *update, golden)
}

var helper = regexp.MustCompile(`(?m)^__device__ __forceinline__ [\w<>, &]*?\b(\w+)\(|^struct (?:alignas\(.*\) )?(\w+)`)

// golden appends the sources of a case to its archive, which has only in.ir.
func golden(t *testing.T, ar *txtar.Archive) {
	m, err := ir.Parse("in.ir", ar.Files[0].Data)
	if err != nil {
		t.Fatal(err)
	}
	target, only := "cuda:sm_90", ""
	shape := compile.Shape{Ranges: make(map[string]dim.Interval)}
	for _, line := range strings.Split(strings.TrimSpace(string(ar.Comment)), "\n") {
		w := strings.Fields(line)
		switch {
		case len(w) == 0 || w[0] == "#":
		case w[0] == "target":
			target = w[1]
		case w[0] == "only":
			only = w[1]
		case len(w) == 3 && w[1] == "=":
			lo, hi, isRange := strings.Cut(w[2], "..")
			if !isRange {
				hi = lo
			}
			var iv dim.Interval
			if iv.Lo, err = strconv.ParseInt(lo, 10, 64); err == nil {
				iv.Hi, err = strconv.ParseInt(hi, 10, 64)
			}
			if err != nil {
				t.Fatal(err)
			}
			shape.Ranges[w[0]] = iv
		default:
			t.Fatalf("unknown line %q; want target, only, SYMBOL = LO..HI or # and a remark", line)
		}
	}
	r := newRecorder(t, target)
	p, err := compile.Compile(context.Background(), m, shape, r, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range p.Steps {
		if s.Kind != program.StepChoice {
			ar.Files = append(ar.Files, goldenKernel(p, &s, fmt.Sprint(i), "", only))
		}
		for j, v := range s.Variants {
			guard := ""
			if !v.Guard.Always() {
				guard = fmt.Sprintf("// for %s in [%d, %d]\n", v.Guard.Expr, v.Guard.Lo, v.Guard.Hi)
			}
			for n, way := range v.Steps {
				if way.Kind == program.StepLibrary {
					text := guard + "// on " + fmt.Sprint(way.Args) + "\n"
					for _, a := range way.Attrs {
						value := fmt.Sprint(a.Dims)
						switch a.Kind {
						case program.AttrDim:
							value = a.Dim.String()
						case program.AttrBool:
							value = fmt.Sprint(a.Bool)
						}
						text += fmt.Sprintf("// %s %s\n", a.Name, value)
					}
					ar.Files = append(ar.Files, txtar.File{Name: fmt.Sprintf("%d.%d.%d %s", i, j, n, way.Extern), Data: []byte(text)})
					continue
				}
				ar.Files = append(ar.Files, goldenKernel(p, &way, fmt.Sprintf("%d.%d.%d", i, j, n), guard, only))
			}
		}
	}
}

// goldenKernel describes a step: its launch, its buffers, and, if the entry has the suffix only, the text
// of its kernel.
func goldenKernel(p *program.Program, s *program.Step, number, guard, only string) txtar.File {
	k := p.Kernels[s.Kernel]
	var b strings.Builder
	b.WriteString(guard)
	fmt.Fprintf(&b, "// grid %s x %s x %s, block %d, shared %s", s.Launch.Grid[0], s.Launch.Grid[1], s.Launch.Grid[2], s.Launch.Block[0], s.Launch.Shared)
	for _, a := range s.Launch.Attrs {
		fmt.Fprintf(&b, ", %s %v", a.Name, a.Dims)
	}
	fmt.Fprintf(&b, ", on %v\n", s.Args)
	if strings.HasSuffix(k.Name, only) {
		head, body, _ := strings.Cut(string(k.Code), "extern \"C\" ")
		names := ""
		seen := make(map[string]bool)
		for _, h := range helper.FindAllStringSubmatch(head, -1) {
			if n := h[1] + h[2]; !seen[n] {
				seen[n] = true
				names += " " + n
			}
		}
		fmt.Fprintf(&b, "// helpers:%s\nextern \"C\" %s", names, body)
	}
	return txtar.File{Name: number + " " + k.Name, Data: []byte(b.String())}
}
