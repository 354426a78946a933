package runner

import (
	"context"
	"fmt"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/ir"
	"pwc/frontend/hf"
	"pwc/ir/dtype"
)

type fakec struct{}

func (fakec) Compile(ctx context.Context, source, name, arch string, ptx bool) ([]byte, error) {
	fmt.Println(source)
	return []byte("x"), nil
}
func (fakec) Version() string { return "x" }

func TestZZ(t *testing.T) {
	m, err := hf.Builtin().Import([]byte(llama8B), hf.Options{DType: dtype.BF16, BlockSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	lm, _ := inspect(m.Module)
	all, err := withSampling(m.Module, lm)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := cuda.New("cuda:sm_90", fakec{})
	for _, name := range []string{greedyFunc, randomFunc, sampleFunc, idsFunc} {
		one := *all
		one.Funcs = []*ir.Func{all.Func(name)}
		one.Weights, one.States, one.Externs = nil, nil, nil
		fmt.Println("=====", name)
		p, err := compile.Compile(context.Background(), &one, compile.Shape{}, b, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range p.Kernels {
			fmt.Println("kernel", k.Name)
		}
		fmt.Println(p.String())
	}
}
