package train_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pwc/collective"
	collectivecuda "pwc/collective/cuda"
	collectivehost "pwc/collective/host"
	"pwc/compile"
	"pwc/compile/cuda"
	hostbackend "pwc/compile/host"
	"pwc/frontend/hf"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/optim"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/host"
	"pwc/safetensors"
	"pwc/train"
)

// ranks is the steps of all ranks that train a program.
type ranks struct {
	groups []*collective.Group
	steps  []*train.Step
	data   []*train.Data
}

// together calls f for each rank at the same time, and ends the group of one that fails.
func (r *ranks) together(f func(rank int) error) error {
	errs := make([]error, len(r.groups))
	var all sync.WaitGroup
	for rank, g := range r.groups {
		all.Go(func() {
			if errs[rank] = f(rank); errs[rank] != nil {
				g.Fail(errs[rank])
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// run runs steps, and returns the losses of rank 0. Those of the others must have the same bits.
func (r *ranks) run(t *testing.T, n int) []float64 {
	t.Helper()
	losses := make([][]float64, len(r.steps))
	err := r.together(func(rank int) error {
		s := r.steps[rank]
		for range n {
			r.data[rank].Select(s.Steps())
			if err := s.Run(t.Context(), r.data[rank]); err != nil {
				return err
			}
			loss, err := s.Loss(s.Steps())
			if err != nil {
				return err
			}
			losses[rank] = append(losses[rank], float64(loss))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for rank := range losses[1:] {
		if !bytes.Equal(f32s(losses[rank+1]...), f32s(losses[0]...)) {
			t.Errorf("rank %d has the losses %v, rank 0 %v", rank+1, losses[rank+1], losses[0])
		}
	}
	return losses[0]
}

// same holds the states of all ranks to those of rank 0, to the bit, and returns these.
func (r *ranks) same(t *testing.T) map[string][]byte {
	t.Helper()
	want := states(t, r.steps[0])
	for _, s := range r.steps[1:] {
		same(t, states(t, s), want)
	}
	return want
}

// onRanks compiles and loads a program on as many host devices as it has ranks.
func onRanks(t *testing.T, m *ir.Module, weights, batches safetensors.Source, o train.Options, mode piecewise.Mode) *ranks {
	t.Helper()
	groups, err := collective.Local(train.Group, o.Ranks, collective.Options{Limit: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var on []target
	for _, g := range groups {
		dev := host.Open(host.Options{Workers: 1})
		t.Cleanup(func() { dev.Close() })
		if err := collectivehost.Add(dev, g); err != nil {
			t.Fatal(err)
		}
		on = append(on, target{dev, hostbackend.New()})
	}
	return loadRanks(t, m, weights, batches, o, mode, groups, on)
}

func loadRanks(t *testing.T, m *ir.Module, weights, batches safetensors.Source, o train.Options, mode piecewise.Mode, groups []*collective.Group, on []target) *ranks {
	t.Helper()
	p, err := train.Build(m, o)
	if err != nil {
		t.Fatal(err)
	}
	all, err := train.NewData(p, batches)
	if err != nil {
		t.Fatal(err)
	}
	r := &ranks{groups: groups}
	store := pieces.NewMemoryStore()
	for rank := range groups {
		s, err := train.New(t.Context(), p, 1, piecewise.Options{Device: on[rank].dev, Rank: rank, Capture: piecewise.CaptureOptions{Mode: mode},
			Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: on[rank].backend}, Store: store}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		d, err := all.OfRank(rank)
		if err != nil {
			t.Fatal(err)
		}
		r.steps, r.data = append(r.steps, s), append(r.data, d)
	}
	if err := r.together(func(rank int) error { return r.steps[rank].Load(t.Context(), weights) }); err != nil {
		t.Fatal(err)
	}
	return r
}

// withRows returns a golden module whose batches have other numbers of rows.
func withRows(t *testing.T, name string, rows ...string) *ir.Module {
	t.Helper()
	text := ir.Print(parseFile(t, name))
	at := strings.Index(text, "func")
	return testkit.Parse(t, text[:at]+strings.NewReplacer(rows...).Replace(text[at:]))
}

func halfOfMLP(t *testing.T) *ir.Module {
	return withRows(t, "mlp", "f32[8, 16]", "f32[4, 16]", "f32[8, 32]", "f32[4, 32]", "f32[8, 8]", "f32[4, 8]")
}

// Two ranks that have half of each batch have the losses and the weights of PyTorch's run, which has whole
// batches, within 1e-4, and those of one device within 1e-5. All ranks have the same bits.
func TestRanksAsPyTorch(t *testing.T) {
	g := goldens()[0]
	initial, batches, want := open(t, "mlp", "initial"), open(t, "mlp", "data"), open(t, "mlp", "expected")
	losses := tensor(t, want, "losses")
	one := load(t, parseFile(t, "mlp"), initial, g.options, onHost(t), piecewise.Full)
	alone := steps(t, one, data(t, one, batches), len(losses))
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
		for _, bucket := range []int64{0, 1, 600} {
			t.Run(fmt.Sprint(mode, "/", bucket), func(t *testing.T) {
				o := g.options
				o.Ranks, o.BucketBytes = 2, bucket
				r := onRanks(t, halfOfMLP(t), initial, batches, o, mode)
				got := r.run(t, len(losses))
				if e := near(got, losses); e > 1e-4 {
					t.Errorf("losses %v, want %v", got, losses)
				}
				if e := near(got, alone); e > 1e-5 {
					t.Errorf("losses %v, on one device %v", got, alone)
				}
				all := r.same(t)
				for _, w := range initial.Names() {
					if e := near(floats(all[w]), tensor(t, want, "final."+w)); e > 1e-4 {
						t.Errorf("the final %s differs by %g", w, e)
					}
					if e := near(floats(all[w]), floats(states(t, one)[w])); e > 1e-5 {
						t.Errorf("the final %s differs by %g from that of one device", w, e)
					}
				}
			})
		}
	}
}

// A gradient at least as large as a bucket is summed in its own call. Smaller ones and the loss share calls.
func TestBuckets(t *testing.T) {
	for _, c := range []struct{ bucket, want int64 }{
		{0, 1},
		{1, 5},    // the loss, and weights of 2048, 128, 1024 and 32 bytes
		{1100, 3}, // 2048 alone; the backward has the second layer first: 32 + 1024 together, then 128 and the loss
		{1188, 2}, // 2048 alone, the others together
	} {
		o := goldens()[0].options
		o.Ranks, o.BucketBytes = 2, c.bucket
		p, err := train.Build(parseFile(t, "mlp"), o)
		if err != nil {
			t.Fatal(err)
		}
		calls, total := int64(0), int64(0)
		for _, n := range p.Losses[0].Step.Nodes {
			if n.Op.ID == ir.OpAllReduce {
				elements, _ := p.Losses[0].Step.Type(n.Args[0]).Elements().Const()
				calls, total = calls+1, total+4*elements
			}
		}
		if calls != c.want || total != 4+2048+128+1024+32 {
			t.Errorf("buckets of %d bytes: %d calls of %d bytes, want %d", c.bucket, calls, total, c.want)
		}
	}
}

// Ranks draw the random numbers that as many micro-batches of one device draw. So a step of 3 ranks equals a
// step of 3 micro-batches, except for rounding, with the same masks.
func TestRanksAreMicroBatches(t *testing.T) {
	src := memory{"w": ones(64)}
	var x []float64
	for i := range 64 * 6 {
		x = append(x, math.Sin(float64(i)))
	}
	batches := memory{"x": {DType: dtype.F32, Shape: []int64{6, 64}, Data: f32s(x...)}}
	o := train.Options{Optimizer: optim.SGD{}, LearningRate: 0.125}
	for _, c := range []struct{ ranks, parts int }{{3, 1}, {2, 2}} {
		o.Ranks, o.MicroBatches = 1, c.ranks*c.parts
		one := load(t, testkit.Parse(t, dropping), src, o, onHost(t), piecewise.Full)
		want := steps(t, one, data(t, one, batches), 5)
		o.Ranks, o.MicroBatches = c.ranks, c.parts
		r := onRanks(t, testkit.Parse(t, dropping), src, batches, o, piecewise.Full)
		if got := r.run(t, 5); near(got, want) > 1e-6 {
			t.Errorf("%d ranks of %d micro-batches: losses %v, want %v", c.ranks, c.parts, got, want)
		}
		if e := near(floats(r.same(t)["w"]), floats(states(t, one)["w"])); e > 1e-6 {
			t.Errorf("%d ranks of %d micro-batches: the weight differs by %g", c.ranks, c.parts, e)
		}
	}
}

// A gradient that is not finite on one rank skips the step of all ranks, and lowers the scale of all.
func TestRanksShareOverflow(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	o := train.Options{Optimizer: optim.DefaultAdamW(), LearningRate: 0.1, ClipNorm: 1, Ranks: 2, Scaler: &optim.Scaler{Initial: 4, Growth: 2, Backoff: 0.5, Interval: 2}}
	var x []byte
	for _, v := range []float64{5, 5, 5, inf, -inf, inf, 5, 5, nan, 5, 5, 5} { // of rank 0 and rank 1 in turn
		x = append(x, f32s(v, 0.5)...)
	}
	batches := memory{"x": {DType: dtype.F32, Shape: []int64{12, 2}, Data: x}}
	weights := memory{"w": {DType: dtype.F32, Shape: []int64{2}, Data: f32s(1, -2)}}
	r := onRanks(t, testkit.Parse(t, gradient), weights, batches, o, piecewise.Full)
	for i, want := range []struct{ scale, steps float64 }{{4, 1}, {2, 1}, {1, 1}, {1, 2}, {0.5, 2}, {0.5, 3}} {
		r.run(t, 1)
		r.same(t)
		for rank, s := range r.steps {
			if scale, done := number(t, s, "train.scale"), number(t, s, "train.step"); scale != want.scale || done != want.steps {
				t.Errorf("step %d, rank %d: scale %v and %v steps, want %v", i, rank, scale, done, want)
			}
		}
	}
}

// A weight whose gradient does not depend on the batch has the same gradient on each rank, which counts once.
func TestRanksAndPenalty(t *testing.T) {
	const text = `pwc 1
module "penalty" {
  weight @w : f32[2]
  weight @v : f32[2]
  func @loss(%x: f32[2]) -> (f32[]) {
    %y = mul(%x, @w)
    %s = sum(%y, axes=[0])
    %q = mul(@v, @v)
    %p = sum(%q, axes=[0])
    %loss = add(%s, %p)
    return %loss
  }
}
`
	weights := memory{"w": {DType: dtype.F32, Shape: []int64{2}, Data: f32s(0, 0)}, "v": {DType: dtype.F32, Shape: []int64{2}, Data: f32s(1, -2)}}
	batches := memory{"x": {DType: dtype.F32, Shape: []int64{2, 2}, Data: f32s(1, 2, 3, 4)}}
	r := onRanks(t, testkit.Parse(t, text), weights, batches, train.Options{Optimizer: optim.SGD{}, LearningRate: 0.25, Ranks: 2}, piecewise.None)
	if got := r.run(t, 1)[0]; got != 5 { // 1² + 2²
		t.Errorf("the loss is %v, want 5", got)
	}
	all := r.same(t)
	if w, v := floats(all["w"]), floats(all["v"]); !slices.Equal(w, []float64{-0.5, -0.75}) || !slices.Equal(v, []float64{0.5, -1}) {
		t.Errorf("the weights are %v and %v; by hand -x̄/4 and v/2", w, v)
	}
}

// failing is a batch that a rank cannot read.
type failing struct{}

var errNoBatch = errors.New("the disk is gone")

func (failing) Input(part, input int) ([]byte, error) { return nil, errNoBatch }

// A rank that fails ends the step of the others, with an error that names it.
func TestRanksLost(t *testing.T) {
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Full} {
		o := goldens()[0].options
		o.Ranks = 3
		r := onRanks(t, parseFile(t, "mlp"), open(t, "mlp", "initial"), open(t, "mlp", "data"), o, mode)
		r.run(t, 1)
		start := time.Now()
		errs := make([]error, 3)
		_ = r.together(func(rank int) error {
			s := r.steps[rank]
			r.data[rank].Select(s.Steps())
			var batch train.Batch = r.data[rank]
			if rank == 1 {
				batch = failing{}
			}
			if errs[rank] = s.Run(t.Context(), batch); errs[rank] == nil {
				_, errs[rank] = s.Loss(s.Steps())
			}
			return errs[rank]
		})
		for rank, err := range errs {
			var lost *collective.LostError
			switch {
			case rank == 1 && !errors.Is(err, errNoBatch):
				t.Errorf("mode %s: rank 1 failed with %v", mode, err)
			case rank != 1 && (!errors.As(err, &lost) || !slices.Equal(lost.Ranks, []int{1})):
				t.Errorf("mode %s: rank %d ended with %v, want a LostError of rank 1", mode, rank, err)
			}
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("mode %s: the ranks ended after %v", mode, took)
		}
	}
}

// Modules that ranks cannot train together are errors.
func TestRanksRefuse(t *testing.T) {
	o := train.Options{Optimizer: optim.SGD{}, Ranks: 2}
	if _, err := train.Build(parseFile(t, "branch"), o); err == nil || !strings.Contains(err.Error(), "Options.Ranks is 2: a module with several losses") {
		t.Errorf("several losses: %v", err)
	}
	const counting = `pwc 1
module "counting" {
  weight @w : f32[2]
  state @mean : f32[2]
  func @loss(%x: f32[2]) -> (f32[]) {
    %y = mul(%x, @w)
    copy(@mean, %y)
    %loss = sum(%y, axes=[0])
    return %loss
  }
}
`
	if _, err := train.Build(testkit.Parse(t, counting), o); err == nil || !strings.Contains(err.Error(), "test.ir:7") || !strings.Contains(err.Error(), "copy writes state @mean") {
		t.Errorf("a state that a loss writes: %v", err)
	}
	p, err := train.Build(parseFile(t, "mlp"), o)
	if err != nil {
		t.Fatal(err)
	}
	d, err := train.NewData(p, open(t, "mlp", "data"))
	if err != nil {
		t.Fatal(err)
	}
	for _, rank := range []int{-1, 2} {
		if _, err := d.OfRank(rank); err == nil || !strings.Contains(err.Error(), "ranks count from 0") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	for _, bad := range []train.Options{{Optimizer: optim.SGD{}, Ranks: -1}, {Optimizer: optim.SGD{}, BucketBytes: -1}} {
		if _, err := train.Build(parseFile(t, "mlp"), bad); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// The ranks of a step have batches that follow each other, also in an order that is drawn.
func TestDataOfRanks(t *testing.T) {
	build := func(ranks, parts int) *train.Data {
		p, err := train.Build(testkit.Parse(t, gradient), train.Options{Optimizer: optim.SGD{}, Ranks: ranks, MicroBatches: parts})
		if err != nil {
			t.Fatal(err)
		}
		var x []float64
		for i := range 2 * 14 {
			x = append(x, float64(i))
		}
		d, err := train.NewData(p, memory{"x": {DType: dtype.F32, Shape: []int64{14, 2}, Data: f32s(x...)}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, drawn := range []bool{false, true} {
		one, all := build(1, 1), build(3, 2)
		if drawn {
			if err := errors.Join(one.Shuffle(7), all.Shuffle(7)); err != nil {
				t.Fatal(err)
			}
		}
		var of [3]*train.Data
		for rank := range of {
			var err error
			if of[rank], err = all.OfRank(rank); err != nil {
				t.Fatal(err)
			}
		}
		next := int64(0)
		for step := range int64(5) { // more than two passes: 30 batches of 2 rows, of 28 rows
			for rank := range of {
				of[rank].Select(step)
				for part := range 2 {
					one.Select(next)
					next++
					got, err1 := of[rank].Input(part, 0)
					want, err2 := one.Input(0, 0)
					if err1 != nil || err2 != nil || !slices.Equal(got, want) {
						t.Errorf("shuffled %v: step %d, rank %d, micro-batch %d has %v, want %v, %v %v", drawn, step, rank, part, floats(got), floats(want), err1, err2)
					}
				}
			}
		}
	}
}

// deep returns a module of n linear layers, with weights and batches for it.
func deep(t *testing.T, n int) (m *ir.Module, weights, batches memory) {
	t.Helper()
	values := func(shape ...int64) safetensors.Tensor {
		count := int64(1)
		for _, d := range shape {
			count *= d
		}
		v := make([]float64, count)
		for i := range v {
			v[i] = math.Sin(float64(i*i)) / 4
		}
		return safetensors.Tensor{DType: dtype.F32, Shape: shape, Data: f32s(v...)}
	}
	weights, batches = memory{}, memory{"x": values(24, 16), "y": values(24, 16)}
	var head, body strings.Builder
	for i := range n {
		name := fmt.Sprintf("w%d", i)
		weights[name] = values(16, 16)
		fmt.Fprintf(&head, "weight @%s : f32[16, 16]\n", name)
		fmt.Fprintf(&body, "%%p%d = linear(%%h%d, @%s)\n%%h%d = tanh(%%p%d)\n", i, i, name, i+1, i)
	}
	return testkit.Parse(t, fmt.Sprintf(`pwc 1
module "deep" {
  %s
  func @loss(%%x: f32[4, 16], %%y: f32[4, 16]) -> (f32[]) {
    %%h0 = neg(%%x)
    %s
    %%d = sub(%%h%d, %%y)
    %%s = mul(%%d, %%d)
    %%loss = mean(%%s, axes=[0, 1])
    return %%loss
  }
}
`, &head, &body, n)), weights, batches
}

// Sums of gradients overlap with the backward of the layers before.
func TestRanksOverlap(t *testing.T) {
	m, _, _ := deep(t, 6)
	p, err := train.Build(m, train.Options{Optimizer: optim.SGD{}, LearningRate: 0.1, Ranks: 2, BucketBytes: 1024})
	if err != nil {
		t.Fatal(err)
	}
	made, err := compile.Compile(t.Context(), p.Module, compile.Shape{}, hostbackend.New(), compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, s := range made.Steps {
		switch {
		case s.Extern == program.CollectivePrefix+"all_reduce" && slices.ContainsFunc(s.Attrs, func(a program.Attr) bool { return a.Name == collective.AttrAsync }):
			order = append(order, "async")
		case s.Extern == program.CollectiveWait:
			order = append(order, "wait")
		case s.Kind == program.StepKernel && !slices.Contains([]string{"", "kernel"}, last(order)):
			order = append(order, "kernel")
		}
	}
	// Of the gradients of six layers those of the later ones are summed while the backward goes on.
	if text := strings.Join(order, " "); !strings.HasPrefix(text, "async kernel async kernel async kernel async") {
		t.Errorf("the steps are %s:\n%s", text, made)
	}
}

// last returns the last of some names.
func last(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[len(names)-1]
}

// Two GPUs have the losses of one host device within 1e-4, captured or not, and the same states as each other to the
// bit, also where sums of gradients overlap with the backward.
func TestRanksOnGPU(t *testing.T) {
	devices := cudatest.Several(t, 2, fake.Options{})
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
		if devices[0].Emulated && mode != piecewise.Full {
			continue
		}
		t.Run(fmt.Sprint("deep/", mode), func(t *testing.T) {
			m, weights, batches := deep(t, 6)
			holdRanksOnGPU(t, m, weights, batches, goldens()[1].options, mode)
		})
		if devices[0].Emulated {
			continue // too slow on an emulated GPU
		}
		for _, g := range goldens()[:3] {
			t.Run(fmt.Sprint(g.name, "/", mode), func(t *testing.T) {
				holdRanksOnGPU(t, parseFile(t, g.name), open(t, g.name, "initial"), open(t, g.name, "data"), g.options, mode)
			})
		}
	}
}

func holdRanksOnGPU(t *testing.T, m *ir.Module, weights, batches safetensors.Source, o train.Options, mode piecewise.Mode) {
	devices := cudatest.Several(t, 2, fake.Options{})
	groups, err := collective.Local(train.Group, len(devices), collective.Options{Limit: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	on := make([]target, len(devices))
	errs := make([]error, len(devices))
	var all sync.WaitGroup
	for rank, dev := range devices {
		backend, err := cuda.New(dev.Info().Target, dev.Compiler(t))
		if err != nil {
			t.Fatal(err)
		}
		on[rank] = target{dev.Device, backend}
		all.Go(func() {
			code := func(ctx context.Context, v collectivecuda.Variant) (*program.Program, error) {
				return collectivecuda.Compile(ctx, dev.Compiler(t), dev.Info().Target, v)
			}
			errs[rank] = collectivecuda.Add(t.Context(), dev.Device, collectivecuda.Options{Code: code}, groups[rank])
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	n := 8
	if devices[0].Emulated {
		n = 2
	}
	o.MicroBatches = 2
	one := load(t, m, weights, o, onHost(t), piecewise.Full)
	want := steps(t, one, data(t, one, batches), n)
	o.MicroBatches, o.Ranks, o.BucketBytes = 1, 2, 1024
	r := loadRanks(t, m, weights, batches, o, mode, groups, on)
	if got := r.run(t, n); near(got, want) > 1e-4 {
		t.Errorf("the losses are %v, on one host device %v", got, want)
	}
	r.same(t)
}

// Micro-batches and ranks with different numbers of labels have the loss and the weights of one batch with all of
// the tokens, where each label counts the same. If no row has a label, the loss is 0 and no weight changes.
func TestPartsWeighLabels(t *testing.T) {
	const dir, length = "../testdata/hf/llama", 6
	m, err := hf.Builtin().ImportDir(dir, hf.Options{DType: dtype.F32})
	if err != nil {
		t.Fatal(err)
	}
	src, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	ids := safetensors.Tensor{DType: dtype.I32, Shape: []int64{8, length}}
	labels := ids
	for row := range 8 {
		for i := range length {
			id := int32(7*row+3*i) % 29
			ids.Data = binary.LittleEndian.AppendUint32(ids.Data, uint32(id))
			if i < []int{1, 5, 6, 3, 6, 6, 6, 6}[row] { // the rows have 5, 1, 0 and 3 labels, the last four rows 0
				id = -100
			}
			labels.Data = binary.LittleEndian.AppendUint32(labels.Data, uint32(id))
		}
	}
	batches := memory{train.InputIDs: ids, train.Labels: labels}
	module := func(rows int64) *ir.Module {
		l, err := train.Labeled(m.Module, rows, length)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	o := train.Options{Optimizer: optim.SGD{}, LearningRate: 0.1, Scaler: &optim.Scaler{Initial: 64, Growth: 2, Backoff: 0.5, Interval: 9}}
	one := load(t, module(4), src, o, onHost(t), piecewise.Full)
	want := steps(t, one, data(t, one, batches), 1)[0]
	trained := states(t, one)
	for _, c := range []struct{ ranks, parts int }{{1, 4}, {4, 1}, {2, 2}} {
		o.Ranks, o.MicroBatches = c.ranks, c.parts
		r := onRanks(t, module(1), src, batches, o, piecewise.Full)
		if got := r.run(t, 1)[0]; !(math.Abs(got-want) <= 1e-5*want) {
			t.Errorf("%d ranks of %d micro-batches: the loss is %v, want %v", c.ranks, c.parts, got, want)
		}
		after := r.same(t)
		for _, w := range one.Program().Weights {
			if e := near(floats(after[w.Name]), floats(trained[w.Name])); e > 1e-5 {
				t.Errorf("%d ranks of %d micro-batches: weight %s differs by %g", c.ranks, c.parts, w.Name, e)
			}
		}
		if got := r.run(t, 1)[0]; got != 0 {
			t.Errorf("%d ranks of %d micro-batches: the loss without labels is %v", c.ranks, c.parts, got)
		}
		last := r.same(t)
		for _, w := range one.Program().Weights {
			if !bytes.Equal(last[w.Name], after[w.Name]) {
				t.Errorf("%d ranks of %d micro-batches: a step without labels changes weight %s", c.ranks, c.parts, w.Name)
			}
		}
	}
}
