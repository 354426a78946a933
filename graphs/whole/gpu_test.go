package whole_test

import (
	"testing"

	"pwc/compile/cuda"
	"pwc/graphs"
	"pwc/graphs/tree"
	"pwc/graphs/whole"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/pieces"
	"pwc/program"
	"pwc/runtime/device"
)

// copied is an extern op of any device: its result is a copy of its operand.
type copied struct {
	name    string
	capture bool
	calls   *int
}

func (o copied) Signature() device.Signature {
	return device.Signature{Name: o.name, Mut: []bool{false, true}, Capture: o.capture}
}

func (copied) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

func (o copied) Launch(c *device.OpCall) error {
	*o.calls++
	return c.Stream.Copy(c.Args[1].Buffer, c.Args[0].Buffer)
}

// TestOnGPU runs functions on the machine's GPU, or an emulated one: uncut with a weight and with an op
// that is captured, cut at an op that is not captured, skipped, with a written static input, and as a
// Plain.
func TestOnGPU(t *testing.T) {
	dev := cudatest.Open(t, fake.Options{})
	backend, err := cuda.New(dev.Info().Target, dev.Compiler(t))
	testkit.Check(t, err)
	store := pieces.NewMemoryStore()
	open := func(o whole.BackendOptions) *env {
		e := &env{TB: t}
		o.Compiler, o.Store = pieces.Pipeline{Backend: backend}, store
		o.Ops = []device.Op{copied{"my::double", false, &e.calls}, copied{"my::log", false, &e.calls}, copied{"my::safe", true, &e.calls}}
		return e.open(dev.Device, o, tree.Options{})
	}
	closed := func(e *env) {
		testkit.Check(t, e.m.Close())
		testkit.Check(t, e.b.Close())
		testkit.Check(t, e.s.Close())
	}
	for _, c := range []struct {
		fn                               string
		partition                        bool
		static                           []int
		inputs                           int
		want                             []float32
		recorded, executed, calls, skips int
	}{
		{"plain", false, nil, 2, []float32{2, 4, 6, 8}, 1, 3, 0, 0},
		{"safe", false, nil, 1, []float32{2, 3, 4, 5}, 1, 3, 2, 0}, // in the warm-up and the recording
		{"middle", true, nil, 1, []float32{4, 6, 8, 10}, 2, 6, 5, 0},
		{"middle", false, nil, 1, []float32{4, 6, 8, 10}, 0, 0, 5, 1},
		{"bump", false, []int{0}, 1, []float32{11, 12, 13, 14}, 1, 3, 0, 0},
	} {
		e := open(whole.BackendOptions{Partition: c.partition, NoMutation: true})
		f := e.fn(c.fn, whole.FunctionOptions{Static: c.static})
		in := []graphs.Tensor{e.tensor(1, 2, 3, 4), e.tensor(1, 2, 3, 4)}
		var last graphs.Tensor
		for i := range 5 {
			e.m.MarkStep()
			out := testkit.Must[[]graphs.Tensor](t)(f.Call(tree.Borrow(in[:c.inputs]...)))
			if i == 4 {
				last = out[0]
				out = out[1:]
			}
			drop(t, out...)
		}
		e.want(c.fn, last, c.want...)
		drop(t, append(in, last)...)
		if s := e.stats(); s.Recorded != c.recorded || s.Executed != c.executed || e.calls != c.calls || len(e.said) != c.skips {
			t.Errorf("@%s: %+v, %d calls, said %v", c.fn, s, e.calls, e.said)
		}
		closed(e)
	}
	e := open(whole.BackendOptions{})
	fn := testkit.Must[*whole.Function](t)(whole.Compile(ctx, e.s, e.mod, "grad", whole.Options{Compiler: pieces.Pipeline{Backend: backend}, Store: store}))
	a, b, c := e.tensor(1, 2, 3, 4), e.tensor(2, 2, 2, 2), e.tensor(5, 5, 5, 5)
	p := testkit.Must[*whole.Plain](t)(whole.NewPlain(ctx, e.s, fn.Run, []graphs.Tensor{a, b}, whole.PlainOptions{CopyInputs: true, CopyOutputs: true}))
	first, second := testkit.Must[[]graphs.Tensor](t)(p.Run([]graphs.Tensor{a, b})), testkit.Must[[]graphs.Tensor](t)(p.Run([]graphs.Tensor{a, c}))
	e.want("first", first[0], 2, 4, 6, 8)
	e.want("second", second[0], 5, 10, 15, 20)
	testkit.Check(t, p.Reset())
	drop(t, first[0], second[0], a, b, c)
	testkit.Check(t, fn.Close())
	closed(e)
}
