package runner

import (
	"fmt"
	"math"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Sampling says how the next token is chosen from the logits. The zero value is greedy.
type Sampling struct {
	// Temperature divides the logits before the softmax. 0: the most probable token is chosen, and
	// among equals the one with the lowest id; nothing is random.
	Temperature float64

	// TopK keeps the TopK most probable tokens; 0: all; 1: as Temperature 0. Above 1, a token also
	// stays if its logit, divided by the temperature, is less than 2^-15 below that of the TopK-th
	// token.
	TopK int

	// TopP keeps, of the tokens that TopK kept, the smallest set of most probable tokens whose
	// probabilities sum to at least TopP (nucleus sampling, arXiv:1904.09751). 1 and 0, the value of
	// an unset field: all. Small values above 0 keep only the most probable token. Near ties stay as
	// for TopK.
	TopP float64

	// Seed is the seed of the random numbers. A token depends only on the logits, the fields of
	// Sampling and its index in the sequence, not on the rest of the batch.
	Seed uint64

	// MinP keeps the tokens that are at least MinP times as probable as the most probable one, after
	// the temperature and before TopK and TopP, as in vLLM (arXiv:2407.01082; transformers'
	// MinPLogitsWarper); 0: all.
	MinP float64

	// RepetitionPenalty divides the positive logits, and multiplies the negative ones, of tokens
	// that occur in prompt or answer (arXiv:1909.05858; transformers'
	// RepetitionPenaltyLogitsProcessor). 1 and 0, the value of an unset field: no penalty.
	RepetitionPenalty float64

	// For a token that occurs n times in the answer, n × FrequencyPenalty is subtracted from its
	// logit, and PresencePenalty if n > 0, as in OpenAI's API.
	FrequencyPenalty, PresencePenalty float64

	// LogitBias is added to the logits of tokens, before penalties.
	LogitBias map[int32]float64

	// Allowed are the only tokens that may be chosen; nil: all.
	Allowed []int32
}

// Bounds of penalties and biases.
const (
	maxPenalty = 100.0
	maxBias    = 1e6
)

func (s *Sampling) check(vocabulary int64) error {
	switch {
	case !(s.Temperature >= 0 && s.Temperature <= 1e6):
		return fmt.Errorf("temperature %g is not in [0, 1e6]", s.Temperature)
	case s.TopK < 0:
		return fmt.Errorf("top-k %d is below 0", s.TopK)
	case !(s.TopP >= 0 && s.TopP <= 1):
		return fmt.Errorf("top-p %g is not in [0, 1]", s.TopP)
	case !(s.MinP >= 0 && s.MinP <= 1):
		return fmt.Errorf("min-p %g is not in [0, 1]", s.MinP)
	case s.RepetitionPenalty != 0 && !(s.RepetitionPenalty >= 1/maxPenalty && s.RepetitionPenalty <= maxPenalty):
		return fmt.Errorf("repetition penalty %g is not in [%g, %g]", s.RepetitionPenalty, 1/maxPenalty, maxPenalty)
	case !(math.Abs(s.FrequencyPenalty) <= maxPenalty):
		return fmt.Errorf("frequency penalty %g is not in [-%g, %g]", s.FrequencyPenalty, maxPenalty, maxPenalty)
	case !(math.Abs(s.PresencePenalty) <= maxPenalty):
		return fmt.Errorf("presence penalty %g is not in [-%g, %g]", s.PresencePenalty, maxPenalty, maxPenalty)
	case s.Allowed != nil && len(s.Allowed) == 0:
		return fmt.Errorf("Allowed is empty, so no token can be chosen: nil allows all")
	}
	for id, b := range s.LogitBias {
		if !(math.Abs(b) <= maxBias) {
			return fmt.Errorf("the bias %g of id %d is not in [-%g, %g]", b, id, maxBias, maxBias)
		}
		if id < 0 || int64(id) >= vocabulary {
			return fmt.Errorf("LogitBias has id %d: it must be in [0, %d)", id, vocabulary)
		}
	}
	for _, id := range s.Allowed {
		if id < 0 || int64(id) >= vocabulary {
			return fmt.Errorf("Allowed has id %d: it must be in [0, %d)", id, vocabulary)
		}
	}
	return nil
}

// counted reports whether the request has penalties or biases, and so needs a slot.
func (s *Sampling) counted() bool {
	return s.RepetitionPenalty != 0 && s.RepetitionPenalty != 1 || s.FrequencyPenalty != 0 || s.PresencePenalty != 0 || len(s.LogitBias) > 0
}

// variant is a sampler variant: a function that chooses tokens. Each variant can do everything that
// the previous ones can, and is slower.
type variant uint8

const (
	greedy   variant = iota
	random           // temperature
	nucleus          // also top-p
	withTopK         // also top-k
	withMinP         // also min-p
	variants
)

// variant returns the fastest sampler variant that serves the request. Top-k 1 is greedy at any
// temperature.
func (s *Sampling) variant() variant {
	switch {
	case s.Temperature == 0 || s.TopK == 1:
		return greedy
	case s.MinP > 0:
		return withMinP
	case s.TopK > 0:
		return withTopK
	case s.TopP == 0 || s.TopP == 1:
		return random
	}
	return nucleus
}

// The functions that are added to a model, and their parameters.
const (
	forwardFunc = "forward"
	logitsFunc  = "logits"
	greedyFunc  = "runner_greedy"
	randomFunc  = "runner_random"
	nucleusFunc = "runner_nucleus"
	sampleFunc  = "runner_sample"
	minPFunc    = "runner_min_p"
	idsFunc     = "runner_ids"
)

// variantFuncs has the function of each sampler variant. It is never written.
var variantFuncs = [variants]string{greedy: greedyFunc, random: randomFunc, nucleus: nucleusFunc, withTopK: sampleFunc, withMinP: minPFunc}

// The results of a sampler variant.
const (
	sampled = iota // the ids, or notANumber
	next           // the ids, or 0: valid input of @forward
)

// notANumber is the sampled id of a row whose largest logit is not finite.
const notANumber = -1

const (
	// faintest is a lower bound of (logit - largest logit) / temperature: a token below it has weight
	// 0. A million weights of e^-32 sum to less than half of 2^-24, the resolution of the random
	// numbers, while the largest weight is 1.
	faintest = -32

	// least is the smallest weight of a token at or above faintest: e^faintest, in f32.
	least = 1.266416555e-14

	// belowOne is the largest f32 below 1, and the largest weight of a token other than the most
	// probable ones.
	belowOne = 1 - 1.0/(1<<24)

	// leastPart replaces smaller top-p above 0. It is the smallest normal number of f32. The most
	// probable token alone has a larger fraction of the weights.
	leastPart = 0x1p-126

	// halvings is the number of bisection steps of a search in [faintest, 0], the logarithms of the
	// weights. They reach 32·2^-20 = 2^-15. The search does two steps in one pass.
	halvings = 20
)

// sampler emits the functions that are added to those of a language model.
type sampler struct {
	b          *ir.Builder
	rows       dim.Dim // M
	vocabulary int64
}

// WithSampling returns the module that [New] compiles: @forward and @logits of the model, and eleven
// functions that read logits and ids in place:
//
//	@runner_greedy(%logits: f32[M, V]) -> (i32[M], i32[M])
//	@runner_random(%logits: f32[M, V], %temperature: f32[M], %seed: i64[M], %position: i64[M]) -> (i32[M], i32[M])
//	@runner_nucleus(%logits: f32[M, V], %temperature: f32[M], %seed: i64[M], %position: i64[M], %top_p: f32[M]) -> (i32[M], i32[M])
//	@runner_sample(%logits: f32[M, V], %temperature: f32[M], %seed: i64[M], %position: i64[M], %top_p: f32[M], %top_k: i64[M]) -> (i32[M], i32[M])
//	@runner_min_p(%logits: f32[M, V], %temperature: f32[M], %seed: i64[M], %position: i64[M], %top_p: f32[M], %min_p: f32[M], %top_k: i64[M]) -> (i32[M], i32[M])
//	@runner_ids(%sampled: i32[M], %from: i32[N], %ids: i32[N]) -> (i32[N])
//
//	@runner_mark(%at: i64[N], %count: f32[N], %bias: f32[N])
//	@runner_count(%sampled: i32[M], %slot: i64[M])
//	@runner_adjust(%logits: mut f32[M, V], %slot: i64[M], %repetition: f32[M], %frequency: f32[M], %presence: f32[M], %allowed: i32[M, (V+31)/32]) -> (f32[M, V])
//
//	@runner_logprobs(%logits: f32[M, V], %sampled: i32[M]) -> (f32[M], f32[M, 20], i32[M, 20])
//	@runner_prompt_logprobs(%logits: f32[M, V], %token: i64[M]) -> (f32[M], f32[M, 20], i32[M, 20])
//
// The first five choose tokens. A step runs the first one that can do all that its requests need. The
// first result has -1 for a row whose largest logit is not finite. The second result has 0 there, and
// is the %ids of @forward in the next step if that step has the same requests with one row each. If
// the host does not know all ids of another step yet, @runner_ids makes them: row i is
// %sampled[%from[i]] of the last step that sampled if %from[i] ≥ 0, otherwise %ids[i].
//
// The next three keep counts and biases of tokens in three states, and adjust logits by them and by
// masks. The last two return the log probability of a token and of the 20 most probable ones, or of all V if V < 20.
//
// piecewise links a parameter to a result of the same type of an earlier function. Only parameters
// that are read in place may have such a type, so %position, %seed, %top_k, %slot and %token are i64.
//
// If the returned module was compiled before, New finds its programs in the cache.
func WithSampling(m *ir.Module) (*ir.Module, error) {
	lm, err := inspect(m)
	if err != nil {
		return nil, err
	}
	return addSampling(m, lm)
}

// addSampling is WithSampling for an inspected model.
func addSampling(m *ir.Module, lm *language) (*ir.Module, error) {
	b := ir.NewBuilder(m.Name)
	var tokens dim.Dim
	s := &sampler{b: b, vocabulary: lm.vocabulary}
	for _, name := range []string{lm.tokens, lm.rows} {
		sym := m.Symbol(name)
		d := b.Symbol(sym.Name, sym.Lo, sym.Hi, sym.Kind)
		if name == lm.tokens {
			tokens = d
		} else {
			s.rows = d
		}
	}
	blocks := m.Symbol(lm.blocks)
	b.Symbol(blocks.Name, blocks.Lo, blocks.Hi, blocks.Kind)
	for _, st := range m.States { // functions refer to states by index
		b.AddState(&ir.State{Name: st.Name, Type: st.Type})
	}
	s.greedy()
	for _, c := range []variant{random, nucleus, withTopK, withMinP} {
		s.random(c)
	}
	s.ids(tokens)
	s.adjusting(tokens, lm.maxRows)
	s.logprobs()
	added, err := b.Build()
	if err != nil {
		return nil, err
	}
	out := *m
	out.Symbols = append(slices.Clip(m.Symbols), added.Symbol(slotsSymbol))
	out.States = append(slices.Clip(m.States), added.States[len(m.States):]...)
	out.Funcs = append([]*ir.Func{m.Func(forwardFunc), m.Func(logitsFunc)}, added.Funcs...)
	return &out, out.Verify()
}

// emitter emits ops with two operands, and integer constants.
type emitter struct{ f *ir.FuncBuilder }

func (e emitter) op(name string, a, b ir.Value) ir.Value { return e.f.Op1(name, []ir.Value{a, b}) }

func (e emitter) int(v int64) ir.Value { return e.f.Int(v) }

// uniform emits a random number in [0, 1) for a seed and a position. It is the first number at offset
// 4·position, so the Philox counter is the position.
func (e emitter) uniform(seed, position ir.Value) ir.Value {
	return e.f.Op1("philox", []ir.Value{seed, e.op("mul", position, e.int(ir.DrawStep)), e.int(0)})
}

// sampleBuilder is a function under construction.
type sampleBuilder struct {
	emitter
	logits ir.Value
}

func (s *sampler) start(name string) *sampleBuilder {
	f := &sampleBuilder{emitter: emitter{s.b.Func(name)}}
	f.f.SetLoc("sampling")
	f.logits = f.f.Param("logits", ir.TypeOf(dtype.F32, s.rows, dim.Const(s.vocabulary)))
	return f
}

// row1 returns the reductions of the rows, as a column.
func (f *sampleBuilder) row1(op string, x ir.Value) ir.Value {
	return f.f.Op1(op, []ir.Value{x}, ir.IntsAttr("axes", 1), ir.BoolAttr("keepdims", true))
}

func (f *sampleBuilder) is(a ir.Value, dir string, b ir.Value) ir.Value {
	return f.f.Op1("compare", []ir.Value{a, b}, ir.EnumAttr("dir", dir))
}

func (f *sampleBuilder) where(cond, a, b ir.Value) ir.Value {
	return f.f.Op1("where", []ir.Value{cond, a, b})
}

func (f *sampleBuilder) float(v float64) ir.Value { return f.f.Float(v) }

// choose ends a function. Its results are the ids with notANumber, and the ids with 0, in rows whose
// largest logit is not finite.
func (f *sampleBuilder) choose(s *sampler, ids, top ir.Value) {
	number := f.f.Op1("reshape", []ir.Value{f.is(f.op("sub", top, top), "eq", f.float(0))}, ir.DimsAttr("shape", s.rows))
	f.f.Return(f.where(number, ids, f.int(notANumber)), f.where(number, ids, f.int(0)))
}

// first returns the index of the first largest element of each row.
func (f *sampleBuilder) first(x ir.Value) ir.Value {
	return f.f.Op1("argmax", []ir.Value{x}, ir.IntAttr("axis", 1))
}

// greedy emits the choice of the most probable token: the largest logit, then its index. This is one
// kernel, whose second pass reads the row from registers or caches.
func (s *sampler) greedy() {
	f := s.start(greedyFunc)
	top := f.row1("max", f.logits)
	f.choose(s, f.first(f.number(f.is(f.logits, "ge", top))), top)
}

// number returns 1 where a condition holds, else 0.
func (f *sampleBuilder) number(cond ir.Value) ir.Value {
	return f.f.Op1("cast", []ir.Value{cond}, ir.DTypeAttr(dtype.F32))
}

// column returns a parameter with one number for each row, as a column.
func (f *sampleBuilder) column(s *sampler, name string, dt dtype.DType) ir.Value {
	p := f.f.Param(name, ir.TypeOf(dt, s.rows))
	return f.f.Op1("reshape", []ir.Value{p}, ir.DimsAttr("shape", s.rows, dim.Const(1)))
}

// random emits inverse transform sampling. It adds up the weights of the kept tokens in the order of
// their ids, and chooses the token at which the sum exceeds u times the total, for a random u in
// [0, 1). One random number for each row costs little, compared with the passes over the logits.
func (s *sampler) random(c variant) {
	f := s.start(variantFuncs[c])
	temperature := f.column(s, "temperature", dtype.F32)
	seed := f.column(s, "seed", dtype.I64)
	position := f.column(s, "position", dtype.I64)

	// u comes first, so that the ops that read the row are adjacent and can be one kernel.
	u := f.uniform(seed, position)
	drawn := f.is(temperature, "gt", f.float(0))
	top := f.row1("max", f.logits)
	scale := f.f.Op1("reciprocal", []ir.Value{f.where(drawn, temperature, f.float(1))})
	scale = f.op("minimum", scale, f.float(math.MaxFloat32)) // finite, because inf · 0 is NaN
	x := f.op("mul", f.op("sub", f.logits, top), scale)      // ≤ 0
	// Only the most probable tokens have weight 1, so the following ops need no logits. All variants
	// set weights below faintest to 0, so the token of a row does not depend on the variant, which
	// other rows of the batch determine.
	below := f.op("minimum", f.op("maximum", f.f.Op1("exp", []ir.Value{x}), f.float(least)), f.float(belowOne))
	weight := f.where(f.is(x, "ge", f.float(0)), f.float(1), f.where(f.is(x, "ge", f.float(faintest)), below, f.float(0)))
	kept := weight
	if c > random {
		kept = f.where(f.is(weight, "ge", f.threshold(s, weight, c)), weight, f.float(0))
	}
	target := f.op("mul", u, f.row1("sum", kept))
	sums := f.f.Op1("cumsum", []ir.Value{kept}, ir.IntAttr("axis", 1))
	// A device may associate the sums so that they are not quite monotonic, so the chosen token must
	// also be a kept one. If no sum exceeds the target, or the temperature is 0, the most probable
	// token is chosen.
	passed := f.op("and", f.is(sums, "gt", target), f.is(kept, "gt", f.float(0)))
	passed = f.op("and", passed, drawn)
	f.choose(s, f.first(f.where(passed, f.float(2), f.number(f.is(weight, "ge", f.float(1))))), top)
}

// threshold adds the parameters of top-p and, if the variant has them, top-k and min-p. It returns the
// weight that a token needs to be kept, for each row.
func (f *sampleBuilder) threshold(s *sampler, weight ir.Value, c variant) ir.Value {
	p := f.column(s, "top_p", dtype.F32)
	constant := func(v float64, columns int64) ir.Value {
		return f.f.Op1("full", []ir.Value{f.float(v)}, ir.DimsAttr("shape", s.rows, dim.Const(columns)), ir.DTypeAttr(dtype.F32))
	}
	t := constant(least, 1)
	if c >= withMinP { // the weight of the most probable token is 1
		t = f.op("maximum", t, f.column(s, "min_p", dtype.F32))
	}
	if c >= withTopK { // the largest threshold that at least k tokens reach
		k := f.column(s, "top_k", dtype.I64)
		wanted := f.f.Op1("cast", []ir.Value{k}, ir.DTypeAttr(dtype.F32))
		t = f.where(f.is(k, "le", f.int(0)), t, f.search(weight, constant(1, s.vocabulary), t, wanted))
	}
	// Top-p: the largest threshold, at least t, above which the weights sum to p of the sum above t.
	reached := f.search(weight, weight, t, f.op("mul", p, f.sumAbove(weight, weight, t)))
	some := f.op("and", f.is(p, "gt", f.float(0)), f.is(p, "lt", f.float(1)))
	return f.where(some, reached, t)
}

// sumAbove returns the sum of values[i] over the elements i of each row with weight[i] ≥ threshold.
func (f *sampleBuilder) sumAbove(weight, values, threshold ir.Value) ir.Value {
	return f.row1("sum", f.where(f.is(weight, "ge", threshold), values, f.float(0)))
}

// search returns, for each row, the largest threshold in [low, 1] at which sumAbove is at least wanted,
// or low if there is none. The threshold is too small by a factor of at most 1 + 2^-15. low is at
// least the constant least.
//
// search needs only sums of rows; a sort of every row would be the slowest kernel of a step. One pass
// computes three sums, for two steps of the bisection, because the latency of a reduction dominates a
// pass over a few rows. It bisects logarithms of weights, so the relative error is known.
func (f *sampleBuilder) search(weight, values, low, wanted ir.Value) ir.Value {
	size := float64(-faintest) // of the interval, whose end is not needed
	for range halvings / 2 {
		above := func(quarters float64) ir.Value { return f.op("mul", low, f.float(math.Exp(quarters/4*size))) }
		lower, middle, upper := above(1), above(2), above(3)
		enough := func(t ir.Value) ir.Value { return f.is(f.sumAbove(weight, values, t), "ge", wanted) }
		atLower, atMiddle, atUpper := enough(lower), enough(middle), enough(upper)
		low = f.where(atMiddle, f.where(atUpper, upper, middle), f.where(atLower, lower, low))
		size /= 4
	}
	return low
}

// ids emits @runner_ids. It clamps indices and ids, so that they raise no fault: notANumber becomes id
// 0, and its request ends before the host reads this step.
func (s *sampler) ids(tokens dim.Dim) {
	f := emitter{s.b.Func(idsFunc)}
	f.f.SetLoc("sampling")
	sampled := f.f.Param("sampled", ir.TypeOf(dtype.I32, s.rows))
	from := f.f.Param("from", ir.TypeOf(dtype.I32, tokens))
	ids := f.f.Param("ids", ir.TypeOf(dtype.I32, tokens))
	taken := f.f.Op1("gather", []ir.Value{sampled, f.op("maximum", from, f.int(0))})
	known := f.f.Op1("compare", []ir.Value{from, f.int(0)}, ir.EnumAttr("dir", "lt"))
	f.f.Return(f.f.Op1("where", []ir.Value{known, ids, f.op("maximum", taken, f.int(0))}))
}
