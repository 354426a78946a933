package graphs_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"math"

	comphost "pwc/compile/host"
	"pwc/graphs"
	"pwc/graphs/whole"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/runtime/host"
)

// Example captures a function of a module, writes its input anew and replays it.
func Example() {
	ctx := context.Background()
	dev := host.Open(host.Options{})
	defer dev.Close()
	s, err := graphs.NewSession(dev, graphs.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	m, err := ir.Parse("square.ir", []byte(`pwc 1
module "square" {
  func @square(%x: f32[2]) -> (f32[2]) {
    %y = mul(%x, %x) : f32[2]
    return %y
  }
}
`))
	if err != nil {
		log.Fatal(err)
	}
	square, err := whole.Compile(ctx, s, m, "square", whole.Options{Compiler: pieces.Pipeline{Backend: comphost.New()}})
	if err != nil {
		log.Fatal(err)
	}
	data := func(vs ...float32) (b []byte) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		return b
	}
	x, err := s.TensorOf("x", data(2, 3), dtype.F32, 2)
	if err != nil {
		log.Fatal(err)
	}
	var y graphs.Tensor
	g, err := graphs.Capture(ctx, s, graphs.Options{Name: "square"}, func(r *graphs.Recorder) error {
		out, err := square.Run(r, []graphs.Tensor{x})
		if err == nil {
			y = out[0]
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, in := range [][]byte{data(2, 3), data(4, 5)} {
		if err := s.Write(x, in); err != nil {
			log.Fatal(err)
		}
		if err := g.Replay(s.DefaultStream()); err != nil {
			log.Fatal(err)
		}
		b := make([]byte, y.Size())
		if err := s.Read(y, b); err != nil {
			log.Fatal(err)
		}
		fmt.Println(math.Float32frombits(binary.LittleEndian.Uint32(b)), math.Float32frombits(binary.LittleEndian.Uint32(b[4:])))
	}
	for _, release := range []func() error{y.Release, x.Release, g.Reset, square.Close, s.Close} {
		if err := release(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 4 9
	// 16 25
}
