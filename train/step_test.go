package train_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/optim"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/safetensors"
	"pwc/train"
)

// states returns the bytes of all states.
func states(t testing.TB, s *train.Step) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, st := range s.Program().Module.States {
		data, err := s.State(st.Name)
		if err != nil {
			t.Fatal(err)
		}
		out[st.Name] = data
	}
	return out
}

// same holds the states of two steps to each other, to the bit.
func same(t *testing.T, got, want map[string][]byte) {
	t.Helper()
	for name, w := range want {
		if !bytes.Equal(got[name], w) {
			t.Errorf("state @%s differs", name)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d states, want %d", len(got), len(want))
	}
}

// A step of llama, which has no op to split at, has the same bits in modes none, piecewise and full, with
// the options of two goldens.
func TestModes(t *testing.T) {
	m := parseFile(t, "llama")
	initial, batches := open(t, "llama", "initial"), open(t, "llama", "data")
	for _, g := range goldens()[1:3] {
		want := map[string][]byte(nil)
		for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
			s := load(t, m, initial, g.options, onHost(t), mode)
			steps(t, s, data(t, s, batches), 3)
			got := states(t, s)
			if want == nil {
				want = got
			}
			same(t, got, want)
			if st := s.Backend().Stats(); (mode == piecewise.None) != (st.Replays+st.FullReplays == 0) {
				t.Errorf("mode %s: %+v", mode, st)
			}
		}
	}
}

// The warm-up in Load runs the step. After Load the weights, the learning rate and the scale are
// nevertheless the initial ones, and all other states are 0.
func TestLoadChangesNothing(t *testing.T) {
	o := goldens()[0].options
	scaler := optim.DefaultScaler()
	o.Scaler = &scaler
	s := load(t, parseFile(t, "mlp"), open(t, "mlp", "initial"), o, onHost(t), piecewise.Full)
	for _, name := range open(t, "mlp", "initial").Names() {
		got, err := s.State(name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := open(t, "mlp", "initial").Tensor(name)
		if err != nil || !bytes.Equal(got, want.Data) {
			t.Errorf("weight %s is not that of the checkpoint, %v", name, err)
		}
	}
	initial := map[string]float64{"train.lr": o.LearningRate, "train.scale": scaler.Initial}
	found := 0
	for name, data := range states(t, s) {
		if !strings.HasPrefix(name, "train.") {
			continue
		}
		want := make([]byte, len(data))
		if v, ok := initial[name]; ok {
			binary.LittleEndian.PutUint32(want, math.Float32bits(float32(v)))
		}
		if !bytes.Equal(data, want) {
			t.Errorf("state @%s is %v, want %v", name, data, want)
		}
		if slices.Contains([]string{"train.lr", "train.scale", "train.growth", "train.step"}, name) || strings.HasPrefix(name, "train.momentum_buffer") {
			found++
		}
	}
	if found < 5 {
		t.Errorf("%d states of the optimizer and the scaler, want lr, scale, growth, step and momentum", found)
	}
}

// A batch that is cut in micro-batches has the losses and weights of one that is not, except for rounding.
func TestMicroBatches(t *testing.T) {
	text := ir.Print(parseFile(t, "mlp"))
	at := strings.Index(text, "func")
	rows := strings.NewReplacer("f32[8, 16]", "f32[4, 16]", "f32[8, 32]", "f32[4, 32]", "f32[8, 8]", "f32[4, 8]")
	halves := testkit.Parse(t, text[:at]+rows.Replace(text[at:]))
	initial, batches := open(t, "mlp", "initial"), open(t, "mlp", "data")
	scaler := optim.DefaultScaler()
	for _, o := range []train.Options{goldens()[0].options, {Optimizer: optim.DefaultAdamW(), LearningRate: 0.01, ClipNorm: 0.5, Scaler: &scaler}} {
		one := load(t, parseFile(t, "mlp"), initial, o, onHost(t), piecewise.Full)
		want := steps(t, one, data(t, one, batches), 12)
		o.MicroBatches = 2
		two := load(t, halves, initial, o, onHost(t), piecewise.Full)
		got := steps(t, two, data(t, two, batches), 12)
		if e := near(got, want); e > 1e-6 {
			t.Errorf("losses %v, want %v", got, want)
		}
		for _, w := range one.Program().Weights {
			if e := near(floats(states(t, two)[w.Name]), floats(states(t, one)[w.Name])); e > 1e-4 {
				t.Errorf("weight %s differs by %g", w.Name, e)
			}
		}
	}
}

// An optimizer in a separate function leads to the same losses, except for rounding.
func TestSeparate(t *testing.T) {
	for _, g := range goldens() {
		initial, batches := open(t, g.name, "initial"), open(t, g.name, "data")
		one := load(t, parseFile(t, g.name), initial, g.options, onHost(t), piecewise.Full)
		want := steps(t, one, data(t, one, batches), 4)
		o := g.options
		o.Separate = true
		two := load(t, parseFile(t, g.name), initial, o, onHost(t), piecewise.Full)
		if e := near(steps(t, two, data(t, two, batches), 4), want); e > 1e-6 {
			t.Errorf("%s: losses differ by %g", g.name, e)
		}
	}
}

// Weights with the same losses share a count of the steps that use them. The values are those of
// PyTorch's count for each weight: Adam's bias correction of m3 begins with the first step that uses m3.
func TestUnusedWeights(t *testing.T) {
	o := train.Options{Optimizer: optim.DefaultAdam(), LearningRate: 0.01}
	s := load(t, parseFile(t, "branch"), open(t, "branch", "initial"), o, onHost(t), piecewise.Full)
	d := data(t, s, open(t, "branch", "data"))
	var used [2]int
	for range 16 {
		before := states(t, s)
		steps(t, s, d, 1)
		used[s.Chosen()]++
		other := []string{"m3", "m2"}[s.Chosen()]
		for name, data := range states(t, s) {
			if strings.Contains(name, other+".") && !bytes.Equal(data, before[name]) {
				t.Errorf("state @%s changed in a step that does not use it", name)
			}
		}
	}
	if used[0] == 0 || used[1] == 0 {
		t.Fatalf("losses were trained %v times", used)
	}
	counts := map[int32]int{}
	for name, data := range states(t, s) {
		if strings.HasPrefix(name, "train.step") {
			counts[int32(data[0])]++
		}
	}
	if counts[16] != 1 || counts[int32(used[0])] == 0 || counts[int32(used[1])] == 0 {
		t.Errorf("counts of steps %v; losses were trained %v times", counts, used)
	}
}

// Options that name a pool need no device.
func TestPoolWithoutDevice(t *testing.T) {
	on := onHost(t)
	pool, err := piecewise.NewPool(on.dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := train.Build(testkit.Parse(t, gradient), train.Options{Optimizer: optim.SGD{}, LearningRate: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	s, err := train.New(t.Context(), p, 1, piecewise.Options{Pool: pool, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: on.backend}}})
	if err != nil {
		t.Fatal(err)
	}
	two := func(a, b float64) safetensors.Tensor {
		return safetensors.Tensor{DType: dtype.F32, Shape: []int64{2}, Data: f32s(a, b)}
	}
	if err := s.Load(t.Context(), memory{"w": two(1, 2)}); err != nil {
		t.Fatal(err)
	}
	if got := steps(t, s, data(t, s, memory{"x": two(3, 4)}), 1)[0]; got != 11 {
		t.Errorf("the loss is %v, want 11", got)
	}
	if err := errors.Join(s.Close(), pool.Close()); err != nil {
		t.Error(err)
	}
}

// A step allocates nothing in Go.
func TestStepDoesNotAllocate(t *testing.T) {
	s := load(t, parseFile(t, "mlp"), open(t, "mlp", "initial"), goldens()[0].options, onHost(t), piecewise.Full)
	d := data(t, s, open(t, "mlp", "data"))
	run := func() {
		d.Select(s.Steps())
		if err := s.Run(context.Background(), d); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Loss(s.Steps()); err != nil {
			t.Fatal(err)
		}
	}
	run()
	if n := testing.AllocsPerRun(20, run); n > 0 {
		t.Errorf("%v allocations a step", n)
	}
}

// Build refuses modules that cannot be trained, with a position, and invalid options.
func TestBuildRefuses(t *testing.T) {
	const head = "pwc 1\nmodule \"m\" {\n  sym N in [1, 8] batch\n  weight @w : f32[4]\n  weight @h : bf16[4]\n"
	const right = "func @f() -> (f32[]) {\n %s = sum(@w, axes=[0])\n return %s\n }"
	sgd := train.Options{Optimizer: optim.SGD{}}
	for _, c := range []struct{ text, position, want string }{
		{"func @f(%x: f32[4]) -> (f32[4]) {\n %y = mul(%x, @w)\n return %y\n }", "test.ir:6:", "returns (f32[4])"},
		{"func @f(%x: f32[4]) -> (f32[]) {\n %y = sum(%x, axes=[0])\n return %y\n }", "test.ir:6:", "reads no weight"},
		{"func @f(%x: f32[N]) -> (f32[]) {\n %s = sum(@w, axes=[0])\n return %s\n }", "test.ir:6:", "symbol N"},
		{"func @f(%x: bf16[4]) -> (f32[]) {\n %y = mul(%x, @h)\n %z = cast(%y, dtype=f32)\n %s = sum(%z, axes=[0])\n return %s\n }", "test.ir:5:", "must be f32"},
		{strings.Replace(right, "@f", "@loss.a", 1) + "\n" + strings.Replace(right, "@f", "@loss.b", 1), "test.ir:10:", "no function @choose"},
	} {
		_, err := train.Build(testkit.Parse(t, head+c.text+"\n}\n"), sgd)
		if err == nil || !strings.HasPrefix(err.Error(), c.position) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %s and %q", c.text, err, c.position, c.want)
		}
	}
	for want, o := range map[string]train.Options{
		"Optimizer":      {},
		"Beta1":          {Optimizer: optim.Adam{Beta1: 2}},
		"no function @g": {Optimizer: optim.SGD{}, Losses: []string{"g"}},
		"Precision":      {Optimizer: optim.SGD{}, Precision: dtype.I8},
	} {
		if _, err := train.Build(testkit.Parse(t, head+right+"\n}\n"), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want %q", o, err, want)
		}
	}
	if _, err := train.Build(nil, sgd); !errors.Is(err, ir.ErrNoModule) {
		t.Errorf("no module: %v", err)
	}
}

// memory is tensors in memory.
type memory map[string]safetensors.Tensor

func (m memory) Names() (names []string) {
	for name := range m {
		names = append(names, name)
	}
	return names
}

func (m memory) Info(name string) (safetensors.Info, error) {
	t, err := m.Tensor(name)
	return t.Info(), err
}

func (m memory) Tensor(name string) (safetensors.Tensor, error) {
	if t, ok := m[name]; ok {
		t.Name = name
		return t, nil
	}
	return safetensors.Tensor{}, safetensors.ErrNotFound
}

// Batches are cut from tensors of several shapes.
func TestData(t *testing.T) {
	const text = `pwc 1
module "m" {
  weight @w : f32[]
  func @loss(%ids: i32[2, 3], %x: f32[2]) -> (f32[]) {
    %i = cast(%ids, dtype=f32)
    %s = sum(%i, axes=[0, 1])
    %t = sum(%x, axes=[0])
    %u = mul(%s, %t)
    %y = mul(%u, @w)
    return %y
  }
}
`
	p, err := train.Build(testkit.Parse(t, text), train.Options{Optimizer: optim.SGD{}, MicroBatches: 2})
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]byte, 24*4)
	for i := range 24 {
		ids[4*i] = byte(i)
	}
	wide := make([]byte, 24*8)
	for i := range 24 {
		wide[8*i] = byte(i)
	}
	x := safetensors.Tensor{DType: dtype.F32, Shape: []int64{2}, Data: make([]byte, 8)}
	for name, c := range map[string]safetensors.Tensor{
		"steps":        {DType: dtype.I32, Shape: []int64{4, 2, 3}, Data: ids},
		"larger steps": {DType: dtype.I32, Shape: []int64{2, 4, 3}, Data: ids},
		"rows":         {DType: dtype.I32, Shape: []int64{8, 3}, Data: ids},
		"long rows":    {DType: dtype.I32, Shape: []int64{4, 6}, Data: ids},
		"a text":       {DType: dtype.I32, Shape: []int64{24}, Data: ids},
		"i64":          {DType: dtype.I64, Shape: []int64{4, 2, 3}, Data: wide},
	} {
		d, err := train.NewData(p, memory{"ids": c, "x": x})
		if err != nil || d.Batches() != 4 {
			t.Fatalf("%s: %v", name, err)
		}
		for step := range int64(4) {
			d.Select(step)
			for part := range int64(2) {
				got, err := d.Input(int(part), 0)
				if want := byte((step*2 + part) % 4 * 6); err != nil || len(got) != 24 || got[0] != want || got[20] != want+5 {
					t.Errorf("%s: batch %d of step %d is %v, %v", name, part, step, got, err)
				}
				if got, err := d.Input(int(part), 1); err != nil || len(got) != 8 {
					t.Errorf("%s: %v, %v", name, got, err)
				}
			}
		}
	}
	for name, c := range map[string]memory{
		`needs a tensor "ids"`: {"x": x},
		"i32[2 4]":             {"x": x, "ids": {DType: dtype.I32, Shape: []int64{2, 4}, Data: ids[:32]}},
		"i32[1 3]":             {"x": x, "ids": {DType: dtype.I32, Shape: []int64{1, 3}, Data: ids[:12]}},
		"is bf16, want i32":    {"x": x, "ids": {DType: dtype.BF16, Shape: []int64{8, 3}, Data: ids[:48]}},
		"3 of x":               {"x": {DType: dtype.F32, Shape: []int64{6}, Data: ids[:24]}, "ids": {DType: dtype.I32, Shape: []int64{8, 3}, Data: ids}},
	} {
		if _, err := train.NewData(p, c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// skipsInput is the batches of a Data, of which one input cannot be read.
type skipsInput struct {
	*train.Data
	part, input int
}

func (d skipsInput) Input(part, input int) ([]byte, error) {
	if part == d.part && input == d.input {
		return nil, errNoBatch
	}
	return d.Data.Input(part, input)
}

// A step whose batch returns an error has no effect on later steps: the sums of its micro-batches are
// dropped, and inputs that it did not send are not taken as sent.
func TestFailedBatch(t *testing.T) {
	initial, batches := open(t, "mlp", "initial"), open(t, "mlp", "data")
	for parts, m := range map[int]*ir.Module{1: parseFile(t, "mlp"), 2: halfOfMLP(t)} {
		o := goldens()[0].options
		o.MicroBatches = parts
		one := load(t, m, initial, o, onHost(t), piecewise.Full)
		want := steps(t, one, data(t, one, batches), 4)
		s := loadWithSlots(t, m, initial, o, onHost(t), piecewise.Full, 3) // with two slots, the next run sends all inputs
		d := data(t, s, batches)
		got := steps(t, s, d, 2)
		d.Select(2)
		if err := s.Run(t.Context(), skipsInput{d, parts - 1, 1}); !errors.Is(err, errNoBatch) || s.Steps() != 2 {
			t.Errorf("%d micro-batches: %v after %d steps", parts, err, s.Steps())
		}
		if got = append(got, steps(t, s, d, 2)...); !slices.Equal(got, want) {
			t.Errorf("%d micro-batches: losses %v, without a failed step %v", parts, got, want)
		}
		same(t, states(t, s), states(t, one))
	}
}

// If the loss that a step chose cannot run, Chosen and Result still belong to the step before.
func TestFailedChoice(t *testing.T) {
	s := load(t, parseFile(t, "branch"), open(t, "branch", "initial"), goldens()[3].options, onHost(t), piecewise.Full)
	d := data(t, s, open(t, "branch", "data"))
	p := s.Program()
	own := slices.IndexFunc(p.Inputs, func(in train.Input) bool {
		return !slices.ContainsFunc(p.Choose.Params, func(v ir.Value) bool { return p.Choose.Values[v].Name == in.Name })
	})
	if own < 0 {
		t.Fatal("each input is one of @choose, which must run in the failed step")
	}
	changed := false
	for range 16 {
		loss, chosen := steps(t, s, d, 1)[0], s.Chosen()
		d.Select(s.Steps())
		if err := s.Run(t.Context(), skipsInput{d, 0, own}); !errors.Is(err, errNoBatch) {
			t.Fatal(err)
		}
		if got := result(t, s, "loss"); s.Chosen() != chosen || !slices.Equal(got, []float64{loss}) {
			t.Errorf("after a failed step: loss %d is %v, want loss %d, %v", s.Chosen(), got, chosen, loss)
		}
		steps(t, s, d, 1)
		changed = changed || s.Chosen() != chosen
	}
	if !changed {
		t.Error("all steps chose one loss")
	}
}

// changing is a batch whose bytes are rewritten between steps; ReadOnly may deny that.
type changing struct {
	*train.Data
	bytes    map[int][]byte
	readOnly bool
}

func (c *changing) Input(part, input int) ([]byte, error) {
	from, err := c.Data.Input(part, input)
	if err != nil {
		return nil, err
	}
	if c.bytes[input] == nil {
		c.bytes[input] = make([]byte, len(from))
	}
	copy(c.bytes[input], from)
	return c.bytes[input], nil
}

func (c *changing) ReadOnly() bool { return c.readOnly }

// A batch that is only read is not copied again; one that may change is.
func TestReadOnly(t *testing.T) {
	initial, batches := open(t, "mlp", "initial"), open(t, "mlp", "data")
	m := parseFile(t, "mlp")
	one := load(t, m, initial, goldens()[0].options, onHost(t), piecewise.Full)
	want := steps(t, one, data(t, one, batches), 4)
	for _, readOnly := range []bool{false, true} {
		s := load(t, m, initial, goldens()[0].options, onHost(t), piecewise.Full)
		d := &changing{data(t, s, batches), map[int][]byte{}, readOnly}
		var got []float64
		for i := range int64(4) {
			d.Select(i)
			if err := s.Run(context.Background(), d); err != nil {
				t.Fatal(err)
			}
			loss, err := s.Loss(i + 1)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, float64(loss))
		}
		// If ReadOnly reports that bytes do not change, the step uses the first batch again.
		if e := near(got, want); got[0] != want[0] || (e < 1e-6) == readOnly {
			t.Errorf("read only: %v: losses %v, with the batches %v", readOnly, got, want)
		}
	}
}
