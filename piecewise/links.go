package piecewise

import (
	"errors"
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/padding"
)

// indexCheck is an integer parameter whose elements are indices of rows of another parameter,
// or of a value with as many rows. Captured graphs may have more rows of that table than are valid,
// so the host compares the indices that it sends with the number of valid rows.
type indexCheck struct {
	indices, table int     // in function.inputs
	rows           dim.Dim // the number of valid rows
	symbol         int     // in function.symbols, whose value is rows; -1: there is no such symbol
}

// leads reports whether the first extent of a type equals a symbol.
func (fn *function) leads(t ir.Type, symbol string) bool {
	return symbol != "" && t.Rank() > 0 && t.Shape[0].Equal(dim.Sym(symbol))
}

// addInputs describes the parameters. A parameter is linked to a result that an earlier function
// computes, and shares its memory (%h of @logits that of @forward's result), if both have the same type,
// the size symbol of that function counts the rows, padded rows of the parameter do not hold -1, and no
// earlier parameter of fn is linked to the result. The error lists all parameters whose sizes cannot be
// computed.
func (fn *function) addInputs() error {
	linked := map[*function][]int{}
	for _, p := range fn.ir.Params {
		info := fn.ir.Values[p]
		in := input{name: info.Name, value: p, typ: info.Type, written: info.Mut}
		if slices.Contains(fn.plan.slotsOf(fn.ir), info.Name) {
			in.fill = minusOne
		}
		for _, g := range fn.plan.funcs {
			if in.fill != 0 { // padded rows of a result need not hold -1
				break
			}
			if !fn.plan.countsRowsOf(info.Type, g.size) {
				continue
			}
			for j, s := range g.slots {
				if in.from == nil && g.storages[s.storage].typ.Equal(info.Type) && !slices.Contains(linked[g], j) {
					in.from, in.slot = g, j
					linked[g] = append(linked[g], j)
				}
			}
		}
		if in.from == nil {
			in.place = &place{}
		}
		fn.inputByName[in.name] = len(fn.inputs)
		fn.inputs = append(fn.inputs, in)
		fn.storage(p)
	}
	fn.findSymbols()
	var errs []error
	for i := range fn.inputs {
		in := &fn.inputs[i]
		in.counted = slices.IndexFunc(fn.symbols, func(s runSymbol) bool {
			return s.role != isPlain && len(in.typ.Shape) > 0 && slices.Contains(in.typ.Shape[0].Symbols(), s.name)
		})
		in.lead = slices.IndexFunc(fn.symbols, func(s runSymbol) bool { return fn.leads(in.typ, s.name) })
		var err error
		if in.bytes, err = fn.amountOf(in.typ); err != nil {
			errs = append(errs, fmt.Errorf("parameter %%%s of @%s: %w", in.name, fn.ir.Name, err))
			continue
		}
		if in.bytes.symbol < 0 {
			continue
		}
		s := &fn.symbols[in.bytes.symbol]
		in.rows = s.role == countsRows
		if in.lead >= 0 {
			in.rowBytes = in.bytes.per
		}
	}
	fn.findIndices()
	return errors.Join(errs...)
}

// findIndices finds the parameters that contain indices of rows of other parameters which may have
// fewer rows than graphs read.
func (fn *function) findIndices() {
	param := func(v ir.Value) int { return slices.Index(fn.ir.Params, fn.ir.Base(v)) }
	for _, n := range fn.ir.Nodes {
		if n.Op.ID != ir.OpGather && n.Op.ID != ir.OpEmbedding || n.Op.ID == ir.OpGather && n.Axis("axis", fn.ir.Type(n.Args[0]).Rank()) != 0 {
			continue
		}
		table, pos := param(n.Args[0]), param(n.Args[1])
		if pos < 0 {
			continue
		}
		rows := fn.ir.Type(n.Args[0]).Shape[0]
		symbol := fn.symbol(rows.String())
		for i := range fn.inputs {
			in := &fn.inputs[i]
			same := func(c indexCheck) bool { return c.indices == pos && c.table == i && c.rows.Equal(rows) }
			if in.counted >= 0 && (in.from != nil && i == table || fn.holdsMore(in) && (i == table || in.counted == symbol)) && !slices.ContainsFunc(fn.checks, same) {
				fn.checks = append(fn.checks, indexCheck{indices: pos, table: i, rows: rows, symbol: symbol})
			}
		}
	}
}

// maskable reports whether the host can replace indices of a type by -1, which is out of range.
func maskable(dt dtype.DType) bool { return dt.Int() && dt.Signed() }

// holdsMore reports whether a batch symbol other than the size symbol counts the rows of a
// parameter: that symbol has its largest value in a graph, so graphs may read more rows than are valid.
func (fn *function) holdsMore(in *input) bool {
	return in.counted >= 0 && fn.symbols[in.counted].role == isOther
}

// linkedRows returns why graphs cannot serve steps in which a parameter has fewer rows than the
// graphs read. The remaining rows contain data of earlier steps, so the function may select rows
// only by indices. The host masks indices that it sends, for which their type must be signed;
// indices that a function computes are not checked.
func (fn *function) linkedRows() (skipReason, error) {
	refuse := func(in *input, err error) (skipReason, error) {
		if in.from == nil {
			return skipCounted, fmt.Errorf("rows of %%%s, which symbol %s counts: %w", in.name, fn.symbols[in.counted].name, err)
		}
		return skipLinked, fmt.Errorf("rows of %%%s, which is a result of @%s: %w", in.name, in.from.ir.Name, err)
	}
	for i := range fn.inputs {
		in := &fn.inputs[i]
		if !fn.holdsMore(in) {
			continue
		}
		if mix := padding.CheckIndices(fn.plan.module, fn.ir, fn.symbols[in.counted].name); len(mix) > 0 {
			return refuse(in, mix[0].Err)
		}
	}
	for _, c := range fn.checks {
		if pos, in := &fn.inputs[c.indices], &fn.inputs[c.table]; fn.holdsMore(in) && !maskable(pos.typ.DType) {
			return refuse(in, fmt.Errorf("the indices in %%%s cannot be masked: %s is unsigned and has no -1", pos.name, pos.typ.DType))
		}
	}
	return 0, nil
}
