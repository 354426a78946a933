package runner

import (
	"math"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// The functions that adjust logits before a token is chosen, and their states.
//
// A request whose logits are adjusted has a slot in three states, which have a number for
// each token of the vocabulary: the token's bias, its count when the request got the slot,
// which the host writes, and how often it was generated since, which @runner_count raises on
// the device as tokens are sampled, so that a step does not wait until the host knows them.
const (
	adjustFunc = "runner_adjust"
	countFunc  = "runner_count"
	markFunc   = "runner_mark"

	biasState      = "runner_bias"
	countsState    = "runner_counts"
	generatedState = "runner_generated"

	slotsSymbol = "runner_slots"
)

// adjustStates are the states. It is never written.
var adjustStates = [...]string{biasState, countsState, generatedState}

// inPrompt is the count of a token that only the prompt has. The whole part of a count is
// how often the token was generated.
const inPrompt = 0.5

// maskBits is the tokens of a word of a mask.
const maskBits = 32

// maskWords returns the words of a mask of a vocabulary.
func maskWords(vocabulary int64) int64 { return (vocabulary + maskBits - 1) / maskBits }

// adjusting adds the states and functions.
func (s *sampler) adjusting(tokens dim.Dim, maxSlots int64) {
	slots := s.b.Symbol(slotsSymbol, 1, maxSlots, ir.Load)
	// Elements are written to the first two, and rows to the last.
	s.b.State(biasState, ir.TypeOf(dtype.F32, slots.Mul(dim.Const(s.vocabulary))))
	s.b.State(countsState, ir.TypeOf(dtype.F32, slots.Mul(dim.Const(s.vocabulary))))
	s.b.State(generatedState, ir.TypeOf(dtype.F32, slots, dim.Const(s.vocabulary)))
	s.mark(tokens)
	s.count()
	s.adjust(slots)
}

// mark emits @runner_mark, which writes elements of the states that are the host's.
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

// count emits @runner_count, which counts what was sampled for the rows with a slot, no two
// of which have the same. It writes whole rows: where scatter takes its positions from a
// padded parameter, and not from what was sampled, padded rows are safe.
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

// adjust emits @runner_adjust, which adjusts logits where they lie, in vLLM's order
// (vllm/v1/sample/sampler.py): bias, repetition penalty as transformers'
// RepetitionPenaltyLogitsProcessor, frequency and presence penalty as in OpenAI's API; and
// what the mask does not allow becomes -∞.
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

// allowed returns which tokens a mask allows: bit j of word i is that of token 32·i + j.
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
