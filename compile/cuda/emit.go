package cuda

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"pwc/compile/cuda/src"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
)

// emitter writes the part of a source that is one kernel's.
type emitter struct {
	*source
	k      *loop.Kernel
	raw    map[loop.Value]string     // values whose stored form is at hand
	known  map[loop.Value]loop.Instr // constants and dims, which stand where they are used
	orZero map[loop.Value]loop.Instr // choices of a float or +0
	number map[loop.Value]bool       // values that are known not to be NaN
}

// source is the source that is being written: of one kernel, or of several that
// run side by side.
type source struct {
	gpu     gpu
	name    string
	args    []loop.Arg
	threads int32
	blocks  int  // that a multiprocessor should hold at least; 0: any number
	wide    bool // indices are 64-bit
	general bool // extents that are known are parameters, too: kernels that differ in nothing else are one source

	params []dim.Dim // of attribute dims
	faults []int32   // of attribute faults
	used   map[string]bool
	made   []src.Snippet // for this kernel alone
	body   strings.Builder
	depth  int

	grid    [3]dim.Dim
	shared  dim.Dim
	cluster int // blocks of a cluster, along x
	err     error
}

func newEmitter(k *loop.Kernel, on gpu, suffix string) *emitter {
	s := &source{gpu: on, name: entryName(k.Name) + suffix, args: k.Args, used: make(map[string]bool), depth: 1, grid: [3]dim.Dim{one, one, one}}
	e := s.emitter(k)
	s.wide = !e.fits()
	return e
}

// emitter returns what writes the part of the source that is k's.
func (s *source) emitter(k *loop.Kernel) *emitter {
	e := &emitter{source: s, k: k, raw: make(map[loop.Value]string), known: make(map[loop.Value]loop.Instr), orZero: make(map[loop.Value]loop.Instr), number: make(map[loop.Value]bool)}
	for _, p := range k.Phases {
		for _, list := range [][]loop.Instr{p.Row, p.Body} {
			for _, in := range list {
				if in.Dst != loop.NoValue {
					e.number[in.Dst] = e.isNumber(in)
				}
				switch in.Op {
				case loop.Const, loop.Dim:
					e.known[in.Dst] = in
				case loop.Where:
					zero, ok := e.known[in.Args[2]]
					if ok && zero.Op == loop.Const && zero.Float == 0 && !math.Signbit(zero.Float) && k.Values[in.Dst].DType == dtype.F32 && k.Values[in.Args[1]].DType == dtype.F32 {
						e.orZero[in.Dst] = in
					}
				}
			}
		}
	}
	return e
}

// isNumber reports whether an instruction's result is known not to be NaN.
func (e *emitter) isNumber(in loop.Instr) bool {
	switch {
	case !e.k.Values[in.Dst].DType.Float(), in.Op == loop.Philox:
		return true
	case in.Op == loop.Const:
		return in.Float == in.Float
	case in.Op == loop.Cast:
		return e.number[in.Args[0]]
	case in.Op == loop.Where:
		return e.number[in.Args[1]] && e.number[in.Args[2]]
	}
	return false
}

var one = dim.Const(1)

// entryName makes a C name of a kernel's name. The prefix keeps it apart from
// functions of CUDA.
func entryName(name string) string {
	b := []byte("k_" + name)
	for i, c := range b {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9') {
			b[i] = '_'
		}
	}
	return string(b[:min(len(b), 120)])
}

func (e *emitter) failf(format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf(format, args...)
	}
}

// line writes one line of the kernel's body.
func (e *emitter) line(format string, args ...any) {
	e.body.WriteString(strings.Repeat("  ", e.depth))
	fmt.Fprintf(&e.body, format, args...)
	e.body.WriteByte('\n')
}

// open writes a line that opens a block.
func (e *emitter) open(format string, args ...any) {
	e.line(strings.TrimSpace(format+" {"), args...)
	e.depth++
}

func (e *emitter) close() {
	e.depth--
	e.line("}")
}

// use marks a helper as used and returns its name.
func (e *emitter) use(name string) string {
	e.used[name] = true
	return name
}

// index is the C type of indices.
func (e *emitter) index() string {
	if e.wide {
		return "long long"
	}
	return "int"
}

// dim returns the C expression of a dim: a number or a parameter.
func (e *emitter) dim(d dim.Dim) string {
	c, known := d.Const()
	if known && !e.general {
		return integer(c)
	}
	i := slices.IndexFunc(e.params, d.Equal)
	if known || i < 0 { // extents that are equal by chance are not one parameter
		i = len(e.params)
		e.params = append(e.params, d)
	}
	return "d" + strconv.Itoa(i)
}

// integer returns an integer constant of C.
func integer(c int64) string {
	switch {
	case c == math.MinInt64:
		return "(-9223372036854775807LL - 1)"
	case int64(int32(c)) != c:
		return strconv.FormatInt(c, 10) + "LL"
	}
	return strconv.FormatInt(c, 10)
}

// float returns a float constant of C.
func float(x float64) string {
	f := float32(x)
	switch {
	case f != f:
		return "__int_as_float(0x7fffffff)"
	case math.IsInf(float64(f), 1):
		return "__int_as_float(0x7f800000)"
	case math.IsInf(float64(f), -1):
		return "__int_as_float(0xff800000)"
	}
	s := strconv.FormatFloat(float64(f), 'g', -1, 32)
	if f == 0 && math.Signbit(float64(f)) {
		s = "-0"
	}
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s + "f"
}

// sum joins the terms of an address. Terms that are zero are left out.
func sum(terms ...string) string {
	out := slices.DeleteFunc(terms, func(t string) bool { return t == "" || t == "0" })
	if len(out) == 0 {
		return "0"
	}
	return strings.Join(out, " + ")
}

// times returns a coefficient times an index.
func (e *emitter) times(coef dim.Dim, index string) string {
	switch {
	case isConst(coef, 0) || index == "0":
		return ""
	case isConst(coef, 1):
		return index
	}
	if strings.ContainsAny(index, " +") {
		index = "(" + index + ")"
	}
	return index + " * " + e.dim(coef)
}

func isConst(d dim.Dim, c int64) bool {
	v, ok := d.Const()
	return ok && v == c
}

// fault returns the flag of an instruction's node.
func (e *emitter) fault(origin int32) string {
	i := slices.Index(e.faults, origin)
	if i < 0 {
		i = len(e.faults)
		e.faults = append(e.faults, origin)
	}
	return "faults + " + strconv.Itoa(i)
}

// bounds returns the range of a dim, and whether it is known.
func (e *emitter) bounds(d dim.Dim) (dim.Interval, bool) {
	return d.Bounds(func(s string) (dim.Interval, bool) {
		iv, ok := e.k.Ranges[s]
		return iv, ok
	})
}

// maxIndex leaves room above an index for the threads of the last block.
const maxIndex = math.MaxInt32 - 1<<16

// fits reports whether every number that addresses are made of is known to fit
// in 32 bits.
func (e *emitter) fits() bool {
	within := func(d dim.Dim) bool {
		iv, ok := e.bounds(d)
		return ok && iv.Lo >= -maxIndex && iv.Hi <= maxIndex
	}
	if !within(product(e.k.Rows).Mul(product(e.k.Cols))) {
		return false
	}
	reach := func(a *loop.Access, rows, cols []dim.Dim) bool {
		last := a.Offset
		for i, c := range a.Rows {
			last = last.Add(c.Mul(rows[i]))
		}
		for i, c := range a.Cols {
			last = last.Add(c.Mul(cols[i]))
		}
		if x := a.Index; x != nil {
			if !within(x.Extent) {
				return false
			}
			last = last.Add(x.Stride.Mul(x.Extent))
		}
		return within(a.Offset) && within(last)
	}
	if t := e.k.TopK; t != nil {
		return reach(&t.In, e.k.Rows, []dim.Dim{t.N}) && reach(&t.Values, e.k.Rows, []dim.Dim{dim.Const(t.K)}) && reach(&t.Index, e.k.Rows, []dim.Dim{dim.Const(t.K)})
	}
	if m := e.k.MatMul; m != nil {
		for _, o := range []loop.Operand{m.A, m.B} {
			for _, d := range append([]dim.Dim{m.K, o.Offset, o.Row, o.Col}, o.Batch...) {
				if !within(d) {
					return false
				}
			}
		}
	}
	for _, p := range e.k.Phases {
		for _, list := range [][]loop.Instr{p.Row, p.Body} {
			for _, in := range list {
				if in.Access != nil && !reach(in.Access, e.k.Rows, e.k.Cols) {
					return false
				}
			}
		}
	}
	return true
}

func product(ds []dim.Dim) dim.Dim {
	p := one
	for _, d := range ds {
		p = p.Mul(d)
	}
	return p
}

// storageType is the C type of an element in memory.
func storageType(dt dtype.DType) string {
	switch dt {
	case dtype.F32:
		return "float"
	case dtype.BF16:
		return "bf16"
	case dtype.F16:
		return "f16"
	case dtype.I8:
		return "signed char"
	case dtype.U8, dtype.Bool:
		return "unsigned char"
	case dtype.I16:
		return "short"
	case dtype.I64:
		return "long long"
	}
	return "int"
}

// valueType is the C type of a value of the dtype: what is narrower than 32 bits
// computes in 32.
func valueType(dt dtype.DType) string {
	switch {
	case dt.Float():
		return "float"
	case dt == dtype.I64:
		return "long long"
	}
	return "int"
}

// storage is storageType and marks the type as used.
func (e *emitter) storage(dt dtype.DType) string {
	t := storageType(dt)
	if t == "bf16" || t == "f16" {
		e.use(t)
	}
	return t
}

// finish puts the kernel together.
func (e *emitter) finish(does string) Source {
	args := make([]string, 0, len(e.args)+len(e.params)+1)
	for i, a := range e.args {
		mode := "const "
		if a.Write {
			mode = ""
		}
		args = append(args, fmt.Sprintf("%s%s *a%d", mode, e.storage(a.DType), i))
	}
	var narrow strings.Builder
	for i, d := range e.params {
		what := ""
		if _, known := d.Const(); !known {
			what = fmt.Sprintf(" /* %s */", d)
		}
		args = append(args, fmt.Sprintf("long long p%d%s", i, what))
		fmt.Fprintf(&narrow, "  const %s d%d = p%d;\n", e.index(), i, i)
	}
	if len(e.faults) > 0 {
		args = append(args, "unsigned int *faults")
	}
	bounds := fmt.Sprint(e.threads)
	if e.blocks > 0 {
		bounds += fmt.Sprintf(", %d", e.blocks)
	}
	p := part{does: does, used: e.used, made: e.made}
	p.entry = fmt.Sprintf("extern \"C\" __global__ void __launch_bounds__(%s)\n%s(%s) {\n%s%s}\n", bounds, e.name, strings.Join(args, ", "), narrow.String(), e.body.String())
	return Source{Name: e.name, Arch: e.gpu.String(), Launch: e.launch(), part: p}
}

func (e *emitter) launch() program.Launch {
	l := program.Launch{Grid: e.grid, Block: [3]int32{e.threads, 1, 1}, Shared: e.shared}
	if len(e.params) > 0 {
		l.Attrs = append(l.Attrs, program.Attr{Name: "dims", Kind: program.AttrDims, Dims: e.params})
	}
	if len(e.faults) > 0 {
		nodes := make([]dim.Dim, len(e.faults))
		for i, n := range e.faults {
			nodes[i] = dim.Const(int64(n))
		}
		l.Attrs = append(l.Attrs, program.Attr{Name: "faults", Kind: program.AttrDims, Dims: nodes})
	}
	if e.dependent() {
		l.Attrs = append(l.Attrs, program.Attr{Name: "pdl", Kind: program.AttrBool, Bool: true})
	}
	if e.cluster > 1 {
		l.Attrs = append(l.Attrs, program.Attr{Name: "cluster", Kind: program.AttrDims, Dims: []dim.Dim{dim.Const(int64(e.cluster)), one, one}})
	}
	return l
}

// dependent reports whether kernels use programmatic dependent launch.
func (e *emitter) dependent() bool { return e.gpu.arch >= 90 }

// wait lets the kernel after start, which waits for this one itself, and writes the
// wait for the kernel before.
func (e *emitter) wait() {
	if e.dependent() {
		e.line("%s();", e.use("let_next_start"))
		e.line("%s();", e.use("wait_for_previous"))
	}
}
