package runner

import "pwc/ir"

// Bounds is what a language model's module says of its inputs: indices beyond them are
// out of range (C12).
type Bounds struct {
	IDs       int64 // token ids are in [0, IDs); 0: unknown
	Positions int64 // tokens of the longest sequence; 0: unknown
	Learned   int64 // positions that tables have rows for; 0: no table is indexed by them
}

// BoundsOf returns the bounds of a module with @forward(ids, positions) and @logits. Of
// ids they are the rows of every table that @forward looks them up in, and the columns of
// the logits; of positions the module's context, and the rows of every table that they are
// looked up in, such as GPT-2's learned positions. A module without those functions has none.
func BoundsOf(m *ir.Module) Bounds {
	var b Bounds
	least := func(bound *int64, n int64) {
		if n > 0 && (*bound == 0 || n < *bound) {
			*bound = n
		}
	}
	if m == nil {
		return b
	}
	fwd, lg := m.Func(forwardFunc), m.Func(logitsFunc)
	if fwd == nil || lg == nil || len(fwd.Params) != 2 || len(lg.ResultTypes) == 0 {
		return b
	}
	if t := lg.ResultTypes[0]; t.Rank() == 2 {
		n, _ := t.Shape[1].Const()
		least(&b.IDs, n)
	}
	for _, n := range fwd.Nodes {
		if n.Op.ID != ir.OpEmbedding && n.Op.ID != ir.OpGather {
			continue
		}
		t, axis := fwd.Type(n.Args[0]), 0
		if n.Op.ID == ir.OpGather {
			axis = n.Axis("axis", t.Rank())
		}
		rows, _ := t.Shape[axis].Const()
		switch n.Args[1] {
		case fwd.Params[0]:
			least(&b.IDs, rows)
		case fwd.Params[1]:
			least(&b.Learned, rows)
		}
	}
	least(&b.Positions, b.Learned)
	least(&b.Positions, m.Context)
	return b
}
