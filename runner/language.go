package runner

import (
	"fmt"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/padding"
)

// language describes the parts of a language model that the runner uses.
type language struct {
	tokens, rows string   // batch symbols: N of @forward, M of @logits
	params       []string // of @forward: ids, positions; of @logits: hidden states, rows
	vocabulary   int64
	blocks       string // load symbol: blocks of the cache
	blockSize    int64
	bounds       Bounds
	maxTokens    int64 // rows of a step: the end of the range of N
	maxRows      int64 // rows of @logits: the end of the range of M
	maxBlocks    int64 // the end of the range of blocks
}

// inspect finds the parts of a language model: @forward(ids i32[N], positions
// i32[N]) → hidden states, @logits(hidden states, rows i32[M]) → f32[M, V], and
// its states, which are KV caches C[B, 2, S, KVH, D] of "attention::paged".
func inspect(m *ir.Module) (*language, error) {
	if m == nil {
		return nil, fmt.Errorf("runner: %w", ir.ErrNoModule)
	}
	fwd, lg := m.Func(forwardFunc), m.Func(logitsFunc)
	if fwd == nil || lg == nil {
		return nil, fmt.Errorf("runner: module %q is not a language model: it needs @forward(ids, positions) and @logits(hidden states, rows)", m.Name)
	}
	lm := &language{}
	var ok, ok2 bool
	lm.tokens, ok = padding.SizeSymbol(m, fwd)
	lm.rows, ok2 = padding.SizeSymbol(m, lg)
	vector := func(f *ir.Func, i int, symbol string) bool {
		if i >= len(f.Params) {
			return false
		}
		lm.params = append(lm.params, f.Values[f.Params[i]].Name)
		return f.Type(f.Params[i]).Equal(ir.TypeOf(dtype.I32, dim.Sym(symbol)))
	}
	if !ok || len(fwd.Params) != 2 || len(fwd.ResultTypes) != 1 || !vector(fwd, 0, lm.tokens) || !vector(fwd, 1, lm.tokens) {
		return nil, fmt.Errorf("runner: @forward must take ids i32[N] and positions i32[N] and return hidden states")
	}
	if !ok2 || lm.rows == lm.tokens || len(lg.Params) != 2 || !lg.Type(lg.Params[0]).Equal(fwd.ResultTypes[0]) {
		return nil, fmt.Errorf("runner: @logits must take the hidden states %s that @forward returns, and rows i32[M]; M must be a batch symbol other than that of @forward", fwd.ResultTypes[0])
	}
	lm.params = append(lm.params, lg.Values[lg.Params[0]].Name)
	if !vector(lg, 1, lm.rows) || len(lg.ResultTypes) != 1 || lg.ResultTypes[0].DType != dtype.F32 || lg.ResultTypes[0].Rank() != 2 {
		return nil, fmt.Errorf("runner: @logits must take rows i32[M] and return f32[M, vocabulary]")
	}
	if lm.vocabulary, ok = lg.ResultTypes[0].Shape[1].Const(); !ok || lm.vocabulary < 1 {
		return nil, fmt.Errorf("runner: @logits returns %s: the vocabulary size must be a constant of at least 1", lg.ResultTypes[0])
	}
	lm.bounds = BoundsOf(m)
	lm.maxTokens, lm.maxRows = m.Symbol(lm.tokens).Hi, m.Symbol(lm.rows).Hi
	return lm, lm.inspectCaches(m)
}

// length returns the default of Options.MaxLength if the cache has room for it.
func (lm *language) length() int {
	if n := lm.bounds.Positions; n > 0 {
		return int(min(defaultLength, n))
	}
	return defaultLength
}

func (lm *language) inspectCaches(m *ir.Module) error {
	for _, s := range m.States {
		if s.Type.Rank() != 5 {
			return fmt.Errorf("runner: state @%s is %s; the runner knows only paged caches [blocks, 2, block size, heads, size]", s.Name, s.Type)
		}
		symbol := m.Symbol(s.Type.Shape[0].String())
		size, ok := s.Type.Shape[2].Const()
		if symbol == nil || symbol.Kind != ir.Load || !ok || size < 1 {
			return fmt.Errorf("runner: state @%s is %s; dimension 0 must be a load symbol, dimension 2 the constant number of tokens of a block", s.Name, s.Type)
		}
		if lm.blocks != "" && (lm.blocks != symbol.Name || lm.blockSize != size) {
			return fmt.Errorf("runner: state @%s is %s; other caches have %s blocks of %d tokens, and all caches share one block table", s.Name, s.Type, lm.blocks, lm.blockSize)
		}
		lm.blocks, lm.blockSize, lm.maxBlocks = symbol.Name, size, symbol.Hi
	}
	if lm.blocks == "" {
		return fmt.Errorf("runner: module %q has no KV cache: it needs a state [blocks, 2, block size, heads, size]", m.Name)
	}
	for _, s := range m.Symbols {
		if s.Kind == ir.Load && s.Name != lm.blocks && !m.IsRank(s.Name) {
			return fmt.Errorf("runner: load symbol %s is not the number of cache blocks %s, and the runner has no value for it", s.Name, lm.blocks)
		}
	}
	return nil
}
