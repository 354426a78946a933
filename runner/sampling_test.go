package runner

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pwc/compile/host"
	"pwc/internal/philox"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// evaluate runs a function without weights in the interpreter.
func evaluate(t testing.TB, m *ir.Module, name string, in ...*interp.Tensor) []*interp.Tensor {
	t.Helper()
	out, err := interp.Run(context.Background(), m, m.Func(name), &interp.Env{}, in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// toyModel returns a module with the functions of a language model. The tests run only the functions
// that addSampling adds.
func toyModel(vocabulary int64) *ir.Module {
	b := ir.NewBuilder("toy")
	n, m, blocks := b.Symbol("N", 1, 64, ir.Batch), b.Symbol("M", 1, 64, ir.Batch), b.Symbol("B", 1, 64, ir.Load)
	b.State("kv", ir.TypeOf(dtype.F32, blocks, dim.Const(2), dim.Const(4), dim.Const(1), dim.Const(2)))
	f := b.Func("forward")
	ids := f.Param("ids", ir.TypeOf(dtype.I32, n))
	f.Param("pos", ir.TypeOf(dtype.I32, n))
	x := f.Op1("reshape", []ir.Value{f.Op1("cast", []ir.Value{ids}, ir.DTypeAttr(dtype.F32))}, ir.DimsAttr("shape", n, dim.Const(1)))
	f.Return(x)
	l := b.Func("logits")
	h := l.Param("h", ir.TypeOf(dtype.F32, n, dim.Const(1)))
	rows := l.Param("rows", ir.TypeOf(dtype.I32, m))
	l.Return(l.Op1("broadcast_to", []ir.Value{l.Op1("gather", []ir.Value{h, rows})}, ir.DimsAttr("shape", m, dim.Const(vocabulary))))
	return must(b.Build())
}

func sampling(t testing.TB, vocabulary int64) *ir.Module {
	m := toyModel(vocabulary)
	lm, err := inspect(m)
	if err != nil {
		t.Fatal(err)
	}
	out, err := addSampling(m, lm)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// choices are the inputs of @runner_sample. sampling and position have an element for each row.
type choices struct {
	logits   []float32
	sampling []Sampling
	position []int32
}

func (c *choices) inputs() []*interp.Tensor {
	n := int64(len(c.sampling))
	t, p := make([]float32, n), make([]float32, n)
	ints := func() *interp.Tensor { return must(interp.Zeros(dtype.I64, []int64{n})) }
	seed, position, k := ints(), ints(), ints()
	for i, s := range c.sampling {
		t[i], p[i] = float32(s.Temperature), float32(s.TopP)
		seed.SetInt(i, int64(s.Seed))
		position.SetInt(i, int64(c.position[i]))
		k.SetInt(i, int64(s.TopK))
	}
	vector := func(v []float32) *interp.Tensor { return must(interp.FromF32([]int64{n}, v)) }
	return []*interp.Tensor{must(interp.FromF32([]int64{n, int64(len(c.logits)) / n}, c.logits)), vector(t), seed, position, vector(p), k}
}

// reference chooses a token by sorting, in float64. near reports that rounding in f32 may change the
// choice.
func reference(logits []float32, s Sampling, position int32) (id int, near bool) {
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case logits[a] > logits[b]:
			return -1
		case logits[a] < logits[b]:
			return 1
		}
		return 0
	})
	if s.Temperature == 0 {
		return order[0], false
	}
	w := make([]float64, len(logits))
	for i, x := range logits {
		w[i] = math.Exp((float64(x) - float64(logits[order[0]])) / float64(float32(s.Temperature)))
	}
	keep := len(order)
	if s.TopK > 0 && s.TopK < keep {
		keep = s.TopK
		near = logits[order[keep-1]]-logits[order[keep]] < float32(1e-4*s.Temperature)
	}
	total := 0.0
	for _, i := range order[:keep] {
		total += w[i]
	}
	if s.TopP > 0 && s.TopP < 1 {
		sum, k := 0.0, 0
		for ; k < keep && sum < float64(float32(s.TopP))*total; k++ {
			sum += w[order[k]]
		}
		// A sum close to the limit may be on the other side of it in f32.
		near = near || math.Abs(sum-float64(float32(s.TopP))*total) < 1e-5*total ||
			k < len(order) && k > 0 && logits[order[k-1]]-logits[order[k]] < float32(1e-4*s.Temperature)
		keep, total = k, sum
	}
	kept := make([]bool, len(w))
	for _, i := range order[:keep] {
		kept[i] = true
	}
	u := float64(philox.Words([4]uint32{uint32(position)}, [2]uint32{uint32(s.Seed), uint32(s.Seed >> 32)})[0]>>8) / (1 << 24)
	sum := 0.0
	for i, x := range w {
		if kept[i] {
			sum += x
			if sum > u*total {
				return i, near || math.Abs(sum-u*total) < 1e-5*total || math.Abs(sum-x-u*total) < 1e-5*total
			}
		}
	}
	return order[0], true
}

// The functions of three sampler variants choose the same tokens as a sort in float64, unless rounding
// in f32 may change the choice.
func TestSample(t *testing.T) {
	const vocabulary = 37
	m := sampling(t, vocabulary)
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.IntRange(1, 5).Draw(t, "rows")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "logits"), 1))
		c := choices{}
		for range rows {
			perm := r.Perm(vocabulary) // distinct logits, because the sampler keeps ties
			for _, i := range perm {
				c.logits = append(c.logits, float32(i)*0.3+float32(r.Float64()*0.1))
			}
			c.sampling = append(c.sampling, Sampling{
				Temperature: rapid.SampledFrom([]float64{0, 1e-40, 0.3, 1, 2.5, 10}).Draw(t, "temperature"),
				TopK:        rapid.IntRange(0, vocabulary+1).Draw(t, "k"), TopP: rapid.SampledFrom([]float64{0, 0.1, 0.5, 0.9, 0.99, 1}).Draw(t, "p"),
				Seed: rapid.Uint64().Draw(t, "seed")})
			c.position = append(c.position, rapid.Int32Range(0, 1<<20).Draw(t, "position"))
		}
		got := must(interp.Run(context.Background(), m, m.Func(sampleFunc), &interp.Env{}, c.inputs()))[0].Int64s()
		for i := range rows {
			want, near := reference(c.logits[i*vocabulary:][:vocabulary], c.sampling[i], c.position[i])
			if !near && got[i] != int64(want) {
				t.Fatalf("row %d, %+v at %d: %d, want %d", i, c.sampling[i], c.position[i], got[i], want)
			}
			c.sampling[i].TopK = 0
		}
		got = must(interp.Run(context.Background(), m, m.Func(nucleusFunc), &interp.Env{}, c.inputs()[:5]))[0].Int64s()
		for i := range rows {
			want, near := reference(c.logits[i*vocabulary:][:vocabulary], c.sampling[i], c.position[i])
			if !near && got[i] != int64(want) {
				t.Fatalf("row %d, %+v at %d, without top-k: %d, want %d", i, c.sampling[i], c.position[i], got[i], want)
			}
			c.sampling[i].TopP = 0
		}
		got = must(interp.Run(context.Background(), m, m.Func(randomFunc), &interp.Env{}, c.inputs()[:4]))[0].Int64s()
		for i := range rows {
			want, near := reference(c.logits[i*vocabulary:][:vocabulary], c.sampling[i], c.position[i])
			if !near && got[i] != int64(want) {
				t.Fatalf("row %d, %+v at %d, without limits: %d, want %d", i, c.sampling[i], c.position[i], got[i], want)
			}
		}
	})
}

// The smallest values of top-p keep the most probable token, and not all tokens as 0 does.
func TestLeastTopP(t *testing.T) {
	r := llama(t, Options{MaxSequences: 2, MaxTokens: 8, Blocks: 40, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	prompt := []int32{5, 7, 9}
	want := alone(t, r, []Request{{Prompt: prompt, MaxNew: 12}})[0]
	for _, p := range []float64{1e-30, 1e-40, 1e-60, math.SmallestNonzeroFloat64} {
		for _, k := range []int{0, 50} {
			q := Request{Prompt: prompt, MaxNew: 12, Sampling: Sampling{Temperature: 1, TopP: p, TopK: k, Seed: 3}}
			if got := alone(t, r, []Request{q})[0]; !slices.Equal(got, want) {
				t.Errorf("top-p %g, top-k %d: %v, the most probable are %v", p, k, got, want)
			}
		}
	}
}

// flat is a language model whose logits do not depend on its ids: i/4 for token i.
func flat(t testing.TB) *ir.Module {
	return echo(t, "8", `
    %z = sub(%x, %x) : f32[M, 1]
    %i = iota(shape=[1, 8], dtype=f32, axis=1) : f32[1, 8]
    %q = mul(%i, 0.25) : f32[1, 8]
    %l = add(%q, %z) : f32[M, 8]`)
}

// A token depends on both halves of the seed and on the token's index in the sequence, counted from 0,
// and not on preemptions or on other requests.
func TestSeedsAndPositions(t *testing.T) {
	dev := hostdev.Open(hostdev.Options{})
	r, err := New(context.Background(), flat(t), Options{MaxSequences: 3, MaxTokens: 4, Blocks: 8,
		Backend: piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Ops: []device.Op{nothing{}}, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Load(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	var logits []float32
	for i := range 8 {
		logits = append(logits, float32(i)/4)
	}
	var seqs []*Sequence
	for i := range uint64(6) {
		how := Sampling{Temperature: 1, Seed: i<<60 + i<<31 + 3}
		if i%2 == 1 {
			how.TopK = 5
		}
		seqs = append(seqs, submit(t, r, Request{Prompt: make([]int32, 1+2*i), MaxNew: 14, Sampling: how}))
	}
	drain(t, r)
	if r.Stats().Preempted == 0 {
		t.Error("no request was preempted")
	}
	for i, s := range seqs {
		for at := len(s.Prompt()); at < len(s.IDs()); at++ {
			if want, near := reference(logits, s.sampling, int32(at)); !near && s.IDs()[at] != int32(want) {
				t.Errorf("request %d, token %d: %d, want %d", i, at, s.IDs()[at], want)
			}
		}
	}
	if err := errors.Join(r.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}

// Requests with top-k 1 or temperature 0 are greedy, also if the step's sampler variant has no top-k.
func TestGreedyWithRandom(t *testing.T) {
	r := llama(t, Options{MaxSequences: 4, MaxTokens: 16, Blocks: 60, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	prompt := []int32{5, 7, 9}
	want := alone(t, r, []Request{{Prompt: prompt, MaxNew: 12}})[0]
	for _, other := range []Sampling{{Temperature: 2, Seed: 1}, {Temperature: 2, TopP: 0.9, Seed: 1}, {Temperature: 2, TopK: 40, Seed: 1}} {
		submit(t, r, Request{Prompt: prompt, MaxNew: 12, Sampling: other})
		a := submit(t, r, Request{Prompt: prompt, MaxNew: 12, Sampling: Sampling{Temperature: 2, TopK: 1, Seed: 2}})
		b := submit(t, r, Request{Prompt: prompt, MaxNew: 12})
		drain(t, r)
		if !slices.Equal(a.IDs(), want) || !slices.Equal(b.IDs(), want) {
			t.Errorf("together with %+v: %v with top-k 1, %v with temperature 0, want %v", other, a.IDs(), b.IDs(), want)
		}
	}
}

// The drawn tokens have the distribution of the softmax.
func TestSampleDistribution(t *testing.T) {
	const rows = 4000
	m := sampling(t, 4)
	c := choices{}
	for i := range rows {
		c.logits = append(c.logits, 0, float32(math.Log(2)), float32(math.Log(3)), float32(math.Log(4)))
		c.sampling = append(c.sampling, Sampling{Temperature: 1, Seed: 99})
		c.position = append(c.position, int32(i))
	}
	mm := *m
	mm.Symbols = slices.Clone(m.Symbols)
	for i, s := range mm.Symbols {
		wide := *s
		wide.Hi = rows
		mm.Symbols[i] = &wide
	}
	count := [4]float64{}
	for _, id := range evaluate(t, &mm, sampleFunc, c.inputs()...)[0].Int64s() {
		count[id]++
	}
	chi := 0.0
	for i, n := range count {
		want := rows * float64(i+1) / 10
		chi += (n - want) * (n - want) / want
	}
	if chi > 16.3 { // p = 0.001 for 3 degrees of freedom; the random numbers are fixed
		t.Errorf("counts %v: chi² is %.1f", count, chi)
	}
}

// A row whose largest logit is not finite gets notANumber. Other rows are not affected.
func TestNotANumber(t *testing.T) {
	m := sampling(t, 3)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	rows := [][]float32{{0, 1, 1}, {0, nan, 5}, {inf, 0, 0}, {-inf, -inf, -inf}, {-inf, 2, -inf}}
	c := choices{}
	for _, r := range rows {
		c.logits = append(c.logits, r...)
		c.sampling = append(c.sampling, Sampling{})
		c.position = append(c.position, 1)
	}
	want := map[int][]int64{sampled: {1, -1, -1, -1, 1}, next: {1, 0, 0, 0, 1}}
	for name, inputs := range map[string][]*interp.Tensor{sampleFunc: c.inputs(), greedyFunc: c.inputs()[:1]} {
		got := evaluate(t, m, name, inputs...)
		for i, ids := range want {
			if !slices.Equal(got[i].Int64s(), ids) {
				t.Errorf("@%s: result %d is %v, want %v", name, i, got[i].Int64s(), ids)
			}
		}
	}
}

// @runner_ids takes ids from the host or from an earlier step.
func TestIDs(t *testing.T) {
	m := sampling(t, 3)
	ints := func(v ...int32) *interp.Tensor { return must(interp.FromI32([]int64{int64(len(v))}, v)) }
	got := evaluate(t, m, idsFunc, ints(7, notANumber, 9), ints(-1, 2, 0, 1), ints(5, 0, 0, 0))[0].Int64s()
	if want := []int64{5, 9, 7, 0}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The host device chooses the same tokens as a sort, and the same tokens in each sampler variant
// without min-p that serves a batch.
func TestSampleOnDevice(t *testing.T) {
	dev := hostdev.Open(hostdev.Options{})
	defer dev.Close()
	sampleOnDevice(t, dev, pieces.Pipeline{Backend: host.New()}, piecewise.CanaryOff, 24, 600, 20)
}

// sampleOnDevice samples rows of random logits and compares them with reference, in several rounds.
func sampleOnDevice(t *testing.T, dev device.Device, target pieces.Compiler, guard piecewise.Canary, rows, vocabulary, rounds int) {
	t.Helper()
	m := sampling(t, int64(vocabulary))
	b, err := piecewise.New(context.Background(), m, piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: target}, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise,
		Sizes: []int64{int64(rows + (rows+2)/3)}}, Debug: piecewise.DebugOptions{Canary: guard}, Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"B": 1, slotsSymbol: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := errors.Join(b.Load(context.Background(), nil, nil), b.Capture(context.Background())); err != nil {
		t.Fatal(err)
	}
	run := func(name string, c *choices) []int32 {
		in, err := b.Func(name).Inputs(int64(rows))
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range m.Func(name).Params {
			dst, err := in.Bytes(m.Func(name).Values[p].Name)
			if err != nil {
				t.Fatal(err)
			}
			copy(dst, c.inputs()[i].Bytes())
		}
		res, err := b.Func(name).Run(context.Background(), in, nil)
		if err != nil {
			t.Fatal(err)
		}
		out, follow := make([]byte, 4*rows), make([]byte, 4*rows)
		if err := errors.Join(res.At(sampled).CopyTo(out), res.At(next).CopyTo(follow)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(out, follow) {
			t.Errorf("@%s: %v is sampled, and the next ids are %v", name, out, follow)
		}
		ids := make([]int32, rows)
		for i := range ids {
			ids[i] = int32(binary.LittleEndian.Uint32(out[4*i:]))
		}
		return ids
	}
	rng := rand.New(rand.NewPCG(5, 5))
	for round := range rounds {
		c := choices{}
		spread := 4.0 + float64(round)
		for range rows {
			for range vocabulary {
				c.logits = append(c.logits, float32(rng.NormFloat64()*spread))
			}
			c.sampling = append(c.sampling, Sampling{Temperature: float64(rng.IntN(4)), TopK: rng.IntN(60), TopP: rng.Float64(), Seed: rng.Uint64()})
			c.position = append(c.position, rng.Int32())
		}
		for i, got := range run(sampleFunc, &c) {
			want, near := reference(c.logits[i*vocabulary:][:vocabulary], c.sampling[i], c.position[i])
			if !near && got != int32(want) {
				t.Errorf("round %d, row %d, %+v: %d, want %d", round, i, c.sampling[i], got, want)
			}
		}
		// The batch determines the sampler variant, which must not change the token.
		for i := range c.sampling {
			c.sampling[i].TopK = 0
		}
		if fast, slow := run(nucleusFunc, &c), run(sampleFunc, &c); !slices.Equal(fast, slow) {
			t.Errorf("round %d: @%s chooses %v, @%s %v", round, nucleusFunc, fast, sampleFunc, slow)
		}
		for i := range c.sampling {
			c.sampling[i].TopP = 0
		}
		slow := run(sampleFunc, &c)
		if fast := run(randomFunc, &c); !slices.Equal(fast, slow) {
			t.Errorf("round %d: @%s chooses %v, @%s %v", round, randomFunc, fast, sampleFunc, slow)
		}
		for i := range c.sampling {
			c.sampling[i].Temperature = 0
		}
		if fast, slow := run(greedyFunc, &c), run(sampleFunc, &c); !slices.Equal(fast, slow) {
			t.Errorf("round %d: @%s chooses %v, @%s with temperature 0 %v", round, greedyFunc, fast, sampleFunc, slow)
		}
	}
}
