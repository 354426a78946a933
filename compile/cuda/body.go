package cuda

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// site is where instructions run: the row and the columns at hand.
type site struct {
	width   int      // neighbouring columns that are visited at once
	rows    []string // indices of the row
	cols    []string // indices of the first of the columns
	pos     string   // its position among all columns
	live    string   // "": the columns exist; else the condition
	turn    string   // of a scan, which of its turns this is
	running bool     // what comes before the columns in a scan is known, and added to
	lead    string   // whether this thread stores what is the same for the whole row
	acc     string   // the sums of a matrix product, width of them
	warps   int      // of a block that share a row; 0: it is one thread's
	cluster int      // blocks that share a row

	load    func(in loop.Instr) (string, bool) // a vector that is in registers already
	element func(in loop.Instr) (string, bool) // an element that is
	keep    func(in loop.Instr, name string)   // is told of vectors that were loaded or stored
	spare   func(in loop.Instr) bool           // whether a store is of what is only kept
	store   func(in loop.Instr, what string)   // takes what is stored in the body instead of memory
}

// value returns the C expression of a value.
func (e *emitter) value(v loop.Value) string {
	if in, ok := e.known[v]; ok {
		switch {
		case in.Op == loop.Dim:
			return e.dim(in.Dim)
		case e.k.Values[v].DType.Float():
			return float(in.Float)
		}
		return integer(in.Int)
	}
	if e.k.Values[v].Row {
		return "r" + strconv.Itoa(int(v))
	}
	return "v" + strconv.Itoa(int(v))
}

// define writes the definition of an instruction's value: rounded if its dtype
// is narrow, and then at hand as it is stored too. To bf16 it is rounded twice, for what is
// computed with it and for what is stored, where two results are one instruction: what
// nobody uses the compiler leaves out.
func (e *emitter) define(in loop.Instr, text string) {
	v := in.Dst
	dt := e.k.Values[v].DType
	name := e.value(v)
	if rounds(e.k, in) {
		raw := "h" + name[1:]
		e.raw[v] = raw
		if dt == dtype.BF16 {
			exact := "f" + name[1:]
			e.line("const float %s = %s;", exact, text)
			text = exact
		}
		e.line("const %s %s = to_%s(%s);", e.storage(dt), raw, storageType(dt), text)
		if dt == dtype.BF16 {
			text = "round_bf16(" + text + ")"
		} else {
			text = "to_f32(" + raw + ")"
		}
	}
	e.line("const %s %s = %s;", valueType(dt), name, text)
}

// rounds reports whether an instruction's result must be rounded to a narrow
// dtype.
func rounds(k *loop.Kernel, in loop.Instr) bool {
	dt := k.Values[in.Dst].DType
	if in.Op == loop.Cast {
		from := k.Values[in.Args[0]].DType
		return (dt == dtype.BF16 || dt == dtype.F16) && from != dt
	}
	return k.Rounds(in)
}

// address returns the element that an access reaches at column offset j of the
// site ("" for the first).
func (e *emitter) address(a *loop.Access, s *site, j string) string {
	terms := []string{e.offset(a.Offset)}
	for i, c := range a.Rows {
		terms = append(terms, e.times(c, s.rows[i]))
	}
	for i, c := range a.Cols {
		terms = append(terms, e.times(c, s.cols[i]))
	}
	if j != "" && len(a.Cols) > 0 {
		terms = append(terms, e.times(a.Cols[len(a.Cols)-1], j))
	}
	if x := a.Index; x != nil {
		at := e.value(x.At)
		if !isConst(x.Stride, 0) {
			terms = append(terms, e.times(x.Stride, "("+e.index()+")"+at))
		}
	}
	return sum(terms...)
}

func (e *emitter) offset(d dim.Dim) string {
	if isConst(d, 0) {
		return ""
	}
	return e.dim(d)
}

// inner is the coefficient of the innermost column axis.
func inner(a *loop.Access) dim.Dim {
	if len(a.Cols) == 0 {
		return dim.Dim{}
	}
	return a.Cols[len(a.Cols)-1]
}

// perColumn reports whether the access's position differs between the columns of
// a row.
func (e *emitter) perColumn(a *loop.Access) bool {
	return a.Index != nil && !e.k.Values[a.Index.At].Row
}

// guard writes the check of an indirect position and returns the condition under
// which the access may be made; "" is always.
func (e *emitter) guard(in loop.Instr, s *site, name string) string {
	x := in.Access.Index
	if x == nil {
		return s.live
	}
	within := "within"
	if in.Op == loop.Store { // -1 stores nothing, and is no fault
		within = "within_or_none"
	}
	check := fmt.Sprintf("%s(%s, %s, %s)", e.use(within), e.value(x.At), e.dim(x.Extent), e.fault(in.Origin))
	if s.live != "" {
		check = s.live + " && " + check
	}
	e.line("const bool %s = %s;", name, check)
	return name
}

// row writes instructions that run once a row.
func (e *emitter) row(list []loop.Instr, s *site) {
	at := *s
	at.cols = slices.Repeat([]string{"0"}, len(e.k.Cols))
	at.live = ""
	for n, in := range list {
		switch in.Op {
		case loop.Const, loop.Dim:
		case loop.Load:
			e.loadOne(in, &at, "")
		case loop.Store:
			cond := e.guard(in, &at, fmt.Sprintf("may%d", n))
			switch {
			case cond == "":
				cond = s.lead
			case s.lead != "":
				cond = s.lead + " && " + cond
			}
			e.storeOne(in, &at, "", cond)
		case loop.Iota:
			e.define(in, e.address(in.Access, &at, ""))
		default:
			e.define(in, e.expression(in, e.operands(in)))
		}
	}
}

func (e *emitter) operands(in loop.Instr) []string {
	args := make([]string, len(in.Args))
	for i, a := range in.Args {
		args[i] = e.value(a)
	}
	return args
}

// loadOne writes the load of a single element.
func (e *emitter) loadOne(in loop.Instr, s *site, j string) {
	if s.element != nil {
		if x, ok := s.element(in); ok {
			e.loaded(in, x)
			return
		}
	}
	name := e.value(in.Dst)
	raw := "x" + name[1:]
	dt := e.k.Args[in.Access.Arg].DType
	cond := e.guard(in, s, "ok"+name[1:])
	text := fmt.Sprintf("a%d[%s]", in.Access.Arg, e.address(in.Access, s, j))
	if cond != "" {
		text = fmt.Sprintf("%s ? %s : %s()", cond, text, e.storage(dt))
		if t := e.storage(dt); t != "bf16" && t != "f16" {
			text = fmt.Sprintf("%s ? a%d[%s] : 0", cond, in.Access.Arg, e.address(in.Access, s, j))
		}
	}
	e.line("const %s %s = %s;", e.storage(dt), raw, text)
	e.loaded(in, raw)
}

// loaded writes the definition of a loaded value from its stored form.
func (e *emitter) loaded(in loop.Instr, raw string) {
	dt := e.k.Args[in.Access.Arg].DType
	to := e.k.Values[in.Dst].DType
	text := e.fromStorage(raw, dt)
	if dt == to {
		e.raw[in.Dst] = raw
	} else {
		text = e.convert(text, dt, to)
	}
	e.line("const %s %s = %s;", valueType(to), e.value(in.Dst), text)
}

// stored returns the element that a store writes.
func (e *emitter) stored(in loop.Instr) string {
	v := in.Args[0]
	from, to := e.k.Values[v].DType, e.k.Args[in.Access.Arg].DType
	if raw, ok := e.raw[v]; ok && from == to {
		return raw
	}
	return e.toStorage(e.value(v), from, to)
}

func (e *emitter) storeOne(in loop.Instr, s *site, j, cond string) {
	if cond != "" {
		cond = "if (" + cond + ") "
	}
	e.line("%sa%d[%s] = %s;", cond, in.Access.Arg, e.address(in.Access, s, j), e.stored(in))
}

// columns writes the instructions of a body for the columns at the site: first
// what is loaded as vectors or once for all columns, then the computation for
// each of them, then the stores in their order.
func (e *emitter) columns(list []loop.Instr, s *site) {
	if s.width == 1 {
		e.oneColumn(list, s)
		return
	}
	move := e.moves(list)
	vectors := e.vectors(list, s)
	e.scanColumns(list, s, vectors)
	runs := e.philoxRuns(list, s)
	outs := make([]string, len(list))
	loops := false
	for n, in := range list {
		switch {
		case in.Op == loop.Store && isConst(inner(in.Access), 1) && !e.perColumn(in.Access):
			v := in.Args[0]
			if x, ok := vectors[v]; ok && e.k.Args[in.Access.Arg].DType == e.k.Values[v].DType {
				outs[n] = x
				continue
			}
			outs[n] = fmt.Sprintf("y%d", n)
			e.line("vec<%s, %d> y%d;", e.storage(e.k.Args[in.Access.Arg].DType), s.width, n)
			loops = true
		case in.Op == loop.Load && move[in.Dst]:
		case in.Op != loop.Const && in.Op != loop.Dim:
			loops = true
		}
	}
	if loops {
		e.line("#pragma unroll")
		e.open("for (int j = 0; j < %d; j++)", s.width)
		for n, in := range list {
			switch in.Op {
			case loop.Load:
				if x, ok := vectors[in.Dst]; ok {
					if !move[in.Dst] {
						e.loaded(in, x+"[j]")
					}
				} else if e.perColumn(in.Access) || !isConst(inner(in.Access), 0) {
					e.loadOne(in, s, "j")
				}
			case loop.Store:
				switch {
				case outs[n] == "":
					e.storeOne(in, s, "j", e.guard(in, s, fmt.Sprintf("may%d", n)))
				case outs[n] == fmt.Sprintf("y%d", n):
					e.line("%s[j] = %s;", outs[n], e.stored(in))
				}
			default:
				if x, ok := runs[in.Dst]; ok {
					e.define(in, x+"[j]")
				} else {
					e.compute(in, s, "j")
				}
			}
		}
		e.close()
	}
	for n, in := range list {
		if in.Op != loop.Store || outs[n] == "" {
			continue
		}
		if s.store != nil {
			s.store(in, outs[n])
			continue
		}
		cond := e.guard(in, s, fmt.Sprintf("may%d", n))
		if cond != "" {
			cond = "if (" + cond + ") "
		}
		e.use("vec")
		if s.spare == nil || !s.spare(in) {
			e.line("%sstore(a%d + %s, %s);", cond, in.Access.Arg, e.address(in.Access, s, ""), outs[n])
		}
		if s.keep != nil {
			s.keep(in, outs[n])
		}
	}
}

// philoxRuns writes the random numbers of neighbouring columns whose indices are
// neighbours, too, from a multiple of the width on, so that a block of the generator
// is computed once, and returns the names.
func (e *emitter) philoxRuns(list []loop.Instr, s *site) map[loop.Value]string {
	out := make(map[loop.Value]string)
	index := make(map[loop.Value]*loop.Access)
	for _, in := range list {
		if in.Op == loop.Iota && isConst(inner(in.Access), 1) && aligned(in.Access, s.width) {
			index[in.Dst] = in.Access
		}
		if in.Op != loop.Philox {
			continue
		}
		a, ok := index[in.Args[2]]
		if !ok || !e.sameForRow(in.Args[0]) || !e.sameForRow(in.Args[1]) {
			continue
		}
		name := "u" + strconv.Itoa(int(in.Dst))
		e.line("const vec<float, %d> %s = %s<%d>(%s, %s, %s);", s.width, name, e.use("philox_run"), s.width, e.value(in.Args[0]), e.value(in.Args[1]), e.address(a, s, ""))
		out[in.Dst] = name
	}
	return out
}

// sameForRow reports whether a value is known before the columns are visited.
func (e *emitter) sameForRow(v loop.Value) bool {
	_, known := e.known[v]
	return known || e.k.Values[v].Row
}

// aligned reports whether an access without an indirect part is at a multiple of v
// wherever the first of v neighbouring columns is.
func aligned(a *loop.Access, v int) bool {
	ok := a.Index == nil && multiple(a.Offset, v)
	for _, d := range a.Rows {
		ok = ok && multiple(d, v)
	}
	for _, d := range a.Cols[:max(len(a.Cols)-1, 0)] {
		ok = ok && multiple(d, v)
	}
	return ok
}

// vectors writes the loads of neighbouring elements, and of what is the same for all
// columns, and returns the names of the former, in their stored form.
func (e *emitter) vectors(list []loop.Instr, s *site) map[loop.Value]string {
	out := make(map[loop.Value]string)
	for _, in := range list {
		if in.Op != loop.Load || e.perColumn(in.Access) {
			continue
		}
		switch c := inner(in.Access); {
		case isConst(c, 1):
			out[in.Dst] = e.loadVector(in, s)
		case isConst(c, 0):
			e.loadOne(in, s, "")
		}
	}
	return out
}

// oneColumn writes a body for a single column.
func (e *emitter) oneColumn(list []loop.Instr, s *site) {
	for _, in := range list {
		switch in.Op {
		case loop.Load:
			e.loadOne(in, s, "")
		case loop.Store:
		default:
			e.compute(in, s, "")
		}
	}
	for n, in := range list {
		switch {
		case in.Op != loop.Store:
		case s.store != nil:
			s.store(in, e.stored(in))
		default:
			e.storeOne(in, s, "", e.guard(in, s, fmt.Sprintf("may%d", n)))
		}
	}
}

// loadVector writes the load of neighbouring elements and returns its name.
func (e *emitter) loadVector(in loop.Instr, s *site) string {
	if s.load != nil {
		if x, ok := s.load(in); ok {
			return x
		}
	}
	e.use("vec")
	name := "x" + strconv.Itoa(int(in.Dst))
	dt := e.storage(e.k.Args[in.Access.Arg].DType)
	cond := e.guard(in, s, "ok"+name[1:])
	text := fmt.Sprintf("load<%d>(a%d + %s)", s.width, in.Access.Arg, e.address(in.Access, s, ""))
	if cond != "" {
		text = fmt.Sprintf("%s ? %s : vec<%s, %d>()", cond, text, dt, s.width)
	}
	e.line("const vec<%s, %d> %s = %s;", dt, s.width, name, text)
	if s.keep != nil {
		s.keep(in, name)
	}
	return name
}

// moves returns the loaded values that are only stored, as what they are.
func (e *emitter) moves(list []loop.Instr) map[loop.Value]bool {
	move := make(map[loop.Value]bool)
	for _, in := range list {
		if x := in.Access; x != nil && x.Index != nil {
			delete(move, x.Index.At)
		}
		if in.Op == loop.Load {
			move[in.Dst] = true
			continue
		}
		for _, a := range in.Args {
			if in.Op != loop.Store || e.k.Args[in.Access.Arg].DType != e.k.Values[a].DType || e.perColumn(in.Access) || !isConst(inner(in.Access), 1) {
				delete(move, a)
			}
		}
	}
	return move
}

// compute writes an instruction that reaches no memory.
func (e *emitter) compute(in loop.Instr, s *site, j string) {
	switch {
	case in.Op == loop.Const, in.Op == loop.Dim:
	case in.Op == loop.Iota:
		e.define(in, e.address(in.Access, s, j))
	case in.Op == loop.Acc:
		if j == "" {
			j = "0"
		}
		e.define(in, s.acc+"["+j+"]")
	case in.Op == loop.CumSum:
		e.scan(in, s)
	case in.Op.Reduces():
		e.accumulate(in, s, j)
	default:
		e.define(in, e.expression(in, e.operands(in)))
	}
}

// accumulate adds a column to a reduction. A sum that begins with +0 is never -0, so
// a zero need not be added: what a condition leaves out of it costs no select.
func (e *emitter) accumulate(in loop.Instr, s *site, j string) {
	r := e.reduction(in)
	x := e.value(in.Args[0])
	var conds []string
	if s.live != "" {
		conds = append(conds, s.live)
	}
	if w, ok := e.orZero[in.Args[0]]; ok && in.Op == loop.Sum {
		conds, x = append(conds, e.value(w.Args[0])), e.value(w.Args[1])
	}
	if in.Op == loop.ArgMax {
		// Columns come in rising order: of equals the first stays. Where nothing is
		// above the least value, it is the first column.
		first := fmt.Sprintf("before(%s, s%d.value)", x, in.Dst)
		if e.number[in.Args[0]] {
			first = fmt.Sprintf("%s > s%d.value", x, in.Dst)
		}
		conds = append(conds, first)
		e.line("if (%s) s%d = {%s, %s};", strings.Join(conds, " && "), in.Dst, x, sum(s.pos, j))
		return
	}
	cond := ""
	if len(conds) > 0 {
		cond = "if (" + strings.Join(conds, " && ") + ") "
	}
	e.line("%ss%d = %s::of(s%d, %s);", cond, in.Dst, r.op, in.Dst, x)
}

// sumType is the C type of a scan's sums: as exact as the reference, whatever the
// order.
func (e *emitter) sumType(in loop.Instr) string {
	if e.k.Values[in.Dst].DType.Float() {
		return "double"
	}
	return "unsigned long long"
}

// scan writes a running sum. All threads of the row come here.
func (e *emitter) scan(in loop.Instr, s *site) {
	n, acc, to := in.Dst, e.sumType(in), valueType(e.k.Values[in.Dst].DType)
	x := e.value(in.Args[0])
	switch {
	case s.warps == 0:
		e.line("s%d += (%s)%s;", n, acc, x)
		e.define(in, fmt.Sprintf("(%s)s%d", to, n))
	case s.running:
		if s.live != "" {
			x = fmt.Sprintf("(%s ? %s : 0)", s.live, x)
		}
		e.line("before%d += (%s)%s;", n, acc, x)
		e.define(in, fmt.Sprintf("(%s)before%d", to, n))
	case s.width > 1:
		e.define(in, fmt.Sprintf("(%s)(before%d + part%d[j])", to, n, n))
	default:
		if s.live != "" {
			x = fmt.Sprintf("(%s ? %s : 0)", s.live, x)
		}
		e.line("const %s x%d_sum = (%s)%s;", acc, n, acc, x)
		e.define(in, fmt.Sprintf("(%s)(%s + x%d_sum)", to, e.before(in, fmt.Sprintf("x%d_sum", n), s), n))
	}
}

// before returns the sum over the threads before this one, and what came before
// them.
func (e *emitter) before(in loop.Instr, x string, s *site) string {
	n, room := in.Dst, "nullptr"
	if s.warps > 1 {
		room = fmt.Sprintf("room%d", n)
	}
	if s.cluster > 1 {
		return fmt.Sprintf("%s<%d, %d, %s>(%s, s%d, %s, over%d + %s * %d)", e.use("running_over_cluster"), s.warps, s.cluster, e.sumType(in), x, n, room, n, s.turn, s.cluster)
	}
	return fmt.Sprintf("%s<%d, %s>(%s, s%d, %s)", e.use("running"), s.warps, e.sumType(in), x, n, room)
}

// scanColumns writes, ahead of the loop over neighbouring columns, what a scan among
// them needs: its running sum within the columns, and the sum before them.
func (e *emitter) scanColumns(list []loop.Instr, s *site, vectors map[loop.Value]string) {
	at := slices.IndexFunc(list, func(in loop.Instr) bool { return in.Op == loop.CumSum })
	if at < 0 || s.warps == 0 || s.running {
		return
	}
	e.partSums(list, s, vectors)
	n := list[at].Dst
	e.line("const %s before%d = %s;", e.sumType(list[at]), n, e.before(list[at], fmt.Sprintf("sum%d", n), s))
}

// partSums writes the running sum of a scan within the columns at the site.
func (e *emitter) partSums(list []loop.Instr, s *site, vectors map[loop.Value]string) {
	at := slices.IndexFunc(list, func(in loop.Instr) bool { return in.Op == loop.CumSum })
	scan := list[at]
	n, acc := scan.Dst, e.sumType(scan)
	needed := map[loop.Value]bool{scan.Args[0]: true}
	for i := at - 1; i >= 0; i-- {
		if in := list[i]; needed[in.Dst] && in.Op != loop.Store {
			for _, a := range in.Args {
				needed[a] = true
			}
			if in.Access != nil && in.Access.Index != nil {
				needed[in.Access.Index.At] = true
			}
		}
	}
	e.line("%s part%d[%d], sum%d = 0;", acc, n, s.width, n)
	e.line("#pragma unroll")
	e.open("for (int j = 0; j < %d; j++)", s.width)
	for _, in := range list[:at] {
		x, vector := vectors[in.Dst]
		switch {
		case in.Op == loop.Store || !needed[in.Dst]:
		case vector:
			e.loaded(in, x+"[j]")
		case in.Op == loop.Load && (e.perColumn(in.Access) || !isConst(inner(in.Access), 0)):
			e.loadOne(in, s, "j")
		case in.Op != loop.Load:
			e.compute(in, s, "j")
		}
	}
	x := e.value(scan.Args[0])
	if s.live != "" {
		x = fmt.Sprintf("(%s ? %s : 0)", s.live, x)
	}
	e.line("sum%d += (%s)%s;", n, acc, x)
	e.line("part%d[j] = sum%d;", n, n)
	e.close()
}
