package runner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"pwc/compile/host"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// adjustment has the inputs of one row of @runner_adjust.
type adjustment struct {
	logits                          []float32
	counts, bias                    map[int32]float32
	repetition, frequency, presence float32
	allowed                         []int32 // nil: all tokens
}

// adjusted evaluates @runner_adjust. The slots of the rows are in descending order.
func adjusted(t *testing.T, rows []adjustment) [][]float32 {
	t.Helper()
	v, n := int64(len(rows[0].logits)), int64(len(rows))
	m := sampling(t, v)
	env := &interp.Env{Symbols: map[string]int64{slotsSymbol: n, "B": 1}, States: map[string]*interp.Tensor{}}
	for _, name := range []string{countsState, biasState} {
		env.States[name] = must(interp.Zeros(dtype.F32, []int64{n * v}))
	}
	env.States[generatedState] = must(interp.Zeros(dtype.F32, []int64{n, v}))
	words := maskWords(v)
	var logits, repetition, frequency, presence []float32
	slot, mask := must(interp.Zeros(dtype.I64, []int64{n})), make([]int32, n*words)
	for i, a := range rows {
		at := n - 1 - int64(i)
		slot.SetInt(i, at)
		for id, c := range a.counts {
			env.States[countsState].Set(int(at*v)+int(id), float64(c))
		}
		for id, b := range a.bias {
			env.States[biasState].Set(int(at*v)+int(id), float64(b))
		}
		logits, repetition, frequency, presence = append(logits, a.logits...), append(repetition, a.repetition), append(frequency, a.frequency), append(presence, a.presence)
		k := Mask{mask[int64(i)*words:][:words], int(v)}
		if k.all(); a.allowed != nil {
			k.ForbidAllBut(a.allowed)
		}
	}
	vector := func(x []float32) *interp.Tensor { return must(interp.FromF32([]int64{n}, x)) }
	out, err := interp.Run(context.Background(), m, m.Func(adjustFunc), env, []*interp.Tensor{
		must(interp.FromF32([]int64{n, v}, logits)), slot, vector(repetition), vector(frequency), vector(presence),
		must(interp.FromI32([]int64{n, words}, mask))})
	if err != nil {
		t.Fatal(err)
	}
	var got [][]float32
	for i := range n {
		row := make([]float32, v)
		for j := range row {
			row[j] = float32(out[0].At(int(i*v) + j))
		}
		got = append(got, row)
	}
	return got
}

// TestAdjustByHand compares with numbers that were computed by hand from the definitions of
// transformers' RepetitionPenaltyLogitsProcessor and of OpenAI's API:
// mu[j] -> mu[j] - c[j] * frequency - float(c[j] > 0) * presence.
func TestAdjustByHand(t *testing.T) {
	inf := float32(math.Inf(-1))
	logits := []float32{2, -3, 4, 0, 1, -1, 8, 5}
	rows := []adjustment{
		{logits: logits, repetition: 1},
		{logits: logits, repetition: 2, counts: map[int32]float32{0: inPrompt, 1: inPrompt, 2: 3, 3: 1}},
		{logits: logits, repetition: 1, frequency: 0.5, presence: 2, counts: map[int32]float32{0: inPrompt, 2: 3, 5: 1}},
		{logits: logits, repetition: 1, bias: map[int32]float32{0: 3, 7: -100}},
		{logits: logits, repetition: 1, allowed: []int32{1, 6}},
		{logits: logits, repetition: 2, frequency: 1, presence: -1, counts: map[int32]float32{1: 2, 7: inPrompt}, bias: map[int32]float32{1: 5, 7: -6}, allowed: []int32{1, 7, 0}},
	}
	want := [][]float32{
		logits,
		{1, -6, 2, 0, 1, -1, 8, 5},
		{2, -3, 0.5, 0, 1, -3.5, 8, 5},
		{5, -3, 4, 0, 1, -1, 8, -95},
		{inf, -3, inf, inf, inf, inf, 8, inf},
		{2, (-3+5)/2.0 - 2 + 1, inf, inf, inf, inf, inf, (5 - 6) * 2},
	}
	for i, got := range adjusted(t, rows) {
		if !slices.Equal(got, want[i]) {
			t.Errorf("row %d: %v, want %v", i, got, want[i])
		}
	}
}

// Masks work for a vocabulary whose size is not a multiple of 32.
func TestAdjustMask(t *testing.T) {
	const v = 70
	row := adjustment{logits: make([]float32, v), repetition: 1, allowed: []int32{0, 31, 32, 63, 64, 69}}
	for id, x := range adjusted(t, []adjustment{row})[0] {
		if want := slices.Contains(row.allowed, int32(id)); (x == 0) != want {
			t.Errorf("token %d has %g", id, x)
		}
	}
}

// flatRunner serves the model of flat.
func flatRunner(t *testing.T, o Options) *Runner {
	t.Helper()
	dev := hostdev.Open(hostdev.Options{})
	o.Backend.Device, o.Backend.Ops = dev, []device.Op{nothing{}}
	o.Backend.Compile.Compiler = pieces.Pipeline{Backend: host.New()}
	r, err := New(context.Background(), flat(t), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Load(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// slowly generates the greedy answer in Go. logits are the model's, which do not depend on the
// sequence; slowly adjusts them before each token.
func slowly(logits []float32, q Request) []int32 {
	ids := slices.Clone(q.Prompt)
	for n := range q.MaxNew {
		p := &q.Sampling
		x := make([]float64, len(logits))
		for id := range x {
			x[id] = float64(logits[id]) + p.LogitBias[int32(id)]
			count := 0.0
			for _, had := range ids[len(q.Prompt):] {
				if int(had) == id {
					count++
				}
			}
			if r := p.RepetitionPenalty; r != 0 && slices.Contains(ids, int32(id)) {
				if x[id] < 0 {
					x[id] *= r
				} else {
					x[id] /= r
				}
			}
			x[id] -= p.FrequencyPenalty * count
			if count > 0 {
				x[id] -= p.PresencePenalty
			}
			if p.Allowed != nil && !slices.Contains(p.Allowed, int32(id)) || n < q.MinNew && slices.Contains(q.Stop, int32(id)) {
				x[id] = math.Inf(-1)
			}
		}
		best := 0
		for id := range x {
			if x[id] > x[best] {
				best = id
			}
		}
		ids = append(ids, int32(best))
		if slices.Contains(q.Stop, int32(best)) {
			break
		}
	}
	return ids
}

// adjustments are requests that adjust logits by no field of Sampling, by one or by several, and half of
// them also by MinNew.
func adjustments() []Request {
	var list []Request
	for i, p := range []Sampling{
		{},
		{RepetitionPenalty: 1.5},
		{FrequencyPenalty: 0.3},
		{PresencePenalty: 0.6},
		{LogitBias: map[int32]float64{0: 1.9, 3: -1, 5: 0.6}},
		{Allowed: []int32{1, 2, 4}},
		{RepetitionPenalty: 1.2, FrequencyPenalty: 0.1, PresencePenalty: 0.2, LogitBias: map[int32]float64{2: 1}, Allowed: []int32{0, 1, 2, 5, 6}},
		{FrequencyPenalty: -0.4},
	} {
		list = append(list, Request{Prompt: []int32{7, int32(i), 1, 1}, MaxNew: 9 + i, Sampling: p},
			Request{Prompt: []int32{6}, MaxNew: 12, Stop: []int32{7, 6, -2}, MinNew: 4, Sampling: p})
	}
	return list
}

// Requests with adjustments get the tokens of slowly, in mixed batches and after preemptions, and with
// fewer slots than requests.
func TestAdjustedRequests(t *testing.T) {
	logits := make([]float32, 8)
	for i := range logits {
		logits[i] = float32(i) / 4
	}
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise} {
		r := flatRunner(t, Options{MaxSequences: 5, MaxTokens: 6, MaxAdjusted: 3, Blocks: 8, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode}}})
		var seqs []*Sequence
		for _, q := range adjustments() {
			seqs = append(seqs, submit(t, r, q))
		}
		drain(t, r)
		for i, q := range adjustments() {
			if want := slowly(logits, q); !slices.Equal(seqs[i].IDs(), want) {
				t.Errorf("%s: request %d, %+v: %v (%v), want %v", mode, i, q.Sampling, seqs[i].IDs(), seqs[i].Err(), want)
			}
		}
		if s := r.Stats(); s.Preempted == 0 || len(r.slots.free) != 3 || s.Processed != 0 {
			t.Errorf("%s: %d preemptions, %d of 3 slots are free, %d steps waited", mode, s.Preempted, len(r.slots.free), s.Processed)
		}
	}
}

// TestMinP: a token stays if it is at least min-p times as probable as the most probable
// one (transformers' MinPLogitsWarper).
func TestMinP(t *testing.T) {
	const rows = 600
	m := sampling(t, 4)
	// Relative to the most probable token these are 1, 0.5, 0.3 and 0.2.
	p := []float64{0.5, 0.25, 0.15, 0.1}
	for minP, left := range map[float32]int{0: 4, 0.21: 3, 0.31: 2, 0.49: 2, 0.51: 1, 1: 1} {
		seen := map[int64]int{}
		for i := range rows {
			row := make([]float32, 4)
			for j := range row {
				row[j] = float32(math.Log(p[j]))
			}
			one := func(dt dtype.DType, v float64) *interp.Tensor {
				x := must(interp.Zeros(dt, []int64{1}))
				if dt == dtype.F32 {
					x.Set(0, v)
				} else {
					x.SetInt(0, int64(v))
				}
				return x
			}
			id := evaluate(t, m, minPFunc, must(interp.FromF32([]int64{1, 4}, row)), one(dtype.F32, 1), one(dtype.I64, 7), one(dtype.I64, float64(i)),
				one(dtype.F32, 1), one(dtype.F32, float64(minP)), one(dtype.I64, 0))[0].Int64s()[0]
			seen[id]++
		}
		if len(seen) != left {
			t.Errorf("min-p %g: %v are chosen, want %d tokens", minP, seen, left)
		}
	}
}

// even allows ids with the parity of the sequence's length, and records its calls.
type even struct{ calls [][]int32 }

func (e *even) Process(ids []int32, allowed Mask) {
	e.calls = append(e.calls, slices.Clone(ids))
	for id := range int32(allowed.Len()) {
		if int(id)%2 != len(ids)%2 {
			allowed.Forbid(id)
		}
	}
}

// A processor gets all previous tokens before each token, and the steps that wait for it are counted.
// Other requests get the same tokens as without it.
func TestLogitsProcessor(t *testing.T) {
	r := flatRunner(t, Options{MaxSequences: 3, MaxTokens: 8, Blocks: 20, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	e := &even{}
	s := submit(t, r, Request{Prompt: []int32{1, 2}, MaxNew: 5, Processor: e})
	other := submit(t, r, Request{Prompt: []int32{1}, MaxNew: 8})
	drain(t, r)
	if want := []int32{1, 2, 6, 7, 6, 7, 6}; !slices.Equal(s.IDs(), want) {
		t.Errorf("%v (%v), want %v", s.IDs(), s.Err(), want)
	}
	if want := []int32{1, 7, 7, 7, 7, 7, 7, 7, 7}; !slices.Equal(other.IDs(), want) {
		t.Errorf("the other: %v, want %v", other.IDs(), want)
	}
	for i, ids := range e.calls {
		if !slices.Equal(ids, s.IDs()[:2+i]) {
			t.Errorf("call %d got %v of %v", i, ids, s.IDs())
		}
	}
	if n := r.Stats().Processed; n != 5 {
		t.Errorf("%d steps waited, want 5", n)
	}
}

// nothingAllowed is a processor that forbids all tokens. Only its own request fails.
type nothingAllowed struct{}

func (nothingAllowed) Process(_ []int32, allowed Mask) { allowed.ForbidAllBut(nil) }

func TestNothingAllowed(t *testing.T) {
	r := flatRunner(t, Options{MaxSequences: 3, MaxTokens: 8, Blocks: 20, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	s, other := submit(t, r, Request{Prompt: []int32{1, 2}, MaxNew: 5, Processor: nothingAllowed{}}), submit(t, r, Request{Prompt: []int32{1}, MaxNew: 3})
	drain(t, r)
	if s.Reason() != Failed || s.Err() == nil || other.Reason() != Exhausted {
		t.Errorf("%s (%v), the other %s", s.Reason(), s.Err(), other.Reason())
	}
}

func ExampleMask_Intersect() {
	m := Mask{make([]int32, 2), 40}
	m.all()
	m.Intersect([]int32{0b1010})
	m.Forbid(1)
	fmt.Println(m.Allowed(1), m.Allowed(3), m.Allowed(39))
	// Output: false true false
}
