package ir_test

import (
	"fmt"
	"strings"
	"testing"

	"pwc/ir"
)

var benchSizes = []int{1_000, 10_000, 100_000}

// longText returns a module with one function of about n nodes that looks like a
// model's: layers of a norm, a GEMM and a splitting op that writes an operand.
func longText(n int) []byte {
	var b strings.Builder
	b.WriteString("pwc 1\nmodule \"long\" {\n  sym N in [1, 8192] batch\n  op \"silly::attention\"(tensor, tensor, tensor, mut tensor) split\n")
	layers := n / 6
	for i := range layers {
		fmt.Fprintf(&b, "  weight @l%d.norm : bf16[256]\n  weight @l%d.w : bf16[256, 256]\n", i, i)
	}
	b.WriteString("\n  func @forward(%x: bf16[N, 256]) -> (bf16[N, 256]) {\n")
	x := "x"
	for i := range layers {
		fmt.Fprintf(&b, "    %%n%d = rms_norm(%%%s, @l%d.norm, eps=1e-5) : bf16[N, 256] loc(\"layers.%d\")\n", i, x, i, i)
		fmt.Fprintf(&b, "    %%q%d = linear(%%n%d, @l%d.w) : bf16[N, 256]\n", i, i, i)
		fmt.Fprintf(&b, "    %%r%d = reshape(%%q%d, shape=[N, 4, 64]) : bf16[N, 4, 64]\n", i, i)
		fmt.Fprintf(&b, "    %%o%d = empty_like(%%r%d) : bf16[N, 4, 64]\n", i, i)
		fmt.Fprintf(&b, "    call \"silly::attention\"(%%r%d, %%r%d, %%r%d, %%o%d)\n", i, i, i, i)
		fmt.Fprintf(&b, "    %%y%d = reshape(%%o%d, shape=[N, 256]) : bf16[N, 256]\n", i, i)
		x = fmt.Sprintf("y%d", i)
	}
	fmt.Fprintf(&b, "    return %%%s\n  }\n}\n", x)
	return []byte(b.String())
}

func benchmark(b *testing.B, run func(b *testing.B, text []byte, m *ir.Module)) {
	for _, n := range benchSizes {
		text := longText(n)
		m, err := ir.Parse("long.ir", text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				run(b, text, m)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
	}
}

func BenchmarkParse(b *testing.B) {
	benchmark(b, func(b *testing.B, text []byte, _ *ir.Module) {
		if _, err := ir.Parse("long.ir", text); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	benchmark(b, func(b *testing.B, _ []byte, m *ir.Module) {
		if err := m.Verify(); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkPrint(b *testing.B) {
	benchmark(b, func(b *testing.B, _ []byte, m *ir.Module) { ir.Print(m) })
}

func BenchmarkFormat(b *testing.B) {
	benchmark(b, func(b *testing.B, text []byte, _ *ir.Module) {
		if _, err := ir.Format("long.ir", text); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkHash(b *testing.B) {
	benchmark(b, func(b *testing.B, _ []byte, m *ir.Module) { m.Hash() })
}
