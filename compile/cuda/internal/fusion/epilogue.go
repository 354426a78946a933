package fusion

import (
	"slices"

	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// epilogueOf returns a nest as an epilogue of the GEMM, if it can be one.
func epilogueOf(k, gemm *loop.Kernel) (Epilogue, bool) {
	t := Epilogue{Nest: k, Units: 1, PartOf: make(map[loop.Value]int)}
	store := nest.OnlyStore(gemm).Access
	t.Result = store.Arg
	if k.TopK != nil || k.MatMul != nil || k.Serial || nest.Rowwise(k) || !nest.IsConst(nest.Inner(store), 1) {
		return t, false
	}
	own := slices.Concat(k.Rows, k.Cols)
	t.Rows = len(k.Rows) > 0 && k.Rows[0].Equal(gemm.Rows[0])
	if t.Rows {
		own = own[1:]
	} else if !nest.IsConst(gemm.Rows[0], 1) {
		return t, false
	}
	for _, d := range own {
		n, known := d.Const()
		if !known || n <= 0 {
			return t, false
		}
		t.Extents, t.Units = append(t.Extents, n), t.Units*n
	}
	cols, _ := gemm.Cols[0].Const()
	for in := range nest.Instrs(k) {
		if in.Access == nil || in.Access.Arg != t.Result {
			continue
		}
		at, steps, ok := t.reaches(in.Access, store)
		if !ok || in.Op != loop.Load || t.Steps != nil && !slices.Equal(t.Steps, steps) {
			return t, false
		}
		last := at
		for i, s := range steps {
			last += s * (t.Extents[i] - 1)
		}
		if at < 0 || last >= cols {
			return t, false
		}
		t.Steps = steps
		part := slices.Index(t.Parts, at)
		if part < 0 {
			part = len(t.Parts)
			t.Parts = append(t.Parts, at)
		}
		t.PartOf[in.Dst] = part
	}
	n := len(t.Parts)
	return t, n > 0 && n <= MaxParts && n&(n-1) == 0 && t.spaced()
}

// spaced reports whether Parts have equal distances, in their order or, after it has sorted them, in
// rising order.
func (t *Epilogue) spaced() bool {
	equal := func(parts []int64) bool {
		for i := 2; i < len(parts); i++ {
			if parts[i]-parts[i-1] != parts[1]-parts[0] {
				return false
			}
		}
		return true
	}
	if equal(t.Parts) {
		return true
	}
	rising := slices.Sorted(slices.Values(t.Parts))
	for v, part := range t.PartOf {
		t.PartOf[v] = slices.Index(rising, t.Parts[part])
	}
	t.Parts = rising
	return equal(rising)
}

// reaches returns the column of the GEMM that an access of the nest reaches: at + the sum of the nest's
// indices times steps.
func (t *Epilogue) reaches(a, store *loop.Access) (at int64, steps []int64, ok bool) {
	own := slices.Concat(a.Rows, a.Cols)
	if t.Rows {
		if !own[0].Equal(store.Rows[0]) {
			return 0, nil, false
		}
		own = own[1:]
	}
	at, ok = a.Offset.Sub(store.Offset).Const()
	steps = make([]int64, len(own))
	for i, d := range own {
		s, known := d.Const()
		if !known || s < 0 {
			return 0, nil, false
		}
		steps[i] = s
	}
	return at, steps, ok && a.Index == nil
}
