package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"strings"

	"pwc/attention"
	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/ir/padding"
	"pwc/runner"
	"pwc/safetensors"
)

// workload is the work of pwc run: one call of a function, or a sequence through a language
// model.
type workload interface {
	// module returns the module with the functions to run.
	module() *ir.Module

	// limits returns the largest values of batch and plain symbols that the run needs.
	limits() map[string]int64

	// symbols returns the values of load symbols that the run needs.
	symbols() map[string]int64

	// rows returns the rows of the input.
	rows() int64

	// fingerprint returns a hash of the inputs.
	fingerprint() string

	// run runs everything once, and returns the results. The states of c must have
	// their initial contents. A function of c may have more results than the
	// module's; these come last.
	run(ctx context.Context, c caller) ([]output, error)
}

// newWorkload returns a sequence for a language model without --func, else a single call.
func newWorkload(m *ir.Module, file *safetensors.File, rf *runFlags, bf *buildFlags) (workload, error) {
	if rf.fn == "" && isLanguageModel(m) {
		return newSequence(m, file, rf, bf)
	}
	if rf.fn == "" && len(m.Funcs) != 1 {
		var names []string
		for _, f := range m.Funcs {
			names = append(names, f.Name)
		}
		return nil, usagef("the module has the functions %s and is not a language model: choose one with --func", strings.Join(names, ", "))
	}
	funcs, err := chooseFuncs(m, rf.fn)
	if err != nil {
		return nil, err
	}
	only := *m
	only.Funcs = funcs[:1]
	return newSingle(&only, file, rf, bf)
}

// cacheBlock returns the tokens of a block of the module's paged KV caches, 16 without a cache.
// States of rank 5, the rank of attention's operand, are taken for caches.
func cacheBlock(m *ir.Module) int64 {
	for _, s := range m.States {
		if s.Type.Rank() == 5 {
			if n, ok := s.Type.Shape[2].Const(); ok && n > 0 {
				return n
			}
		}
	}
	return 16
}

// steps is the common part of workloads: one sequence in a paged cache with consecutive blocks.
type steps struct {
	m     *ir.Module
	total int64 // tokens of the sequence
	sizes int64 // the largest size in flags
	block int64
	batch *attention.Batch
}

func newSteps(m *ir.Module, total int64, bf *buildFlags) steps {
	block := cacheBlock(m)
	return steps{m: m, total: total, sizes: bf.largest(), block: block, batch: attention.NewBatch(1, int(total), int((total+block-1)/block))}
}

// checkBlocks returns a usage error if --symbol gives a KV cache of these functions fewer blocks than the sequence needs.
func (s *steps) checkBlocks(funcs []*ir.Func, given map[string]int64) error {
	need := (s.total + s.block - 1) / s.block
	for _, f := range funcs {
		for _, name := range blockSymbols(f) {
			if blocks, ok := given[name]; ok && blocks < need {
				return usagef("--symbol %s=%d: the KV cache needs %d blocks of %d tokens for %d tokens: give at least %[1]s=%[3]d, or omit it", name, blocks, need, s.block, s.total)
			}
		}
	}
	return nil
}

// blockSymbols returns the numbers of blocks of the KV caches that a function gives attention.
func blockSymbols(f *ir.Func) []string {
	var out []string
	for _, n := range f.Nodes {
		if n.Name() != attention.Name {
			continue
		}
		for _, v := range n.Args {
			if info := f.Values[v]; info.Kind == ir.StateValue && info.Type.Rank() == 5 {
				out = append(out, info.Type.Shape[0].String())
			}
		}
	}
	return out
}

func (s *steps) module() *ir.Module { return s.m }

func (s *steps) rows() int64 { return s.total }

// limits bounds every batch symbol by the rows of the run, but at least by 64, so that small runs can
// be padded to vLLM's default sizes, and at least by the largest size in flags.
func (s *steps) limits() map[string]int64 {
	out := map[string]int64{}
	for _, x := range s.m.Symbols {
		if x.Kind == ir.Batch {
			out[x.Name] = min(x.Hi, max(x.Lo, s.total, s.sizes, 64))
		}
	}
	return out
}

// symbols sets every load symbol, except ranks, to the number of blocks of the sequence, within its range.
func (s *steps) symbols() map[string]int64 {
	out := map[string]int64{}
	for _, x := range s.m.Symbols {
		if x.Kind == ir.Load && !s.m.IsRank(x.Name) {
			out[x.Name] = min(x.Hi, max(x.Lo, (s.total+s.block-1)/s.block))
		}
	}
	return out
}

// step returns the metadata of tokens [from, to) of the sequence.
func (s *steps) step(from, to int64) (*attention.Batch, error) {
	blocks := make([]int32, (s.total+s.block-1)/s.block)
	for i := range blocks {
		blocks[i] = int32(i)
	}
	s.batch.Reset()
	return s.batch, s.batch.Add(int(from), int(to-from), blocks, int(s.block))
}

// single is one call of one function.
type single struct {
	steps
	args  []value
	bound map[string]int64 // values of the function's symbols

	numbered bool // the input file names tensors by position, and so do the results
}

// limits returns the limits of steps, raised to the values of the function's symbols.
func (s *single) limits() map[string]int64 {
	out := s.steps.limits()
	for _, x := range s.m.Symbols {
		n, ok := s.bound[x.Name]
		switch {
		case !ok || x.Kind == ir.Load:
		case x.Kind == ir.Plain:
			out[x.Name] = n
		default:
			out[x.Name] = max(out[x.Name], min(n, x.Hi))
		}
	}
	return out
}

func newSingle(m *ir.Module, file *safetensors.File, rf *runFlags, bf *buildFlags) (*single, error) {
	f := m.Funcs[0]
	bound := map[string]int64{}
	for _, x := range m.Symbols {
		if n, ok := bf.symbols[x.Name]; ok && x.Kind == ir.Plain {
			bound[x.Name] = n
		}
	}
	args := make([]*interp.Tensor, len(f.Params))
	for i, p := range f.Params {
		info := f.Values[p]
		var t *interp.Tensor
		var err error
		if file == nil {
			t, err = madeUp(m, info.Type, rf.rows, bound)
		} else {
			t, err = readInput(file, f, i)
		}
		if err != nil {
			return nil, err
		}
		if err := bindShape(f, info, t.Shape, bound); err != nil {
			return nil, err
		}
		args[i] = t
	}
	out := singleOf(m, args, bound, bf)
	out.numbered = byPosition(file, f)
	return out, out.checkBlocks(m.Funcs[:1], bf.symbols)
}

// singleOf returns one call of the module's first function, with the values of its symbols.
func singleOf(m *ir.Module, args []*interp.Tensor, bound map[string]int64, bf *buildFlags) *single {
	rows := int64(1)
	if size, ok := padding.SizeSymbol(m, m.Funcs[0]); ok {
		rows = max(rows, bound[size])
	}
	values := make([]value, len(args))
	for i, t := range args {
		values[i] = hostValue{t}
	}
	return &single{steps: newSteps(m, rows, bf), args: values, bound: bound}
}

func (s *single) fingerprint() string {
	sum := sha256.New()
	for _, a := range s.args {
		if t, err := a.tensor(); err == nil { // inputs are on the host
			fmt.Fprintf(sum, "%s%v", t.Type, t.Shape)
			sum.Write(t.Bytes())
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// withoutBound returns the flags without the values of plain symbols: the call binds them, and the
// backend must not fix them.
func (s *single) withoutBound(bf *buildFlags) *buildFlags {
	out := *bf
	out.symbols = maps.Clone(bf.symbols)
	maps.DeleteFunc(out.symbols, func(name string, _ int64) bool {
		x := s.m.Symbol(name)
		return x != nil && x.Kind == ir.Plain
	})
	return &out
}

// byPosition reports whether a file names the inputs of a function in0, in1, …, instead of by
// parameter.
func byPosition(file *safetensors.File, f *ir.Func) bool {
	if file == nil || len(f.Params) == 0 {
		return false
	}
	_, named := file.Info(f.Values[f.Params[0]].Name)
	_, numbered := file.Info(positional("in", 0))
	return named != nil && numbered == nil
}

// positional returns the name of input or output i in files that name them by position.
func positional(kind string, i int) string { return fmt.Sprintf("%s%d", kind, i) }

// readInput reads the tensor of parameter i. Integers may be narrower than the parameter's.
func readInput(file *safetensors.File, f *ir.Func, i int) (*interp.Tensor, error) {
	info := f.Values[f.Params[i]]
	name := info.Name
	if byPosition(file, f) {
		name = positional("in", i)
	}
	t, err := file.Tensor(name)
	if err != nil {
		return nil, fmt.Errorf("@%s takes %s; %s holds %s: %w", f.Name, strings.Join(paramNames(f), ", "), file.Path(), termsafe.Names(file.Names()), err)
	}
	want := info.Type.DType
	widens := t.DType.Int() && want.Int() && want.Signed() && t.DType.Bits() < want.Bits()
	if t.DType != want && !widens || len(t.Shape) != info.Type.Rank() {
		return nil, fmt.Errorf("%s: %s is %s%v, @%s takes %s", file.Path(), name, t.DType, t.Shape, f.Name, info.Type)
	}
	if err := checkRoom("input "+name, heldBytes(want, t.Shape)); err != nil {
		return nil, err
	}
	v, err := copyTensor(file, t)
	if err == nil && widens {
		return interp.FromInt64s(want, v.Shape, v.Int64s())
	}
	return v, err
}

// bindShape adds the values that a shape gives the symbols of a parameter's type to bound. It returns an
// error if the shape contradicts the type or bound.
func bindShape(f *ir.Func, info ir.ValueInfo, shape []int64, bound map[string]int64) error {
	for i, d := range info.Type.Shape {
		if name, n, ok := symbolOf(d, shape[i]); ok {
			if v, ok := bound[name]; ok && v != n {
				return fmt.Errorf("input %s of @%s has %s = %d; --symbol or an earlier dimension has %d", info.Name, f.Name, name, n, v)
			}
			bound[name] = n
		}
		want, err := d.Eval(func(name string) (int64, bool) { v, ok := bound[name]; return v, ok })
		if err == nil && want != shape[i] {
			err = fmt.Errorf("dimension %d is %d, want %d", i, shape[i], want)
		}
		if err != nil {
			return fmt.Errorf("input %s of @%s is %v, want %s: %w", info.Name, f.Name, shape, info.Type, err)
		}
	}
	return nil
}

// symbolOf returns the symbol of a dimension c*symbol + k, and the value for which the dimension is
// size.
func symbolOf(d dim.Dim, size int64) (name string, n int64, ok bool) {
	names := d.Symbols()
	if len(names) != 1 {
		return "", 0, false
	}
	at := func(x int64) int64 {
		v, _ := d.Eval(func(string) (int64, bool) { return x, true })
		return v
	}
	k := at(0)
	c := at(1) - k
	if c < 1 || size < k || (size-k)%c != 0 || !d.Equal(dim.Sym(names[0]).Mul(dim.Const(c)).Add(dim.Const(k))) {
		return "", 0, false
	}
	return names[0], (size - k) / c, true
}

// madeUp returns values that only depend on the type and the rows: floats in [-1, 1], other dtypes 0.
// Symbols have the values of bound. Other batch symbols are rows; other plain symbols are rows,
// clamped to their range.
func madeUp(m *ir.Module, t ir.Type, rows int64, bound map[string]int64) (*interp.Tensor, error) {
	shape := make([]int64, t.Rank())
	for i, d := range t.Shape {
		var err error
		shape[i], err = d.Eval(func(name string) (int64, bool) {
			s := m.Symbol(name)
			n, ok := bound[name]
			switch {
			case ok:
				return n, true
			case s != nil && s.Kind == ir.Plain:
				return max(s.Lo, min(rows, s.Hi)), true
			}
			return rows, s != nil && s.Kind == ir.Batch
		})
		if err != nil {
			return nil, fmt.Errorf("an input %s cannot be made up: %w", t, err)
		}
	}
	if err := checkRoom("an input "+t.String(), heldBytes(t.DType, shape)); err != nil {
		return nil, fmt.Errorf("made-up inputs of %d rows: %w", rows, err)
	}
	out, err := interp.Zeros(t.DType, shape)
	if err != nil || !t.DType.Float() {
		return out, err
	}
	for i := range out.Len() {
		// The fractional parts of multiples of the golden ratio are evenly distributed. The conversion of the product
		// prevents a fused multiply-add with the subtraction of Modf, which the compiler inlines.
		_, part := math.Modf(float64(float64(i+1) * math.Phi))
		out.Set(i, 2*part-1)
	}
	return out, nil
}

func (s *single) run(ctx context.Context, c caller) ([]output, error) {
	f := c.function(s.m.Funcs[0].Name)
	batch, err := s.step(0, s.total)
	if err != nil {
		return nil, err
	}
	results, err := c.call(ctx, f, s.args, s.bound, batch)
	if err != nil {
		return nil, err
	}
	names := resultNames(f)
	if s.numbered {
		for i := range names {
			names[i] = positional("out", i)
		}
	}
	out := make([]output, len(results))
	for i, r := range results {
		t, err := r.tensor()
		if err != nil {
			return nil, err
		}
		out[i] = output{names[i], t}
	}
	return out, nil
}

// resultNames returns different names for a function's results, and avoids the names in taken. A result has its name in
// the text; if it has no name, or the name is in taken or of an earlier result, result i is outI, with underscores if
// outI is too.
func resultNames(f *ir.Func, taken ...string) []string {
	names := make([]string, len(f.Returns))
	seen := map[string]bool{"": true}
	for _, name := range taken {
		seen[name] = true
	}
	for i, v := range f.Returns {
		if names[i] = f.Values[v].Name; seen[names[i]] {
			names[i] = positional("out", i)
		}
		for seen[names[i]] {
			names[i] += "_"
		}
		seen[names[i]] = true
	}
	return names
}

// isLanguageModel reports whether a module has the two functions of one:
// @forward(ids, positions) and @logits(hidden states, rows).
func isLanguageModel(m *ir.Module) bool {
	f, l := m.Func("forward"), m.Func("logits")
	if f == nil || l == nil || len(f.Params) != 2 || len(f.Returns) < 1 || len(l.Params) != 2 || len(l.Returns) < 1 {
		return false
	}
	vector := func(f *ir.Func, i int) bool {
		t := f.Values[f.Params[i]].Type
		return t.DType == dtype.I32 && t.Rank() == 1
	}
	return vector(f, 0) && vector(f, 1) && l.Values[l.Params[0]].Type.Equal(f.ResultTypes[0]) && vector(l, 1)
}

// sequence is one prompt through a language model.
type sequence struct {
	steps
	ids   []int32
	chunk int64 // most tokens of a step
}

func newSequence(m *ir.Module, file *safetensors.File, rf *runFlags, bf *buildFlags) (*sequence, error) {
	var ids []int32
	bound := runner.BoundsOf(m)
	if n := bound.Positions; file == nil && n > 0 && rf.rows > n {
		return nil, usagef("--rows %d: the model is for %d positions%s", rf.rows, n, longerHint(m))
	}
	if file == nil {
		for i := range rf.rows {
			ids = append(ids, int32(i%vocabulary(m)))
		}
	} else {
		t, err := file.Tensor("input_ids")
		if err != nil {
			return nil, fmt.Errorf("a language model takes input_ids; %s holds %s: %w", file.Path(), termsafe.Names(file.Names()), err)
		}
		x, err := copyTensor(file, t)
		if err != nil {
			return nil, err
		}
		if x.Type.Float() || x.Len() == 0 || len(x.Shape) == 0 || x.Shape[len(x.Shape)-1] != int64(x.Len()) {
			return nil, fmt.Errorf("%s: input_ids is %s%v, want integers [tokens], one sequence", file.Path(), t.DType, t.Shape)
		}
		if n := bound.Positions; n > 0 && int64(x.Len()) > n {
			return nil, fmt.Errorf("%s: input_ids has %d tokens, more than the %d positions that the model is for%s", file.Path(), x.Len(), n, longerHint(m))
		}
		for i, id := range x.Int64s() {
			if most := cmp.Or(bound.IDs, 1<<31); id < 0 || id >= most {
				return nil, fmt.Errorf("%s: id %d of input_ids is %d, the vocabulary has %d", file.Path(), i, id, most)
			}
			ids = append(ids, int32(id))
		}
	}
	s := &sequence{steps: newSteps(m, int64(len(ids)), bf), ids: ids}
	s.chunk = s.total
	for _, f := range m.Funcs {
		if size, ok := padding.SizeSymbol(m, f); ok {
			s.chunk = min(s.chunk, overlay(s.limits(), bf.max)[size])
		}
	}
	if s.chunk < 1 {
		return nil, usagef("--max of the symbol that counts rows must be at least 1")
	}
	return s, s.checkBlocks(m.Funcs, bf.symbols)
}

func (s *sequence) fingerprint() string {
	sum := sha256.Sum256(fmt.Append(nil, s.ids, s.chunk))
	return hex.EncodeToString(sum[:8])
}

// vocabulary returns the number of ids of the model, for made-up ids.
func vocabulary(m *ir.Module) int64 { return max(runner.BoundsOf(m).IDs, 1) }

func (s *sequence) run(ctx context.Context, c caller) ([]output, error) {
	f, l := c.function("forward"), c.function("logits")
	var out []output
	for from := int64(0); from < s.total; from += s.chunk {
		to := min(from+s.chunk, s.total)
		pos, rows := make([]int32, to-from), make([]int32, to-from)
		for i := range pos {
			pos[i], rows[i] = int32(from)+int32(i), int32(i)
		}
		args, err := vectors(s.ids[from:to], pos, rows)
		if err != nil {
			return nil, err
		}
		batch, err := s.step(from, to)
		if err != nil {
			return nil, err
		}
		hidden, err := c.call(ctx, f, args[:2], nil, batch)
		if err != nil {
			return nil, err
		}
		logits, err := c.call(ctx, l, []value{hidden[0], args[2]}, nil, batch)
		if err != nil {
			return nil, err
		}
		names := append([]string{"logits"}, resultNames(l, "logits")[1:]...)
		names = append(names, resultNames(f, names...)[1:]...)
		for i, r := range append(logits, hidden[1:]...) {
			t, err := r.tensor()
			if err != nil {
				return nil, err
			}
			if from == 0 {
				out = append(out, output{names[i], t})
			} else if out[i].tensor, err = appendRows(out[i].tensor, t); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// vectors converts lists of integers to arguments.
func vectors(lists ...[]int32) ([]value, error) {
	out := make([]value, len(lists))
	for i, v := range lists {
		t, err := interp.FromI32([]int64{int64(len(v))}, v)
		if err != nil {
			return nil, err
		}
		out[i] = hostValue{t}
	}
	return out, nil
}

// appendRows concatenates tensors along their first dimension.
func appendRows(a, b *interp.Tensor) (*interp.Tensor, error) {
	shape := append([]int64(nil), a.Shape...)
	shape[0] += b.Shape[0]
	if err := checkRoom("a result", addBytes(heldBytes(a.Type, shape), heldBytes(a.Type, shape))); err != nil {
		return nil, err
	}
	return interp.FromBytes(a.Type, shape, append(a.Bytes(), b.Bytes()...))
}
