package pt2

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/dim"
)

// symbols are the dynamic dimensions of an exported program.
type symbols struct {
	lo, hi   map[string]int64 // ranges of the symbols that are not fixed
	fixed    map[string]int64
	inputs   map[string]*tensorMeta // by the name that inputName returns for a guard
	kind     map[string]ir.SymbolKind
	parsed   map[string]dim.Dim // by text; many tensors have the same sizes
	unending []string           // symbols without a largest size
}

// newSymbols reads the ranges of the dimensions of inputs, and applies the options.
func newSymbols(p *exportedProgram, o *Options) (*symbols, error) {
	s := &symbols{lo: map[string]int64{}, hi: map[string]int64{}, fixed: map[string]int64{}, parsed: map[string]dim.Dim{},
		kind: map[string]ir.SymbolKind{}, inputs: map[string]*tensorMeta{}}
	used := map[string]bool{}
	for _, in := range p.GraphModule.Signature.Inputs {
		if in.User == nil || in.User.Arg.Tensor == nil {
			continue
		}
		meta := p.GraphModule.Graph.TensorValues[in.User.Arg.Tensor.Name]
		for _, size := range meta.Sizes {
			if size.Expr == nil {
				continue
			}
			e, err := parseExpr(size.Expr.Expr)
			if err != nil {
				return nil, err
			}
			e.symbols(used)
		}
	}
	for _, set := range []struct {
		option string
		values map[string]int64
	}{{"Options.Dims", o.Dims}, {"Options.Max", o.Max}} {
		for _, name := range slices.Sorted(maps.Keys(set.values)) {
			if !used[name] {
				return nil, fmt.Errorf("%s: no input has a dimension %s; the dynamic dimensions are %s", set.option, termsafe.Clip(name, 40), listed(used))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if err := s.declare(name, p.RangeConstraints[name], o); err != nil {
			return nil, err
		}
	}
	if len(s.unending) > 0 {
		return nil, fmt.Errorf("dimensions without a largest size: %s; Options.Max gives one, Options.Dims a fixed size", strings.Join(s.unending, ", "))
	}
	if o.BatchDim != "" {
		if _, ok := s.lo[o.BatchDim]; !ok {
			return nil, fmt.Errorf("Options.BatchDim: %s is not a dynamic dimension of an input; the inputs have %s", termsafe.Clip(o.BatchDim, 40), listed(s.lo))
		}
		s.kind[o.BatchDim] = ir.Batch
	}
	return s, nil
}

func listed[V any](m map[string]V) string {
	if len(m) == 0 {
		return "none"
	}
	return termsafe.Names(slices.Sorted(maps.Keys(m)))
}

// symbols adds the names of the symbols of an expression to a set.
func (e *expr) symbols(set map[string]bool) {
	if e.op == "Symbol" {
		set[e.name] = true
	}
	for _, a := range e.args {
		a.symbols(set)
	}
}

func (s *symbols) declare(name string, r rng, o *Options) error {
	if !dim.ValidName(name) {
		return fmt.Errorf("%s is not a valid name for a dimension", termsafe.Quote(name))
	}
	lo, hasLo, err := bound(r.Min)
	if err != nil {
		return err
	}
	hi, hasHi, err := bound(r.Max)
	if err != nil {
		return err
	}
	if !hasLo || lo < 0 {
		lo = 0
	}
	if v, ok := o.Dims[name]; ok {
		if v < lo || hasHi && v > hi {
			return fmt.Errorf("Options.Dims: %s = %d is not in the exported range %s", name, v, rangeText(lo, hi, hasHi))
		}
		s.fixed[name] = v
		return nil
	}
	if v, ok := o.Max[name]; ok {
		if v < lo || hasHi && v > hi {
			return fmt.Errorf("Options.Max: %s = %d is not in the exported range %s", name, v, rangeText(lo, hi, hasHi))
		}
		hi, hasHi = v, true
	}
	if !hasHi {
		s.unending = append(s.unending, name)
	}
	if hasHi && hi < lo {
		return fmt.Errorf("dimension %s: the range %s is empty", name, rangeText(lo, hi, true))
	}
	s.lo[name], s.hi[name] = lo, hi
	return nil
}

func rangeText(lo, hi int64, ends bool) string {
	if !ends {
		return fmt.Sprintf("[%d, …)", lo)
	}
	return fmt.Sprintf("[%d, %d]", lo, hi)
}

// unboundedRange is the smallest integer that PyTorch writes for infinity: sys.maxsize - 1.
const unboundedRange = math.MaxInt64 - 1

// bound returns an end of a range. It reports false for no end: null, an integer above int64, or PyTorch's integers
// for infinity.
func bound(n *json.Number) (int64, bool, error) {
	if n == nil {
		return 0, false, nil
	}
	v, err := n.Int64()
	switch {
	case err == nil:
		return v, v < unboundedRange, nil
	case strings.Trim(string(*n), "0123456789") == "":
		return 0, false, nil
	}
	return 0, false, fmt.Errorf("%s is not an integer, as an end of a range must be", termsafe.Clip(string(*n), 40))
}

// bounds returns the range of a symbol, in the form that [dim.Dim.Bounds] takes.
func (s *symbols) bounds(name string) (dim.Interval, bool) {
	lo, ok := s.lo[name]
	return dim.Interval{Lo: lo, Hi: s.hi[name]}, ok
}

// chooseBatch makes the leading dynamic dimension of the inputs the batch symbol, if all inputs have the same one and
// the options choose none.
func (s *symbols) chooseBatch(inputs [][]dim.Dim) {
	if len(s.kind) > 0 {
		return
	}
	shared := ""
	for _, shape := range inputs {
		lead := ""
		for _, d := range shape {
			if names := d.Symbols(); len(names) > 0 {
				if d.Equal(dim.Sym(names[0])) {
					lead = names[0]
				}
				break
			}
		}
		if lead == "" || shared != "" && lead != shared {
			return
		}
		shared = lead
	}
	if shared != "" {
		s.kind[shared] = ir.Batch
	}
}

// emit declares the symbols that are not fixed.
func (s *symbols) emit(b *ir.Builder) {
	for _, name := range slices.Sorted(maps.Keys(s.lo)) {
		b.Symbol(name, s.lo[name], s.hi[name], s.kind[name])
	}
}

// size converts a size of the archive.
func (s *symbols) size(n symInt) (dim.Dim, error) {
	switch {
	case n.Int != nil:
		return dim.Const(*n.Int), nil
	case n.Expr != nil:
		return s.text(n.Expr.Expr)
	}
	return dim.Dim{}, fmt.Errorf("a size is neither a number nor an expression")
}

func (s *symbols) text(text string) (dim.Dim, error) {
	if d, ok := s.parsed[text]; ok {
		return d, nil
	}
	e, err := parseExpr(text)
	if err != nil {
		return dim.Dim{}, err
	}
	d, err := s.dim(e)
	if err != nil {
		return dim.Dim{}, exprError(text, "%v", err)
	}
	s.parsed[text] = d
	return d, nil
}

// shape returns the sizes of a tensor.
func (s *symbols) shape(m *tensorMeta) ([]dim.Dim, error) {
	if len(m.Sizes) > ir.MaxRank {
		return nil, fmt.Errorf("it has %d axes; the limit is %d", len(m.Sizes), ir.MaxRank)
	}
	out := make([]dim.Dim, len(m.Sizes))
	for i, n := range m.Sizes {
		var err error
		if out[i], err = s.size(n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// dim converts an expression to a dimension size.
func (s *symbols) dim(e *expr) (dim.Dim, error) {
	switch e.op {
	case "Integer":
		return dim.Const(e.n), nil
	case "Symbol":
		return s.symbol(e.name)
	case "Size":
		m := s.inputs[inputName(e.name)]
		if m == nil || e.n < 0 || e.n >= int64(len(m.Sizes)) {
			return dim.Dim{}, fmt.Errorf("%s.size()[%d] is not a size of an input", termsafe.Clip(e.name, 60), e.n)
		}
		return s.size(m.Sizes[e.n])
	case "TruncToInt", "FloorToInt", "CeilToInt":
		if len(e.args) == 1 {
			return s.rounded(e.op, e.args[0])
		}
	}
	args := make([]dim.Dim, len(e.args))
	for i, a := range e.args {
		var err error
		if args[i], err = s.dim(a); err != nil {
			return dim.Dim{}, err
		}
	}
	d, err := s.apply(e.op, args)
	if err == nil {
		err = d.Err()
	}
	return d, err
}

// rounded returns a quotient of sizes, which torch.export computes in floats, rounded to an integer.
func (s *symbols) rounded(op string, e *expr) (dim.Dim, error) {
	if s.constant(e) {
		x, err := s.float(e)
		if err != nil {
			return dim.Dim{}, err
		}
		x = map[string]func(float64) float64{"TruncToInt": math.Trunc, "FloorToInt": math.Floor, "CeilToInt": math.Ceil}[op](x)
		if !(math.Abs(x) <= 1<<53) { // or NaN
			return dim.Dim{}, fmt.Errorf("%v is no size", x)
		}
		return dim.Const(int64(x)), nil
	}
	q, err := s.quotient(e)
	if err != nil {
		return dim.Dim{}, err
	}
	if iv, ok := q.num.Bounds(s.bounds); op == "TruncToInt" && (!ok || iv.Lo < 0) {
		return dim.Dim{}, fmt.Errorf("%s / %d is rounded toward 0 and may be negative", q.num, q.den)
	}
	if op == "CeilToInt" {
		q.num = q.num.Add(dim.Const(q.den - 1))
	}
	return q.num.FloorDiv(q.den), nil
}

// constant reports whether all dimensions of an expression are fixed.
func (s *symbols) constant(e *expr) bool {
	switch e.op {
	case "Symbol", "Size":
		d, err := s.dim(e)
		_, fixed := d.Const()
		return err == nil && fixed
	}
	return !slices.ContainsFunc(e.args, func(a *expr) bool { return !s.constant(a) })
}

// float computes a constant quotient as PyTorch does: each operation is rounded to float64.
func (s *symbols) float(e *expr) (float64, error) {
	switch e.op {
	case "Float":
		x, err := strconv.ParseFloat(e.name, 64)
		if err != nil {
			return 0, fmt.Errorf("%s is not a number", termsafe.Clip(e.name, 40))
		}
		return x, nil
	case "ToFloat":
		if len(e.args) == 1 {
			return s.float(e.args[0])
		}
	case "Mul", "Add", "IntTrueDiv", "FloatTrueDiv":
		var x float64
		for i, a := range e.args {
			y, err := s.float(a)
			if err != nil {
				return 0, err
			}
			switch { // conversions keep the compiler from fusing a product with a sum
			case i == 0:
				x = y
			case e.op == "Mul":
				x = float64(x * y)
			case e.op == "Add":
				x = float64(x + y)
			default:
				x = float64(x / y)
			}
		}
		return x, nil
	}
	d, err := s.dim(e)
	if err != nil {
		return 0, err
	}
	n, ok := d.Const()
	if !ok {
		return 0, fmt.Errorf("%s is not a number", d)
	}
	return float64(n), nil
}

// A quotient of sizes is num / den, which need not be an integer.
type quotient struct {
	num dim.Dim
	den int64
}

// exact reports whether floats have the quotient without rounding: den is a power of two.
func (q quotient) exact() bool { return q.den&(q.den-1) == 0 }

// scales reports whether floats multiply by the quotient without rounding: it is a power of two.
func (q quotient) scales() bool {
	n, ok := q.num.Const()
	return ok && q.exact() && n != 0 && n&(n-1) == 0
}

// keepsIntegers reports whether a result of op that is an integer is one in floats, too, although they round quotients.
// A sum of one inexact operand, and a division of one, are integers only if floats have the operand without rounding.
func keepsIntegers(op string, a, b quotient) bool {
	switch op {
	case "Add":
		return a.exact() || b.exact()
	case "Mul":
		return a.exact() && b.exact() || a.scales() || b.scales()
	}
	return b.exact()
}

// maxQuotient is the largest den. Up to it, a quotient below 2^29 that is not an integer is further from the next
// integer than the errors of 20 operations in float64, so PyTorch's floats round to the same integer. See keepsIntegers
// for a quotient that is an integer.
const maxQuotient = 1 << 20

func (s *symbols) quotient(e *expr) (quotient, error) {
	switch e.op {
	case "Float":
		return floatQuotient(e.name)
	case "ToFloat":
		if len(e.args) == 1 {
			return s.quotient(e.args[0])
		}
	case "Mul", "Add", "IntTrueDiv", "FloatTrueDiv":
		q := quotient{dim.Const(0), 1}
		for i, a := range e.args {
			b, err := s.quotient(a)
			if err != nil {
				return q, err
			}
			if i == 0 {
				q = b
				continue
			}
			switch {
			case !keepsIntegers(e.op, q, b):
				return q, fmt.Errorf("%s of (%s) / %d and (%s) / %d, which floats round, is not exact; fix dimensions (Options.Dims)", e.op, q.num, q.den, b.num, b.den)
			case e.op == "Mul":
				q = quotient{q.num.Mul(b.num), q.den * b.den}
			case e.op == "Add":
				q = quotient{q.num.Mul(dim.Const(b.den)).Add(b.num.Mul(dim.Const(q.den))), q.den * b.den}
			default:
				k, ok := b.num.Const()
				if !ok || k < 1 || k > maxQuotient {
					return q, fmt.Errorf("division by %s cannot be expressed: the divisor must be a number from 1 to %d", b.num, maxQuotient)
				}
				q = quotient{q.num.Mul(dim.Const(b.den)), q.den * k}
			}
			if q.den > maxQuotient {
				return q, fmt.Errorf("a quotient by more than %d cannot be expressed", maxQuotient)
			}
		}
		return q, nil
	}
	d, err := s.dim(e)
	return quotient{d, 1}, err
}

// floatQuotient returns a float as a quotient by a power of two.
func floatQuotient(text string) (quotient, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.Abs(f) > 1<<32 {
		return quotient{}, fmt.Errorf("%s is not supported as a factor of a size", termsafe.Clip(text, 40))
	}
	den := int64(1)
	for ; f != math.Trunc(f); f *= 2 {
		if den *= 2; den > maxQuotient {
			return quotient{}, fmt.Errorf("sizes times %s are not exact; scale by a multiple of a power of two, or fix dimensions (Options.Dims)", termsafe.Clip(text, 40))
		}
	}
	return quotient{dim.Const(int64(f)), den}, nil
}

// inputName returns the name that torch.export gives to the input that a guard calls source: x for L['x'], and
// pair_0_y for L['pair'][0]['y'], which is an input inside of tuples and dicts.
func inputName(source string) string {
	path := strings.TrimSuffix(strings.TrimPrefix(source, "L["), "]")
	var b strings.Builder
	for i, key := range strings.Split(path, "][") {
		if i > 0 {
			b.WriteByte('_')
		}
		for _, r := range strings.ToLower(strings.Trim(key, `'"`)) {
			if r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') {
				r = '_'
			}
			b.WriteRune(r)
		}
	}
	return b.String()
}

func (s *symbols) symbol(name string) (dim.Dim, error) {
	if v, ok := s.fixed[name]; ok {
		return dim.Const(v), nil
	}
	if _, ok := s.lo[name]; ok {
		return dim.Sym(name), nil
	}
	if strings.HasPrefix(name, "u") || strings.HasPrefix(name, "zuf") {
		return dim.Dim{}, fmt.Errorf("%s is a size that depends on values (an unbacked symbol)", termsafe.Clip(name, 40))
	}
	return dim.Dim{}, fmt.Errorf("%s is not a dimension of an input", termsafe.Clip(name, 40))
}

func (s *symbols) apply(op string, args []dim.Dim) (dim.Dim, error) {
	switch op {
	case "Add", "Mul", "Min", "Max":
		if len(args) == 0 {
			return dim.Dim{}, fmt.Errorf("%s has no operands", op)
		}
		d := args[0]
		for _, a := range args[1:] {
			switch op {
			case "Add":
				d = d.Add(a)
			case "Mul":
				d = d.Mul(a)
			default:
				var err error
				if d, err = s.extreme(op, d, a); err != nil {
					return dim.Dim{}, err
				}
			}
		}
		return d, nil
	}
	if len(args) != 2 {
		return dim.Dim{}, fmt.Errorf("%s of sizes cannot be expressed", termsafe.Clip(op, 40))
	}
	k, constant := args[1].Const()
	switch op {
	case "Pow":
		if !constant || k < 0 || k > 8 {
			return dim.Dim{}, fmt.Errorf("a power with exponent %s cannot be expressed", args[1])
		}
		d := dim.Const(1)
		for range k {
			d = d.Mul(args[0])
		}
		return d, nil
	case "FloorDiv":
		if q, exact := args[0].Div(args[1]); exact && s.positive(args[1]) {
			return q, nil
		}
		if !constant || k <= 0 {
			return dim.Dim{}, fmt.Errorf("division by %s cannot be expressed: the divisor must be a positive number", args[1])
		}
		return args[0].FloorDiv(k), nil
	case "Mod":
		if _, exact := args[0].Div(args[1]); exact && s.positive(args[1]) {
			return dim.Const(0), nil
		}
		if !constant || k <= 0 {
			return dim.Dim{}, fmt.Errorf("a remainder by %s cannot be expressed: the divisor must be a positive number", args[1])
		}
		return args[0].Sub(args[0].FloorDiv(k).Mul(dim.Const(k))), nil
	}
	return dim.Dim{}, fmt.Errorf("%s of sizes cannot be expressed", termsafe.Clip(op, 40))
}

func (s *symbols) positive(d dim.Dim) bool {
	iv, ok := d.Bounds(s.bounds)
	return ok && iv.Lo > 0
}

// extreme returns the smaller or the larger of two sizes, if the ranges decide which one it is.
func (s *symbols) extreme(op string, a, b dim.Dim) (dim.Dim, error) {
	iv, ok := a.Sub(b).Bounds(s.bounds)
	switch {
	case ok && iv.Lo >= 0 && op == "Max", ok && iv.Hi <= 0 && op == "Min":
		return a, nil
	case ok && iv.Lo >= 0, ok && iv.Hi <= 0:
		return b, nil
	}
	return dim.Dim{}, fmt.Errorf("%s(%s, %s) cannot be expressed: the ranges do not decide which one it is", op, a, b)
}
