package piecewise

import (
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/padding"
)

// symbolRole says how a symbol of a function gets its value at a run.
type symbolRole uint8

const (
	countsRows symbolRole = iota // the size symbol: the argument of [Func.Inputs]
	isOther                      // another batch symbol: graphs are captured with its largest value, and serve smaller ones
	isPlain                      // any other symbol but load symbols: no graph serves the function
)

// runSymbol is a symbol of a function that gets a value for each run.
type runSymbol struct {
	name   string
	role   symbolRole
	lo, hi int64
}

// unknown is the value of a symbol before a run has set it. Extents are not negative.
const unknown = -1

// findSymbols sets symbols: the size symbol first, then the others in the order of the
// module. Parameters must be linked already (addInputs).
func (fn *function) findSymbols() {
	used := usedSymbols(fn.ir)
	if fn.size != "" {
		fn.symbols = append(fn.symbols, runSymbol{fn.size, countsRows, fn.lo, fn.hi})
	}
	for _, s := range fn.plan.module.Symbols {
		if s.Kind == ir.Load || s.Name == fn.size || !used[s.Name] {
			continue
		}
		x := runSymbol{name: s.Name, role: isPlain, lo: s.Lo, hi: fn.plan.opts.limit(s)}
		linked := slices.ContainsFunc(fn.inputs, func(in input) bool { return in.from != nil && in.from.size == s.Name })
		// A graph reads the symbol's largest number of rows. Rows beyond those of a run must not
		// affect a result.
		if linked || s.Kind == ir.Batch && fn.size != "" && len(padding.CheckIndices(fn.plan.module, fn.ir, s.Name)) == 0 {
			x.role = isOther
		}
		fn.symbols = append(fn.symbols, x)
	}
}

// usedSymbols returns the symbols of the types and attributes of a function.
func usedSymbols(f *ir.Func) map[string]bool {
	used := map[string]bool{}
	add := func(dims ...dim.Dim) {
		for _, d := range dims {
			for _, name := range d.Symbols() {
				used[name] = true
			}
		}
	}
	for v := range f.Values {
		add(f.Values[v].Type.Shape...)
	}
	for _, n := range f.Nodes {
		for i := range n.Attrs {
			add(n.Attrs[i].Dim)
			add(n.Attrs[i].Dims...)
		}
	}
	return used
}

// plain returns the names of the symbols with role isPlain.
func (fn *function) plain() []string {
	var out []string
	for _, s := range fn.symbols {
		if s.role == isPlain {
			out = append(out, s.name)
		}
	}
	return out
}

// symbol returns the index of a symbol, or -1.
func (fn *function) symbol(name string) int {
	return slices.IndexFunc(fn.symbols, func(s runSymbol) bool { return s.name == name })
}

// missing returns an error that names the first symbol without a value, or nil.
func (fn *function) missing(values []int64) error {
	for i, v := range values {
		if v == unknown {
			s := &fn.symbols[i]
			return fmt.Errorf("%w: symbol %s of @%s in [%d, %d] has no value for this run: call Inputs.SetSymbol, or pass a tensor that has it as an extent", ErrSize, s.name, fn.ir.Name, s.lo, s.hi)
		}
	}
	return nil
}

// envOf is envFor with the values of a run.
func (fn *function) envOf(values []int64) env {
	e := fn.envFor(fn.hi)
	for i, v := range values {
		if v != unknown {
			e.set(fn.symbols[i].name, v)
		}
	}
	return e
}

// amount is the size of a tensor at a run: per bytes times the value of a symbol.
type amount struct {
	symbol int   // index in function.symbols; fixed: per bytes; byType: computed from the type
	per    int64 // bytes
}

const (
	fixed  = -1
	byType = -2
)

// amountOf returns how the bytes of a type depend on the symbols. They are proportional to
// a symbol only if it is a factor of the first extent once, in no other extent, no other symbol of a
// run is in the type, and elements are whole bytes: then rows have one size and are contiguous.
func (fn *function) amountOf(t ir.Type) (amount, error) {
	at := -1
	for axis, d := range t.Shape {
		for _, name := range d.Symbols() {
			i := fn.symbol(name)
			if i < 0 {
				continue
			}
			if at >= 0 && at != i || axis > 0 {
				return amount{symbol: byType}, nil
			}
			at = i
		}
	}
	e := fn.envFor(fn.hi)
	if at < 0 {
		n, err := e.bytes(t)
		return amount{fixed, n}, err
	}
	s := dim.Sym(fn.symbols[at].name)
	group, ok := t.Shape[0].Div(s)
	if !ok || slices.Contains(group.Symbols(), fn.symbols[at].name) || t.DType.Bits()%8 != 0 {
		return amount{symbol: byType}, nil
	}
	e.set(fn.symbols[at].name, 1)
	n, err := e.bytes(t)
	return amount{at, n}, err
}

// shapedAs reports whether an input with equal bytes also has the shape that it had at the latest
// run: 2 rows of 6 have as many bytes as 3 rows of 4. For byType it compares all symbols.
func (fn *instance) shapedAs(in *input, values []int64) bool {
	if in.bytes.symbol != byType {
		return true
	}
	for i := range values {
		if fn.ran[i] != values[i] {
			return false
		}
	}
	return true
}

// bytes returns the size of a tensor of type t for values of the symbols, or an error if
// a symbol of the type has no value.
func (fn *function) bytes(a amount, t ir.Type, values []int64) (int64, error) {
	switch {
	case a.symbol == fixed:
		return a.per, nil
	case a.symbol >= 0 && values[a.symbol] != unknown:
		return a.per * values[a.symbol], nil
	}
	for _, d := range t.Shape {
		for _, name := range d.Symbols() {
			if i := fn.symbol(name); i >= 0 && values[i] == unknown {
				one := slices.Repeat([]int64{0}, len(values))
				one[i] = unknown
				return 0, fn.missing(one)
			}
		}
	}
	e := fn.envOf(values)
	return e.bytes(t)
}
