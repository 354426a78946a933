package runner

import "pwc/ir"

// Bounds are the bounds of a language model's inputs.
type Bounds struct {
	IDs       int64 // token ids are in [0, IDs); 0: unknown
	Positions int64 // positions are in [0, Positions), so this is the length of the longest sequence; 0: unknown
	Learned   int64 // rows of the smallest table that positions index directly; 0: no such table
}

// BoundsOf returns the bounds of a module with @forward(ids, positions) and @logits, and zeros for
// other modules. IDs is the minimum of the columns of the logits and the rows of each table that ids
// index directly in @forward. Positions is the minimum of the module's context and the rows of each
// table that positions index directly, such as GPT-2's learned positions.
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
