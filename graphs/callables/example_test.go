package callables_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"math"

	comphost "pwc/compile/host"
	"pwc/graphs"
	"pwc/graphs/callables"
	"pwc/graphs/whole"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/runtime/host"
)

// Example makes a callable of a function of a module and runs its forward, then its backward.
func Example() {
	ctx := context.Background()
	dev := host.Open(host.Options{})
	defer dev.Close()
	s, err := graphs.NewSession(dev, graphs.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	m, err := ir.Parse("scale.ir", []byte(`pwc 1
module "scale" {
  weight @w : f32[2]
  func @scale(%x: f32[2]) -> (f32[2]) {
    %y = mul(%x, @w) : f32[2]
    return %y
  }
}
`))
	if err != nil {
		log.Fatal(err)
	}
	tensor := func(name string, vs ...float32) graphs.Tensor {
		var b []byte
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		t, err := s.TensorOf(name, b, dtype.F32, int64(len(vs)))
		if err != nil {
			log.Fatal(err)
		}
		return t
	}
	x, w, one := tensor("x", 2, 3), tensor("w", 10, 100), tensor("one", 1, 1)
	compiled, err := whole.CompileCallable(ctx, s, m, "scale", whole.CallableOptions{
		Options: whole.Options{Compiler: pieces.Pipeline{Backend: comphost.New()}}, WRT: []string{"@w"}})
	if err != nil {
		log.Fatal(err)
	}
	f, err := compiled.Function("scale", []graphs.Tensor{x}, whole.Operands{Tensors: map[string]graphs.Tensor{"w": w}})
	if err != nil {
		log.Fatal(err)
	}
	set, err := callables.New(ctx, s, []callables.Function{f}, callables.Options{})
	if err != nil {
		log.Fatal(err)
	}
	st := s.DefaultStream()
	call, err := set.At(0).Forward(st, callables.Arg{Tensor: x})
	if err != nil {
		log.Fatal(err)
	}
	grads, err := call.Backward(st, one)
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range []graphs.Tensor{call.Outputs()[0], grads[0]} {
		b := make([]byte, t.Size())
		if err := s.Read(t, b); err != nil {
			log.Fatal(err)
		}
		fmt.Println(math.Float32frombits(binary.LittleEndian.Uint32(b)), math.Float32frombits(binary.LittleEndian.Uint32(b[4:])))
	}
	if _, err := set.At(0).Forward(st, callables.Arg{Tensor: x}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(grads[0].Err())
	for _, release := range []func() error{set.Close, compiled.Close, x.Release, w.Release, one.Release, s.Close} {
		if err := release(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 20 300
	// 2 3
	// graphs: result 0 of @scale.backward of generation 1 was overwritten by a subsequent run: its memory holds the forward of scale of generation 2; clone the tensor before the next run to keep its values
}
