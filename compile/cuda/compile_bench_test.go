package cuda_test

import (
	"context"
	"testing"

	"pwc/compile"
)

// BenchmarkSources measures the compilation of the pieces of Llama-3.1-8B without NVRTC: passes,
// fusion, and the text of all variants.
func BenchmarkSources(b *testing.B) {
	modules := pieces(b, shape8B)
	b.ReportAllocs()
	for b.Loop() {
		for _, m := range modules {
			r := recorderOf(b, "cuda:sm_90", &fakeCompiler{specific: true})
			if _, err := compile.Compile(context.Background(), m, compile.Shape{}, r, compile.Options{}); err != nil {
				b.Fatal(err)
			}
		}
	}
}
