package split

import (
	"fmt"
	"strings"

	"pwc/ir"
)

// String returns the plan as text: each item with its ops and units, their inputs and results, then step
// buffers and the lifetimes of storages. Pieces are named by the first 12 hex digits of their hash.
func (p *Plan) String() string {
	var b strings.Builder
	names := ir.NewFuncPrinter(p.Module, p.Func)
	c := p.Counts()
	fmt.Fprintf(&b, "@%s split at [%s]: %d pieces, %d capturable\n", p.Func.Name, strings.Join(p.Ops, ", "), c.Piecewise, c.Capturable)
	for _, it := range p.Items {
		kind := ""
		if it.Splitting {
			kind = " splitting"
		}
		fmt.Fprintf(&b, "item %d%s:", it.ID, kind)
		for _, i := range it.Nodes {
			fmt.Fprintf(&b, " %s", p.Func.Nodes[i].Name())
		}
		b.WriteByte('\n')
		for _, u := range it.Units {
			fmt.Fprintf(&b, "  unit %d: %s\n", u.Seq, p.unitText(u, names))
		}
		if it.Uncapturable != nil {
			fmt.Fprintf(&b, "  not capturable: %s\n", it.Uncapturable.Msg)
		}
	}
	for _, s := range p.Buffers {
		fmt.Fprintf(&b, "step buffer %s : %s of unit %d\n", names.Value(s.Value), s.Type, s.Unit)
	}
	for _, s := range p.Storages {
		fmt.Fprintf(&b, "storage %s : %s %s\n", names.Value(s.Base), p.Func.Values[s.Base].Type, s.life())
	}
	return b.String()
}

func (s *Storage) life() string {
	from, to, end := "parameter", "unused", ""
	if s.First >= 0 {
		from = fmt.Sprintf("unit %d", s.First)
	}
	if s.Last >= 0 {
		to = fmt.Sprintf("unit %d", s.Last)
	}
	if s.Returned {
		end = ", returned"
	}
	return fmt.Sprintf("from %s to %s%s", from, to, end)
}

func (p *Plan) unitText(u *Unit, names *ir.FuncPrinter) string {
	if u.Call >= 0 {
		return names.Node(u.Call)
	}
	var args []string
	for _, a := range u.Piece.Params {
		text := names.Value(a.Value)
		if a.Mut {
			text = "mut " + text
		}
		args = append(args, text)
	}
	for _, w := range u.Piece.Weights {
		args = append(args, "@"+p.Module.Weights[w].Name)
	}
	for _, s := range u.Piece.States {
		args = append(args, "@"+p.Module.States[s].Name)
	}
	results := make([]string, len(u.Piece.Results))
	for i, r := range u.Piece.Results {
		results[i] = names.Value(r.Value)
	}
	return fmt.Sprintf("piece %x[%s](%s) -> (%s)", u.Piece.Hash[:6], strings.Join(u.Piece.Symbols, ", "), strings.Join(args, ", "), strings.Join(results, ", "))
}
