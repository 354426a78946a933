package autodiff

import (
	"fmt"
	"math"
	"slices"

	"pwc/ir"
)

// partition cuts the joint into a forward and a backward.
func (j *joint) partition(save Save) (*Derivative, error) {
	f := j.fb.Func()
	live := j.live(false, j.results...)
	var used []ir.Value // values of the forward that the backward reads
	for i := j.primal; i < len(f.Nodes); i++ {
		for _, a := range f.Nodes[i].Args {
			if live[i] && j.computed(a) {
				used = append(used, a)
			}
		}
	}
	d := &Derivative{Outputs: j.outputs, Targets: j.targets}
	if err := j.split(d, j.choose(save, used), live); err != nil {
		return nil, err
	}
	return d, nil
}

// repeatable reports whether the backward may compute a node of the forward again.
func (j *joint) repeatable(n *ir.Node, save Save) bool {
	if n.Extern != nil || len(n.Versions) > 0 || len(n.Results) == 1 && j.isCopy[n.Results[0]] {
		return false
	}
	switch n.Op.Class {
	case ir.Creation:
		return true
	case ir.Draw:
		return n.Op.Name != "dropout" || save != SaveAll
	case ir.Pointwise, ir.Layout:
		return save != SaveAll
	}
	return save == SaveNothing
}

// read returns the value that the backward reads in place of v.
func (j *joint) read(v ir.Value) ir.Value {
	if c, ok := j.frozen[v]; ok {
		return c
	}
	return v
}

// computed reports whether a node of the forward computes v. The backward has what no node
// computes: parameters, weights and states that F does not write, and literals.
func (j *joint) computed(v ir.Value) bool {
	i := j.fb.Func().Values[v].Node
	return i >= 0 && int(i) < j.primal
}

// bytes returns the size of v at the upper bounds of the symbols.
func (j *joint) bytes(v ir.Value) int64 {
	t := j.fb.Type(v)
	iv, ok := t.Elements().Bounds(j.m.Bounds)
	if !ok {
		return math.MaxInt64
	}
	n, ok := t.DType.CheckedBytes(iv.Hi)
	if !ok {
		return math.MaxInt64
	}
	return n
}

// split emits the two functions, for the values that are saved.
func (j *joint) split(d *Derivative, kept []ir.Value, live []bool) error {
	f := j.fb.Func()
	b := j.declare()
	// forward
	fw := newCopier(b.Func(j.f.Name+".forward"), f)
	for _, p := range f.Params[:len(j.f.Params)] {
		fw.param(p)
	}
	need := j.live(true, slices.Concat(j.outs, kept)...)
	for i, n := range f.Nodes[:j.primal] {
		if need[i] {
			fw.node(n, false)
		}
	}
	results := slices.Clone(j.outs)
	for _, v := range kept {
		s := Saved{Result: slices.Index(results, v), Type: f.Type(v), Loc: f.Def(v).Loc, Op: f.Def(v).Name()}
		if s.Result < 0 {
			s.Result, s.Bytes = len(results), j.bytes(v)
			results = append(results, v)
		}
		d.Plan.Saved = append(d.Plan.Saved, s)
		if d.Plan.Bytes += s.Bytes; d.Plan.Bytes < 0 {
			d.Plan.Bytes = math.MaxInt64
		}
	}
	returned := make([]ir.Value, len(results))
	for i, v := range results {
		returned[i] = fw.value(v)
	}
	fw.fb.SetPos(j.f.ReturnPos)
	fw.fb.Return(returned...)

	// backward
	saved := map[ir.Value]bool{}
	for _, v := range kept {
		saved[v] = true
	}
	again, reads := map[int32]bool{}, map[ir.Value]bool{}
	var visit func(v ir.Value)
	visit = func(v ir.Value) {
		v = j.read(v)
		if f.Values[v].Kind == ir.ParamValue {
			reads[v] = true
		}
		if i := f.Values[v].Node; j.computed(v) && !saved[v] && !again[i] {
			again[i] = true
			for _, a := range f.Nodes[i].Args {
				visit(a)
			}
		}
	}
	for i := j.primal; i < len(f.Nodes); i++ {
		if live[i] {
			for _, a := range f.Nodes[i].Args {
				visit(a)
			}
		}
	}
	for _, g := range j.results {
		visit(g)
	}
	bw := newCopier(b.Func(j.f.Name+".backward"), f)
	for k, v := range kept {
		bw.fb.SetPos(f.Values[v].Pos)
		bw.to[v] = bw.fb.Param(fmt.Sprintf("saved%d", k), f.Type(v))
	}
	for i, p := range f.Params {
		if i >= len(j.f.Params) {
			bw.param(p)
		} else if reads[p] {
			bw.fb.SetPos(f.Values[p].Pos)
			bw.to[p] = bw.fb.Param(f.Values[p].Name, f.Type(p)) // not mut: the backward does not write it
			if f.Values[p].Padded {
				bw.fb.Padded(bw.to[p])
			}
			d.Params = append(d.Params, i)
		}
	}
	// Nodes are repeated right before their first reader, so that they live as briefly as they can.
	done := map[int32]bool{}
	var emit func(i int32)
	emit = func(i int32) {
		if done[i] {
			return
		}
		done[i] = true
		for _, a := range f.Nodes[i].Args {
			if k := f.Values[j.read(a)].Node; k >= 0 && again[k] && !saved[j.read(a)] {
				emit(k)
			}
			bw.to[a] = bw.value(j.read(a))
		}
		bw.node(f.Nodes[i], int(i) < j.primal)
		for _, r := range f.Nodes[i].Results {
			if k := slices.Index(kept, r); k >= 0 { // saved all the same, where another result is repeated
				bw.to[r] = bw.fb.Func().Params[k]
			}
		}
		if int(i) < j.primal {
			d.Plan.Recomputed++
		}
	}
	for i := j.primal; i < len(f.Nodes); i++ {
		if live[i] {
			emit(int32(i))
		}
	}
	j.finish(bw)
	m, err := b.Build()
	if err != nil {
		return err
	}
	d.Module, d.Forward, d.Backward = m, m.Funcs[0], m.Funcs[1]
	return nil
}
