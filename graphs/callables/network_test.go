package callables_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pwc/graphs"
	"pwc/graphs/callables"
	"pwc/graphs/whole"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
)

// network has the parts of PyTorch's test_graph_make_graphed_callables: two modules with
// dropout, an activation and a loss.
const network = `pwc 1
module "network" {
  sym N in [1, 64]
  sym M in [1, 64]
  weight @w1 : f32[7, 5]
  weight @b1 : f32[7]
  weight @w2 : f32[3, 7]
  weight @b2 : f32[3]
  state @rng : i64[2]
  func @section1(%x: f32[4, 5]) -> (f32[4, 7]) {
    %h = linear(%x, @w1, @b1) : f32[4, 7]
    %y = dropout(%h, @rng, p=0.2) : f32[4, 7]
    return %y
  }
  func @section1.eval(%x: f32[4, 5]) -> (f32[4, 7]) {
    %y = linear(%x, @w1, @b1) : f32[4, 7]
    return %y
  }
  func @relu(%x: f32[4, 7]) -> (f32[4, 7]) {
    %y = relu(%x) : f32[4, 7]
    return %y
  }
  func @section2(%x: f32[4, 7]) -> (f32[4, 3]) {
    %h = linear(%x, @w2, @b2) : f32[4, 3]
    %y = dropout(%h, @rng, p=0.1) : f32[4, 3]
    return %y
  }
  func @section2.eval(%x: f32[4, 7]) -> (f32[4, 3]) {
    %y = linear(%x, @w2, @b2) : f32[4, 3]
    return %y
  }
  func @loss(%p: f32[4, 3], %y: f32[4, 3]) -> (f32[]) {
    %d = sub(%p, %y) : f32[4, 3]
    %s = mul(%d, %d) : f32[4, 3]
    %l = mean(%s, axes=[0, 1]) : f32[]
    return %l
  }
  func @sgd2(%w: mut f32[N, M], %g: f32[N, M]) -> () {
    %d = mul(%g, 0.1) : f32[N, M]
    %n = sub(%w, %d) : f32[N, M]
    copy(%w, %n)
    return
  }
  func @sgd1(%w: mut f32[N], %g: f32[N]) -> () {
    %d = mul(%g, 0.1) : f32[N]
    %n = sub(%w, %d) : f32[N]
    copy(%w, %n)
    return
  }
}
`

// sections are the functions in the order of the forward, with the values whose gradients each
// returns.
var sections = []struct {
	name, eval string
	wrt        []string
	grad       []int // arguments that require a gradient
}{
	{"section1", "section1.eval", []string{"@w1", "@b1"}, nil},
	{"relu", "", []string{"%x"}, []int{0}},
	{"section2", "section2.eval", []string{"%x", "@w2", "@b2"}, []int{0}},
	{"loss", "", []string{"%p"}, []int{0}},
}

// trainer is the network with weights, a generator and callables of its own.
type trainer struct {
	*env
	gen     *graphs.Generator
	weights map[string]graphs.Tensor
	one     graphs.Tensor
	sgd     map[int]*whole.Function // by rank
	fns     []callables.Function
	set     *callables.Set
}

func newTrainer(e *env, o callables.Options) *trainer {
	e.Helper()
	t := newFunctions(e)
	t.set = testkit.Must[*callables.Set](e)(callables.New(ctx, e.s, t.fns, o))
	e.end = append(e.end, t.set.Close)
	return t
}

// newFunctions is newTrainer without callables.
func newFunctions(e *env) *trainer {
	e.Helper()
	t := &trainer{env: e, gen: e.s.NewGenerator(5), weights: map[string]graphs.Tensor{}, sgd: map[int]*whole.Function{1: e.compile("sgd1"), 2: e.compile("sgd2")}}
	r := rand.New(rand.NewPCG(1, 2))
	for name, shape := range map[string][]int64{"w1": {7, 5}, "b1": {7}, "w2": {3, 7}, "b2": {3}} {
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		t.weights[name] = e.tensor(name, draw(rand.New(rand.NewPCG(uint64(n), 3)), int(n), 0.5), shape...)
	}
	t.one = e.tensor("one", []float32{1})
	samples := map[string][]graphs.Tensor{
		"section1": {e.tensor("x", draw(r, 20, 1), 4, 5)}, "relu": {e.tensor("x", draw(r, 28, 1), 4, 7)},
		"section2": {e.tensor("x", draw(r, 28, 1), 4, 7)}, "loss": {e.tensor("p", draw(r, 12, 1), 4, 3), e.tensor("y", draw(r, 12, 1), 4, 3)},
	}
	for _, s := range sections {
		c := e.callable(s.name, whole.CallableOptions{WRT: s.wrt, Eval: s.eval})
		t.fns = append(t.fns, testkit.Must[callables.Function](e)(c.Function(s.name, samples[s.name],
			whole.Operands{Tensors: t.weights, Generators: map[string]*graphs.Generator{"rng": t.gen}})))
	}
	return t
}

// forward runs the callables and returns their calls.
func (t *trainer) forward(x, y graphs.Tensor) []*callables.Call {
	t.Helper()
	in := []graphs.Tensor{x}
	var calls []*callables.Call
	for i, s := range sections {
		if s.name == "loss" {
			in = append(in, y)
		}
		c := testkit.Must[*callables.Call](t)(t.set.At(i).Forward(t.s.DefaultStream(), args(in, s.grad...)...))
		in = slices.Clone(c.Outputs())
		calls = append(calls, c)
	}
	return calls
}

// backward runs the backwards and returns the gradients of the weights and of the sections'
// arguments, by name.
func (t *trainer) backward(calls []*callables.Call) map[string]graphs.Tensor {
	t.Helper()
	grads, g := map[string]graphs.Tensor{}, t.one
	for i := len(calls) - 1; i >= 0; i-- {
		out := testkit.Must[[]graphs.Tensor](t)(calls[i].Backward(t.s.DefaultStream(), g))
		for k, name := range sections[i].wrt {
			if name[0] == '%' {
				name, g = sections[i].name+name, out[k]
			}
			grads[name] = out[k]
		}
	}
	return grads
}

// step trains on one batch and returns the gradients, the outputs of all sections and the new weights.
func (t *trainer) step(x, y graphs.Tensor) map[string][]float32 {
	t.Helper()
	calls := t.forward(x, y)
	grads := t.backward(calls)
	for name, w := range t.weights {
		testkit.Must[[]graphs.Tensor](t)(t.sgd[len(w.Shape())].Run(t.s.Eager(t.s.DefaultStream()), []graphs.Tensor{w, grads["@"+name]}))
	}
	seen := map[string][]float32{}
	for name, g := range grads {
		seen["gradient of "+name] = t.read(g)
	}
	for i, c := range calls {
		seen["output of "+sections[i].name] = t.read(c.Outputs()[0])
	}
	for name, w := range t.weights {
		seen["weight "+name] = t.read(w)
	}
	return seen
}

// batch draws an input and a target.
func (e *env) batch(r *rand.Rand) (x, y graphs.Tensor) {
	e.Helper()
	return e.tensor("x", draw(r, 20, 1), 4, 5), e.tensor("y", draw(r, 12, 1), 4, 3)
}

// TestTraining is PyTorch's test_graph_make_graphed_callables: ten steps of SGD are bit-equal to those
// of the uncaptured functions. Evaluation follows, which the captured set runs uncaptured and the other
// one captured, then training again.
func TestTraining(t *testing.T) { training(t, hostRig(), callables.Options{}) }

// TestAnyOrder is TestTraining with a pool for each callable.
func TestAnyOrder(t *testing.T) { training(t, hostRig(), callables.Options{AnyOrder: true}) }

func training(t *testing.T, g rig, o callables.Options) {
	t.Helper()
	e := open(t, g, network)
	defer e.close()
	graphed := newTrainer(e, o)
	plain := newTrainer(e, callables.Options{Eval: true})
	plain.set.Train(true)
	r := rand.New(rand.NewPCG(8, 8))
	var first, last float32
	for step := range 10 {
		x, y := e.batch(r)
		got, want := graphed.step(x, y), plain.step(x, y)
		if !graphed.set.At(0).Captured() || plain.set.At(0).Captured() {
			t.Fatal("the captured set runs uncaptured, or the other way around")
		}
		same(t, fmt.Sprintf("step %d", step), got, want)
		if step == 0 {
			first = got["output of loss"][0]
		}
		last = got["output of loss"][0]
	}
	if first == last {
		t.Error("the loss did not change")
	}
	if a, b := testkit.Must[graphs.GeneratorState](t)(graphed.gen.State()), testkit.Must[graphs.GeneratorState](t)(plain.gen.State()); a != b || a.Offset == 0 {
		t.Errorf("generators at %+v and %+v", a, b)
	}
	graphed.set.Train(false)
	plain.set.Train(false) // the mode in which it was captured
	x, y := e.batch(r)
	same(t, "evaluation", outputs(graphed, x, y), outputs(plain, x, y))
	if a, b := testkit.Must[graphs.GeneratorState](t)(graphed.gen.State()), testkit.Must[graphs.GeneratorState](t)(plain.gen.State()); a != b {
		t.Errorf("evaluation draws: generators at %+v and %+v", a, b)
	}
	graphed.set.Train(true)
	plain.set.Train(true)
	same(t, "training again", graphed.step(x, y), plain.step(x, y))
}

func outputs(t *trainer, x, y graphs.Tensor) map[string][]float32 {
	t.Helper()
	seen := map[string][]float32{}
	for i, c := range t.forward(x, y) {
		seen["output of "+sections[i].name] = t.read(c.Outputs()[0])
	}
	return seen
}

func same(t *testing.T, what string, got, want map[string][]float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, want %d", what, len(got), len(want))
	}
	for name, w := range want {
		if !slices.Equal(got[name], w) {
			t.Errorf("%s: %s is %v, uncaptured %v", what, name, got[name], w)
		}
	}
}

// TestWarmUpChangesNothing: New leaves a generator that the functions draw from and a parameter that a
// function writes as they were.
func TestWarmUpChangesNothing(t *testing.T) {
	e := open(t, hostRig(), network)
	defer e.close()
	w := newTrainer(e, callables.Options{})
	if s := testkit.Must[graphs.GeneratorState](t)(w.gen.State()); s != (graphs.GeneratorState{Seed: 5}) {
		t.Errorf("the generator is at %+v", s)
	}
	counter := e.tensor("counter", []float32{3, 4}, 2)
	add := e.compile("sgd1")
	bump := callables.Function{
		Name: "bump", Outputs: 1, Params: args([]graphs.Tensor{counter}), Args: args([]graphs.Tensor{e.tensor("x", []float32{10, 20}, 2)}),
		Forward: func(r *graphs.Recorder, in []graphs.Tensor) ([]graphs.Tensor, error) {
			if _, err := add.Run(r, []graphs.Tensor{in[1], in[0]}); err != nil {
				return nil, err
			}
			return []graphs.Tensor{in[1]}, nil // an input, so the output is a copy
		},
	}
	set := testkit.Must[*callables.Set](t)(callables.New(ctx, e.s, []callables.Function{bump}, callables.Options{}))
	if got := e.read(counter); !slices.Equal(got, []float32{3, 4}) {
		t.Errorf("warm-ups left %v", got)
	}
	var c *callables.Call
	for range 2 {
		c = testkit.Must[*callables.Call](t)(set.At(0).Forward(e.s.DefaultStream(), bump.Args...))
	}
	if got := e.read(counter); !slices.Equal(got, []float32{1, 0}) {
		t.Errorf("two calls left %v", got)
	}
	if got := e.read(c.Outputs()[0]); !slices.Equal(got, []float32{1, 0}) {
		t.Errorf("the output is %v", got)
	}
	testkit.Check(t, set.Close())
}

// TestWarmUpOfGenerators: a warm-up that fails after a draw leaves the generator as it was, and no
// memory.
func TestWarmUpOfGenerators(t *testing.T) {
	e := open(t, hostRig(), network)
	defer e.close()
	gen := e.s.NewGenerator(9)
	x := e.tensor("x", []float32{1}, 1)
	fails := callables.Function{Name: "fails", Outputs: 1, Args: args([]graphs.Tensor{x}), Generators: []*graphs.Generator{gen},
		Forward: func(r *graphs.Recorder, in []graphs.Tensor) ([]graphs.Tensor, error) {
			if _, err := r.Draw(gen, 8); err != nil {
				return nil, err
			}
			if _, err := r.Alloc("left", dtype.F32, 3); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("no")
		}}
	if _, err := callables.New(ctx, e.s, []callables.Function{fails}, callables.Options{}); err == nil {
		t.Fatal("New succeeds although the function fails")
	}
	if s := testkit.Must[graphs.GeneratorState](t)(gen.State()); s.Offset != 0 {
		t.Errorf("the generator is at %+v", s)
	}
}
