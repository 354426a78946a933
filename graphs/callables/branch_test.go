package callables_test

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"pwc/graphs"
	"pwc/graphs/callables"
	"pwc/graphs/tree"
	"pwc/graphs/whole"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// branch is the partial-network example of PyTorch's notes on CUDA graphs: the host decides which of
// two modules follows the first.
const branch = `pwc 1
module "branch" {
  sym N in [1, 64]
  sym M in [1, 64]
  weight @m1.weight : f32[12, 10]
  weight @m1.bias : f32[12]
  weight @m2.weight : f32[6, 12]
  weight @m2.bias : f32[6]
  weight @m3.weight : f32[6, 12]
  weight @m3.bias : f32[6]
  func @m1(%x: f32[8, 10]) -> (f32[8, 12], f32[]) {
    %h = linear(%x, @m1.weight, @m1.bias) : f32[8, 12]
    %total = sum(%h, axes=[0, 1]) : f32[]
    return %h, %total
  }
  func @m2(%h: f32[8, 12]) -> (f32[8, 6]) {
    %out = linear(%h, @m2.weight, @m2.bias) : f32[8, 6]
    return %out
  }
  func @m3(%h: f32[8, 12]) -> (f32[8, 6]) {
    %out = linear(%h, @m3.weight, @m3.bias) : f32[8, 6]
    return %out
  }
  func @loss(%out: f32[8, 6], %y: f32[8, 6]) -> (f32[]) {
    %d = sub(%out, %y) : f32[8, 6]
    %squared = mul(%d, %d) : f32[8, 6]
    %loss = mean(%squared, axes=[0, 1]) : f32[]
    return %loss
  }
  func @sgd2(%w: mut f32[N, M], %g: f32[N, M]) -> () {
    %d = mul(%g, 0.05) : f32[N, M]
    %n = sub(%w, %d) : f32[N, M]
    copy(%w, %n)
    return
  }
  func @sgd1(%w: mut f32[N], %g: f32[N]) -> () {
    %d = mul(%g, 0.05) : f32[N]
    %n = sub(%w, %d) : f32[N]
    copy(%w, %n)
    return
  }
}
`

// part runs a function of the network and its backward, captured or not.
type part struct {
	weights  []string
	forward  func(in ...graphs.Tensor) []graphs.Tensor
	backward func(grads ...graphs.Tensor) []graphs.Tensor // of the last forward
}

// brancher trains the network.
type brancher struct {
	*env
	weights map[string]graphs.Tensor
	one     graphs.Tensor
	sgd     map[int]*whole.Function
	parts   map[string]part
	begin   func() // begins a step
	seen    map[string][]float32
	firsts  map[string][]float32 // gradients of the first step
	taken   []int32              // by step: 1 if m2 followed, 0 if m3 did
}

var branchParts = []struct {
	name    string
	wrt     []string
	grad    []int
	samples [][]int64
}{
	{"m1", []string{"@m1.weight", "@m1.bias"}, nil, [][]int64{{8, 10}}},
	{"m2", []string{"%h", "@m2.weight", "@m2.bias"}, []int{0}, [][]int64{{8, 12}}},
	{"m3", []string{"%h", "@m3.weight", "@m3.bias"}, []int{0}, [][]int64{{8, 12}}},
	{"loss", []string{"%out"}, []int{0}, [][]int64{{8, 6}, {8, 6}}},
}

func golden(t testing.TB, name string) *safetensors.File {
	t.Helper()
	return testkit.Must[*safetensors.File](t)(safetensors.Open("../../testdata/train/branch/" + name + ".safetensors"))
}

func (b *brancher) step(x, y graphs.Tensor) {
	b.Helper()
	b.begin()
	out := b.parts["m1"].forward(x)
	which := "m3"
	if b.read(out[1])[0] > 0 {
		which = "m2"
	}
	b.taken = append(b.taken, map[string]int32{"m2": 1}[which])
	p := b.parts[which].forward(out[0])
	loss := b.parts["loss"].forward(p[0], y)
	b.seen["losses"] = append(b.seen["losses"], b.read(loss[0])[0])
	grads := map[string]graphs.Tensor{}
	g := b.parts["loss"].backward(b.one)
	for _, name := range []string{which, "m1"} {
		if name == "m1" {
			g = b.parts[name].backward(g[0], graphs.Tensor{})
		} else {
			g = b.parts[name].backward(g[0])
		}
		for i, w := range b.parts[name].weights {
			grads[w] = g[len(g)-2+i]
		}
	}
	for name, g := range grads {
		if len(b.taken) == 1 {
			b.firsts[name] = b.read(g)
		}
		w := b.weights[name]
		testkit.Must[[]graphs.Tensor](b)(b.sgd[len(w.Shape())].Run(b.s.Eager(b.s.DefaultStream()), []graphs.Tensor{w, g}))
	}
}

// train runs all steps. run sets b.parts.
func train(e *env, run func(b *brancher, fns []callables.Function)) *brancher {
	e.Helper()
	b := &brancher{env: e, weights: map[string]graphs.Tensor{}, sgd: map[int]*whole.Function{1: e.compile("sgd1"), 2: e.compile("sgd2")},
		parts: map[string]part{}, begin: func() {}, seen: map[string][]float32{}, firsts: map[string][]float32{}}
	initial := golden(e, "initial")
	defer initial.Close()
	for _, w := range e.mod.Weights {
		x := testkit.Must[safetensors.Tensor](e)(initial.Tensor(w.Name))
		b.weights[w.Name] = testkit.Must[graphs.Tensor](e)(e.s.TensorOf(w.Name, x.Data, dtype.F32, x.Shape...))
		e.end = append(e.end, b.weights[w.Name].Release)
	}
	b.one = e.tensor("one", []float32{1})
	var fns []callables.Function
	for _, p := range branchParts {
		var samples []graphs.Tensor
		for _, s := range p.samples {
			samples = append(samples, e.tensor("sample", make([]float32, s[0]*s[1]), s...))
		}
		c := e.callable(p.name, whole.CallableOptions{WRT: p.wrt})
		fns = append(fns, testkit.Must[callables.Function](e)(c.Function(p.name, samples, whole.Operands{Tensors: b.weights})))
	}
	run(b, fns)
	for i, p := range branchParts {
		if i < 3 {
			f := b.parts[p.name]
			f.weights = []string{p.name + ".weight", p.name + ".bias"}
			b.parts[p.name] = f
		}
	}
	data := golden(e, "data")
	defer data.Close()
	x, y := testkit.Must[safetensors.Tensor](e)(data.Tensor("x")), testkit.Must[safetensors.Tensor](e)(data.Tensor("y"))
	for i := range 16 {
		cut := func(x safetensors.Tensor, shape ...int64) graphs.Tensor {
			n := len(x.Data) / 16
			t := testkit.Must[graphs.Tensor](e)(e.s.TensorOf("data", x.Data[i*n:(i+1)*n], dtype.F32, shape...))
			e.end = append(e.end, t.Release)
			return t
		}
		b.step(cut(x, 8, 10), cut(y, 8, 6))
	}
	for name, w := range b.weights {
		b.seen["final."+name] = b.read(w)
	}
	for name, g := range b.firsts {
		b.seen["first."+name] = g
	}
	return b
}

// graphed runs the parts as callables.
func graphed(o callables.Options) func(b *brancher, fns []callables.Function) {
	return func(b *brancher, fns []callables.Function) {
		b.Helper()
		set := testkit.Must[*callables.Set](b)(callables.New(ctx, b.s, fns, o))
		set.Train(true) // with Options.Eval: uncaptured
		b.end = append(b.end, set.Close)
		st := b.s.DefaultStream()
		for i, p := range branchParts {
			var last *callables.Call
			b.parts[p.name] = part{
				forward: func(in ...graphs.Tensor) []graphs.Tensor {
					last = testkit.Must[*callables.Call](b)(set.At(i).Forward(st, args(in, p.grad...)...))
					return last.Outputs()
				},
				backward: func(grads ...graphs.Tensor) []graphs.Tensor {
					return testkit.Must[[]graphs.Tensor](b)(last.Backward(st, grads...))
				},
			}
		}
	}
}

// inTree runs the same functions in a graph tree, which does not get their order.
func inTree(stats *tree.Stats) func(b *brancher, fns []callables.Function) {
	return func(b *brancher, fns []callables.Function) {
		b.Helper()
		m := testkit.Must[*tree.Manager](b)(tree.New(b.s, tree.Options{Check: true}))
		var step []graphs.Tensor // results of a step's calls; the next step makes them stale
		b.begin = func() { m.MarkStep(); step = step[:0] }
		b.end = append(b.end, func() error {
			*stats = testkit.Must[tree.Inspection](b)(m.Inspect()).Stats
			for _, t := range step {
				testkit.Check(b, t.Release())
			}
			return m.Close()
		})
		for i, p := range branchParts {
			f := fns[i]
			n := len(f.Args) + len(f.Params)
			var static []int
			var params []tree.Input
			for j, a := range f.Params {
				static, params = append(static, len(f.Args)+j), append(params, tree.Input{Tensor: a.Tensor})
			}
			forward := testkit.Must[*tree.Func](b)(m.Add(tree.Function{Name: p.name, Mode: tree.Forward, Static: static,
				Body: func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) { return f.Forward(r, in.All()) }}))
			var results, used []graphs.Tensor
			backward := testkit.Must[*tree.Func](b)(m.Add(tree.Function{Name: p.name + ".backward", Mode: tree.Backward, Static: static,
				Body: func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) {
					ts := in.All()
					return f.Backward(r, ts[:n], ts[n:n+len(results)], ts[n+len(results):])
				}}))
			zero := b.tensor("zero", []float32{0})
			b.parts[p.name] = part{
				forward: func(in ...graphs.Tensor) []graphs.Tensor {
					used = in
					results = testkit.Must[[]graphs.Tensor](b)(forward.Call(append(tree.Borrow(in...), params...), nil))
					step = append(step, results...)
					return results[:f.Outputs]
				},
				backward: func(grads ...graphs.Tensor) []graphs.Tensor {
					for i := range grads {
						if grads[i].Storage() == nil {
							grads[i] = zero
						}
					}
					out := testkit.Must[[]graphs.Tensor](b)(backward.Call(slices.Concat(tree.Borrow(used...), params, tree.Borrow(results...), tree.Borrow(grads...)), nil))
					step = append(step, out...)
					return out
				},
			}
		}
	}
}

// TestBranch trains the partial network uncaptured, with callables of one pool, with a pool for each
// callable, and in a tree. The results are bit-equal. Losses, first gradients and weights differ from
// PyTorch's by at most 1e-4 of the largest value.
func TestBranch(t *testing.T) { branched(t, hostRig) }

func branched(t *testing.T, next func() rig) {
	t.Helper()
	var stats tree.Stats
	var first *brancher
	for _, c := range []struct {
		name string
		run  func(*brancher, []callables.Function)
	}{
		{"uncaptured", graphed(callables.Options{Eval: true})},
		{"one pool", graphed(callables.Options{})},
		{"own pools", graphed(callables.Options{AnyOrder: true})},
		{"tree", inTree(&stats)},
	} {
		e := open(t, next(), branch)
		b := train(e, c.run)
		e.close()
		if first == nil {
			first = b
			holdToGoldens(t, b)
			continue
		}
		same(t, c.name, b.seen, first.seen)
	}
	// At least 50 of the tree's 96 calls are replays, and no call runs eagerly.
	if stats.Executed < 50 || stats.Eager > 0 {
		t.Errorf("the tree counts %+v", stats)
	}
}

// holdToGoldens compares every loss, the branches taken, the first gradients and the last weights
// with PyTorch's.
func holdToGoldens(t *testing.T, b *brancher) {
	t.Helper()
	expected, taken := golden(t, "expected"), golden(t, "taken")
	defer expected.Close()
	defer taken.Close()
	ways := testkit.Must[safetensors.Tensor](t)(taken.Tensor("taken"))
	for i, way := range b.taken {
		if want := int32(binary.LittleEndian.Uint32(ways.Data[4*i:])); way != want {
			t.Errorf("step %d took m2: %d, PyTorch %d", i, way, want)
		}
	}
	names := map[string]string{"losses": "losses"}
	for w := range b.weights {
		names["final."+w] = "final." + w
		if b.firsts[w] != nil {
			names["first."+w] = "first_grad." + w
		}
	}
	for name, file := range names {
		want := testkit.Must[safetensors.Tensor](t)(expected.Tensor(file))
		if len(want.Data) != 4*len(b.seen[name]) {
			t.Errorf("%s has %d elements, PyTorch's has %d", name, len(b.seen[name]), len(want.Data)/4)
			continue
		}
		scale := 0.0
		for i := range b.seen[name] {
			scale = max(scale, math.Abs(float64(element(want, i))))
		}
		for i, got := range b.seen[name] {
			if w := element(want, i); !(math.Abs(float64(got-w)) <= 1e-4*scale) {
				t.Errorf("%s[%d] is %v, PyTorch %v", name, i, got, w)
			}
		}
	}
}

func element(t safetensors.Tensor, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
}
