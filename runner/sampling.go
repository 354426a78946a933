package runner

import (
	"fmt"
	"math"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Sampling is how the next token is chosen from its logits. The zero value is
// greedy.
type Sampling struct {
	// Temperature divides the logits before their softmax; 0: the most probable
	// token, of equals the one with the lowest id, and nothing is random.
	Temperature float64

	// TopK leaves the so many most probable tokens; 0: all. Tokens whose logits,
	// divided by the temperature, are closer than 2^-15 to the last of them count
	// as equal to it and stay.
	TopK int

	// TopP leaves, of what TopK left, the fewest most probable tokens whose
	// probabilities sum to so much (nucleus sampling, arXiv:1904.09751); 1, and 0, which
	// is a field that is not set: all. As it falls to 0 the most probable token is left
	// alone, for which there is TopK 1. Ties stay as with TopK.
	TopP float64

	// Seed makes the random numbers: a token is a function of the logits, the seed
	// and its position in the sequence, whatever else is in the batch.
	Seed uint64

	// MinP leaves the tokens that are at least MinP times as probable as the most probable
	// one, after the temperature and before TopK and TopP, as in vLLM (arXiv:2407.01082;
	// transformers' MinPLogitsWarper); 0: all.
	MinP float64

	// RepetitionPenalty divides the positive logits of tokens that the sequence has, prompt
	// included, and multiplies the negative ones (arXiv:1909.05858; transformers'
	// RepetitionPenaltyLogitsProcessor); 1, and 0, which is a field that is not set: none.
	RepetitionPenalty float64

	// FrequencyPenalty times the number of times that the answer has a token is subtracted
	// from its logit, and PresencePenalty if it has it at all, as OpenAI's API defines them.
	FrequencyPenalty, PresencePenalty float64

	// LogitBias is added to the logits of tokens, before penalties.
	LogitBias map[int32]float64

	// Allowed are the only tokens that may be chosen; nil: all.
	Allowed []int32
}

// The bounds of penalties and biases.
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
		return fmt.Errorf("no id is allowed: leave Allowed nil to allow all")
	}
	for id, b := range s.LogitBias {
		if !(math.Abs(b) <= maxBias) {
			return fmt.Errorf("the bias %g of id %d is not in [-%g, %g]", b, id, maxBias, maxBias)
		}
		if id < 0 || int64(id) >= vocabulary {
			return fmt.Errorf("id %d has a bias, the vocabulary has %d", id, vocabulary)
		}
	}
	for _, id := range s.Allowed {
		if id < 0 || int64(id) >= vocabulary {
			return fmt.Errorf("id %d is allowed, the vocabulary has %d", id, vocabulary)
		}
	}
	return nil
}

// counted reports whether logits depend on the tokens of the sequence, or have biases: the
// request needs a slot.
func (s *Sampling) counted() bool {
	return s.RepetitionPenalty != 0 && s.RepetitionPenalty != 1 || s.FrequencyPenalty != 0 || s.PresencePenalty != 0 || len(s.LogitBias) > 0
}

// variant is a sampler variant: a function that chooses tokens. Each does all that those before
// it do, and is slower.
type variant uint8

const (
	greedy   variant = iota
	random           // by temperature
	nucleus          // and with top-p
	withTopK         // and with top-k
	withMinP         // and with min-p
	variants
)

// variant returns the fastest sampler variant that serves the request. Top-k 1 leaves one token whatever
// the temperature is.
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

// variantFuncs is the function of each sampler variant. It is never written.
var variantFuncs = [variants]string{greedy: greedyFunc, random: randomFunc, nucleus: nucleusFunc, withTopK: sampleFunc, withMinP: minPFunc}

// The results of a sampler variant.
const (
	sampled = iota // the ids, notANumber included
	next           // as @forward takes them
)

// notANumber is what is sampled from logits without a largest finite one.
const notANumber = -1

const (
	// faintest is the smallest logit, relative to the largest and divided by the
	// temperature, that a token may be sampled with: a million of e^-32 weigh less
	// than half of 2^-24, the step of the random numbers, beside the largest's 1.
	faintest = -32

	// least is its weight: e^faintest, in f32.
	least = 1.266416555e-14

	// belowOne is the largest number below 1: the weight of a token that is hardly less
	// probable than the most probable one.
	belowOne = 1 - 1.0/(1<<24)

	// leastPart is the least top-p but 0 that is looked for, a normal number of f32. The
	// most probable token alone weighs more.
	leastPart = 0x1p-126

	// halvings of [faintest, 0], the logarithms of weights, that search a threshold: to
	// 2^-15. They come in pairs.
	halvings = 20
)

// sampler emits the functions that are added to those of a language model.
type sampler struct {
	b          *ir.Builder
	rows       dim.Dim // M
	vocabulary int64
}

// WithSampling returns the module that [New] has compiled: @forward and @logits of
// the model, with eleven more functions, which read logits and ids where they lie:
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
// The first five choose tokens, -1 where the logits of a row are not numbers: a step
// runs the first that knows what its requests ask for. Their second result has 0 in its
// place, and is the ids of the next step if that has the same requests, a row each.
// @runner_ids makes the ids of any other step: row i's is %ids[i], or, where %from[i] ≥ 0, what
// was sampled there in an earlier step, so that the host need not know it yet. The next three keep
// the counts and biases of tokens in two states, and adjust logits by them. The last two give the
// log probability of a token, and the most probable ones. No
// parameter but those that are to be read where they lie has the type of a result of an
// earlier function, to which piecewise would link it: integers of the host are i64.
//
// Compiled ahead, a runner finds it in the cache.
func WithSampling(m *ir.Module) (*ir.Module, error) {
	lm, err := inspect(m)
	if err != nil {
		return nil, err
	}
	return addSampling(m, lm)
}

// addSampling is WithSampling for a model that was inspected.
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
	for _, st := range m.States { // functions name states by their numbers
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

// emitter emits ops of two operands and integers.
type emitter struct{ f *ir.FuncBuilder }

func (e emitter) op(name string, a, b ir.Value) ir.Value { return e.f.Op1(name, []ir.Value{a, b}) }

func (e emitter) int(v int64) ir.Value { return e.f.Int(v) }

// uniform emits the number of [0, 1) that belongs to a seed and a position: the
// first of the sequence at offset 4·position, so that the counter of its block is
// the position.
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

// row1 returns the reduction of each row, as a column.
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

// choose ends a function: ids, or notANumber where the largest logit is none; and what
// @forward can read in any case.
func (f *sampleBuilder) choose(s *sampler, ids, top ir.Value) {
	number := f.f.Op1("reshape", []ir.Value{f.is(f.op("sub", top, top), "eq", f.float(0))}, ir.DimsAttr("shape", s.rows))
	f.f.Return(f.where(number, ids, f.int(notANumber)), f.where(number, ids, f.int(0)))
}

// first returns the first position of a row's largest element.
func (f *sampleBuilder) first(x ir.Value) ir.Value {
	return f.f.Op1("argmax", []ir.Value{x}, ir.IntAttr("axis", 1))
}

// greedy emits the most probable token. It looks for the largest logit and then
// for its place: one kernel, whose second pass finds the row in registers or caches.
func (s *sampler) greedy() {
	f := s.start(greedyFunc)
	top := f.row1("max", f.logits)
	f.choose(s, f.first(f.number(f.is(f.logits, "ge", top))), top)
}

// number returns 1 where a condition holds, else 0.
func (f *sampleBuilder) number(cond ir.Value) ir.Value {
	return f.f.Op1("cast", []ir.Value{cond}, ir.DTypeAttr(dtype.F32))
}

// column returns a parameter of one number a row.
func (f *sampleBuilder) column(s *sampler, name string, dt dtype.DType) ir.Value {
	p := f.f.Param(name, ir.TypeOf(dt, s.rows))
	return f.f.Op1("reshape", []ir.Value{p}, ir.DimsAttr("shape", s.rows, dim.Const(1)))
}

// random emits the choice by inverse transform: with the weights of the tokens
// that may be chosen summed up in the order of their ids, the token at which the
// sum passes a random part of the whole. There is one random number for a row,
// whose cost is negligible compared with the passes over the logits.
func (s *sampler) random(c variant) {
	f := s.start(variantFuncs[c])
	temperature := f.column(s, "temperature", dtype.F32)
	seed := f.column(s, "seed", dtype.I64)
	position := f.column(s, "position", dtype.I64)

	// First, so that what reads the row comes after it and may be one kernel.
	u := f.uniform(seed, position)
	drawn := f.is(temperature, "gt", f.float(0))
	top := f.row1("max", f.logits)
	scale := f.f.Op1("reciprocal", []ir.Value{f.where(drawn, temperature, f.float(1))})
	scale = f.op("minimum", scale, f.float(math.MaxFloat32)) // finite: it meets a difference of 0
	x := f.op("mul", f.op("sub", f.logits, top), scale)      // ≤ 0
	// The weight of a token is at most 1, which only the most probable one has. What follows reads
	// weights and not logits. All of these functions have the floor, so that a row without limits
	// gets the same token in a batch with limited rows.
	below := f.op("minimum", f.op("maximum", f.f.Op1("exp", []ir.Value{x}), f.float(least)), f.float(belowOne))
	weight := f.where(f.is(x, "ge", f.float(0)), f.float(1), f.where(f.is(x, "ge", f.float(faintest)), below, f.float(0)))
	kept := weight
	if c > random {
		kept = f.where(f.is(weight, "ge", f.threshold(s, weight, c)), weight, f.float(0))
	}
	target := f.op("mul", u, f.row1("sum", kept))
	sums := f.f.Op1("cumsum", []ir.Value{kept}, ir.IntAttr("axis", 1))
	// A device may associate the sums so that they do not quite rise, hence the
	// second condition; and where nothing passes, or nothing is random, it is the
	// most probable token.
	passed := f.op("and", f.is(sums, "gt", target), f.is(kept, "gt", f.float(0)))
	passed = f.op("and", passed, drawn)
	f.choose(s, f.first(f.where(passed, f.float(2), f.number(f.is(weight, "ge", f.float(1))))), top)
}

// threshold adds the parameters of top-p and, if the variant has them, top-k and min-p, and
// returns what the weights of each row's tokens must reach.
func (f *sampleBuilder) threshold(s *sampler, weight ir.Value, c variant) ir.Value {
	p := f.column(s, "top_p", dtype.F32)
	constant := func(v float64, columns int64) ir.Value {
		return f.f.Op1("full", []ir.Value{f.float(v)}, ir.DimsAttr("shape", s.rows, dim.Const(columns)), ir.DTypeAttr(dtype.F32))
	}
	t := constant(least, 1)
	if c >= withMinP { // the weight of the most probable token is 1
		t = f.op("maximum", t, f.column(s, "min_p", dtype.F32))
	}
	if c >= withTopK { // that of top-k is the largest that so many tokens reach
		k := f.column(s, "top_k", dtype.I64)
		wanted := f.f.Op1("cast", []ir.Value{k}, ir.DTypeAttr(dtype.F32))
		t = f.where(f.is(k, "le", f.int(0)), t, f.search(weight, constant(1, s.vocabulary), t, wanted))
	}
	// That of top-p is the largest from there on above which tokens weigh so much of the
	// rest: what top-k left is little, and most of the row has nothing to add to its sums.
	reached := f.search(weight, weight, t, f.op("mul", p, f.sumAbove(weight, weight, t)))
	some := f.op("and", f.is(p, "gt", f.float(0)), f.is(p, "lt", f.float(1)))
	return f.where(some, reached, t)
}

// sumAbove returns the sum of what belongs to the elements of a row whose weights are
// not below the threshold.
func (f *sampleBuilder) sumAbove(weight, of, threshold ir.Value) ir.Value {
	return f.row1("sum", f.where(f.is(weight, "ge", threshold), of, f.float(0)))
}

// search returns the largest threshold from low, which is at least least, to 1, but for a
// factor of 1 + 2^-15, above which what belongs to the weights of a row sums to wanted;
// low where none does. It needs only sums of rows, where a sort of every row would be the
// slowest kernel of a step. Two halvings at a time take three sums in one pass over the
// row: a pass of a few rows over a vocabulary is mostly waiting for the parts of its
// sum. It is the logarithms that are halved, over which weights lie evenly, so that
// thresholds are low by known factors.
func (f *sampleBuilder) search(weight, of, low, wanted ir.Value) ir.Value {
	size := float64(-faintest) // of the interval, whose end is not needed
	for range halvings / 2 {
		above := func(quarters float64) ir.Value { return f.op("mul", low, f.float(math.Exp(quarters/4*size))) }
		lower, middle, upper := above(1), above(2), above(3)
		enough := func(t ir.Value) ir.Value { return f.is(f.sumAbove(weight, of, t), "ge", wanted) }
		atLower, atMiddle, atUpper := enough(lower), enough(middle), enough(upper)
		low = f.where(atMiddle, f.where(atUpper, upper, middle), f.where(atLower, lower, low))
		size /= 4
	}
	return low
}

// ids emits @runner_ids. Positions are kept in range without a fault: what an
// earlier step could not choose is id 0, and its request has ended by the time
// that anybody reads this step.
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
