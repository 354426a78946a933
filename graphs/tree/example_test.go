package tree_test

import (
	"fmt"
	"log"

	"pwc/graphs"
	"pwc/graphs/tree"
	"pwc/ir/dtype"
	"pwc/runtime/host"
)

// Example runs a function three times: it warms up, is recorded, and is replayed. A read of an output
// that a later generation overwrote is an error.
func Example() {
	dev := host.Open(host.Options{})
	defer dev.Close()
	s, err := graphs.NewSession(dev, graphs.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	m, err := tree.New(s, tree.Options{})
	if err != nil {
		log.Fatal(err)
	}
	bodies := 0
	ones, err := m.Add(tree.Function{Name: "ones", Body: func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) {
		bodies++
		t, err := r.Alloc("t", dtype.U8, 2)
		if err != nil {
			return nil, err
		}
		return []graphs.Tensor{t}, r.Fill(t, 1)
	}})
	if err != nil {
		log.Fatal(err)
	}
	var old graphs.Tensor
	for range 3 {
		m.MarkStep()
		out, err := ones.Call(nil, nil)
		if err != nil {
			log.Fatal(err)
		}
		b := make([]byte, 2)
		if err := s.Read(out[0], b); err != nil {
			log.Fatal(err)
		}
		in, err := m.Inspect()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(in.State, b, "bodies", bodies)
		if old.Storage() != nil {
			fmt.Println(old.Err())
		}
		old = out[0]
	}
	for _, release := range []func() error{old.Release, m.Close, s.Close} {
		if err := release(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// warmup [1 1] bodies 1
	// recording [1 1] bodies 2
	// graphs: output 0 of ones of generation 1 was overwritten by a subsequent run: its memory holds output 0 of ones of generation 2; clone the tensor before the next run to keep its values
	// execution [1 1] bodies 2
	// graphs: output 0 of ones of generation 2 was overwritten by a subsequent run: its memory holds output 0 of ones of generation 3; clone the tensor before the next run to keep its values
}
