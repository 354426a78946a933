package runner

import (
	"math"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// The functions that adjust logits before a token is chosen, and their states.
//
// A request with penalties or biases has a slot in three states. A slot has a number for each token
// of the vocabulary. The host writes the slot in two of the states before the first step that samples
// with it, and again after a step that failed: the bias of each token, and its count in the sequence.
// The third state counts how often the token was generated since. @runner_count increments it on the
// device, so that a step need not wait until the host knows the tokens.
const (
	adjustFunc = "runner_adjust"
	countFunc  = "runner_count"
	markFunc   = "runner_mark"

	biasState      = "runner_bias"
	countsState    = "runner_counts"
	generatedState = "runner_generated"

	slotsSymbol = "runner_slots"
)

// adjustStates are the names of the states. The array is never written.
var adjustStates = [...]string{biasState, countsState, generatedState}

// inPrompt is the count of a token that occurs only in the prompt. The integer part of a count is the
// number of times that the token was generated.
const inPrompt = 0.5

// maskBits is the number of tokens in a word of a mask.
const maskBits = 32

// maskWords returns the number of words of a mask.
func maskWords(vocabulary int64) int64 { return (vocabulary + maskBits - 1) / maskBits }

// adjusting adds the states and functions.
func (s *sampler) adjusting(tokens dim.Dim, maxSlots int64) {
	slots := s.b.Symbol(slotsSymbol, 1, maxSlots, ir.Load)
	// Scatters write single elements of the first two states, and rows of the last one.
	s.b.State(biasState, ir.TypeOf(dtype.F32, slots.Mul(dim.Const(s.vocabulary))))
	s.b.State(countsState, ir.TypeOf(dtype.F32, slots.Mul(dim.Const(s.vocabulary))))
	s.b.State(generatedState, ir.TypeOf(dtype.F32, slots, dim.Const(s.vocabulary)))
	s.mark(tokens)
	s.count()
	s.adjust(slots)
}

// mark emits @runner_mark, which writes elements of the two states that the host fills.
func (s *sampler) mark(tokens dim.Dim) {
	f := s.b.Func(markFunc)
	f.SetLoc("sampling")
	at := f.Param("at", ir.TypeOf(dtype.I64, tokens))
	f.Padded(at)
	count := f.Param("count", ir.TypeOf(dtype.F32, tokens))
	bias := f.Param("bias", ir.TypeOf(dtype.F32, tokens))
	f.Op("scatter", []ir.Value{f.State(countsState), at, count})
	f.Op("scatter", []ir.Value{f.State(biasState), at, bias})
	f.Return()
}

// count emits @runner_count, which counts the sampled token of each row with a slot. No two rows have
// the same slot. The scatter writes whole rows, so its indices are %slot, which is -1 in padded rows,
// and not the sampled tokens, which have any value there.
func (s *sampler) count() {
	f := &sampleBuilder{emitter: emitter{s.b.Func(countFunc)}}
	f.f.SetLoc("sampling")
	sampled := f.column(s, "sampled", dtype.I32)
	slot := f.f.Param("slot", ir.TypeOf(dtype.I64, s.rows))
	f.f.Padded(slot)
	generated := f.f.State(generatedState)
	old := f.f.Op1("gather", []ir.Value{generated, f.op("maximum", slot, f.int(0))})
	ids := f.f.Op1("iota", nil, ir.DimsAttr("shape", dim.Const(1), dim.Const(s.vocabulary)), ir.DTypeAttr(dtype.I32), ir.IntAttr("axis", 1))
	f.f.Op("scatter", []ir.Value{generated, slot, f.op("add", old, f.number(f.is(ids, "eq", sampled)))})
	f.f.Return()
}

// adjust emits @runner_adjust, which adjusts logits in place, in vLLM's order
// (vllm/v1/sample/sampler.py): bias, repetition penalty as in transformers'
// RepetitionPenaltyLogitsProcessor, frequency and presence penalty as in OpenAI's API. Logits of
// tokens that the mask does not allow become -∞.
func (s *sampler) adjust(slots dim.Dim) {
	f := &sampleBuilder{emitter: emitter{s.b.Func(adjustFunc)}}
	f.f.SetLoc("sampling")
	full := ir.TypeOf(dtype.F32, s.rows, dim.Const(s.vocabulary))
	f.logits = f.f.MutParam("logits", full)
	slot := f.f.Param("slot", ir.TypeOf(dtype.I64, s.rows))
	f.f.Padded(slot)
	repetition := f.column(s, "repetition", dtype.F32)
	frequency := f.column(s, "frequency", dtype.F32)
	presence := f.column(s, "presence", dtype.F32)
	words := maskWords(s.vocabulary)
	mask := f.f.Param("allowed", ir.TypeOf(dtype.I32, s.rows, dim.Const(words)))

	has := f.f.Op1("reshape", []ir.Value{f.is(slot, "ge", f.int(0))}, ir.DimsAttr("shape", s.rows, dim.Const(1)))
	row := f.op("maximum", slot, f.int(0))
	ofSlot := func(table ir.Value) ir.Value {
		return f.where(has, f.f.Op1("gather", []ir.Value{table, row}), f.float(0))
	}
	rows := func(state string) ir.Value {
		return f.f.Op1("reshape", []ir.Value{f.f.State(state)}, ir.DimsAttr("shape", slots, dim.Const(s.vocabulary)))
	}
	count := f.op("add", ofSlot(rows(countsState)), ofSlot(f.f.State(generatedState)))
	x := f.op("add", f.logits, ofSlot(rows(biasState)))
	repeated := f.where(f.is(x, "lt", f.float(0)), f.op("mul", x, repetition), f.op("div", x, repetition))
	x = f.where(f.is(count, "gt", f.float(0)), repeated, x)
	x = f.op("sub", x, f.op("mul", frequency, f.f.Op1("floor", []ir.Value{count})))
	x = f.op("sub", x, f.op("mul", presence, f.number(f.is(count, "ge", f.float(1)))))

	f.f.Op("copy", []ir.Value{f.logits, f.where(f.allowed(s, mask, words), x, f.float(math.Inf(-1)))})
	f.f.Return(f.f.Latest(f.logits))
}

// allowed unpacks a mask to one boolean for each token. Bit j of word i belongs to token 32·i + j.
func (f *sampleBuilder) allowed(s *sampler, mask ir.Value, words int64) ir.Value {
	bits := make([]float64, maskBits)
	for j := range bits {
		bits[j] = float64(int32(uint32(1) << j))
	}
	dims := func(d ...int64) ir.Attr {
		shape := []dim.Dim{s.rows}
		for _, n := range d {
			shape = append(shape, dim.Const(n))
		}
		return ir.DimsAttr("shape", shape...)
	}
	each := f.f.Op1("reshape", []ir.Value{mask}, dims(words, 1))
	set := f.is(f.op("and", each, f.f.Op1("const", nil, ir.FloatsAttr("values", bits...), ir.DTypeAttr(dtype.I32))), "ne", f.int(0))
	set = f.f.Op1("reshape", []ir.Value{set}, dims(words*maskBits))
	return f.f.Op1("slice", []ir.Value{set}, ir.IntAttr("axis", 1), ir.IntAttr("start", 0), ir.IntAttr("end", s.vocabulary))
}
