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
		return n.Op.ID != ir.OpDropout || save != SaveAll
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

// computed reports whether a node of the forward computes v. Other values are available in the
// backward: parameters, weights and states that F does not write, and literals.
func (j *joint) computed(v ir.Value) bool {
	i := j.fb.Func().Values[v].Node
	return i >= 0 && int(i) < j.primal
}

// bytes returns the size of v at the upper bounds of the symbols; math.MaxInt64 if it is larger.
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

// split emits the two functions. kept are the saved values.
func (j *joint) split(d *Derivative, kept []ir.Value, live []bool) error {
	b := j.declare()
	j.emitForward(b, d, kept)
	bw := &backward{joint: j, c: newCopier(b.Func(j.f.Name+".backward"), j.fb.Func()), kept: kept, live: live,
		keeps: map[ir.Value]bool{}, again: map[int32]bool{}, done: map[int32]bool{}}
	for _, v := range kept {
		bw.keeps[v] = true
	}
	bw.emit(d)
	m, err := b.Build()
	if err != nil {
		return err
	}
	d.Module, d.Forward, d.Backward = m, m.Funcs[0], m.Funcs[1]
	return nil
}

// emitForward emits F with the saved values as additional results, and adds them to the plan.
func (j *joint) emitForward(b *ir.Builder, d *Derivative, kept []ir.Value) {
	f := j.fb.Func()
	c := newCopier(b.Func(j.f.Name+".forward"), f)
	for _, p := range f.Params[:len(j.f.Params)] {
		c.param(p)
	}
	need := j.live(true, slices.Concat(j.outs, kept)...)
	for i, n := range f.Nodes[:j.primal] {
		if need[i] {
			c.node(n, false)
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
		returned[i] = c.value(v)
	}
	c.fb.SetPos(j.f.ReturnPos)
	placeAll(c.fb, returned, j.f)
}

// backward emits the backward of a joint.
type backward struct {
	*joint
	c     *copier
	kept  []ir.Value
	keeps map[ir.Value]bool // of kept
	live  []bool            // nodes of the joint
	again map[int32]bool    // nodes of the forward that are repeated
	done  map[int32]bool    // nodes that were emitted
}

// emit emits the function. It repeats nodes right before their first reader, so that their results
// occupy memory as briefly as possible.
func (b *backward) emit(d *Derivative) {
	b.params(d)
	for i := b.primal; i < len(b.fb.Func().Nodes); i++ {
		if b.live[i] {
			b.emitNode(int32(i), &d.Plan)
		}
	}
	b.finish(b.c)
}

// params finds the nodes of the forward to repeat, and adds the parameters of the backward.
func (b *backward) params(d *Derivative) {
	f := b.fb.Func()
	reads := map[ir.Value]bool{}
	var visit func(v ir.Value)
	visit = func(v ir.Value) {
		v = b.read(v)
		if f.Values[v].Kind == ir.ParamValue {
			reads[v] = true
		}
		if i := f.Values[v].Node; b.computed(v) && !b.keeps[v] && !b.again[i] {
			b.again[i] = true
			for _, a := range f.Nodes[i].Args {
				visit(a)
			}
		}
	}
	for i := b.primal; i < len(f.Nodes); i++ {
		if b.live[i] {
			for _, a := range f.Nodes[i].Args {
				visit(a)
			}
		}
	}
	for _, g := range b.results {
		visit(g)
	}
	for k, v := range b.kept {
		b.c.fb.SetPos(f.Values[v].Pos)
		b.c.to[v] = b.c.fb.Param(fmt.Sprintf("saved%d", k), f.Type(v))
		b.c.fb.Place(b.c.to[v], b.fb.Placed(v)...)
	}
	for i, p := range f.Params {
		if i >= len(b.f.Params) {
			b.c.param(p)
		} else if reads[p] {
			b.c.fb.SetPos(f.Values[p].Pos)
			b.c.to[p] = b.c.fb.Param(f.Values[p].Name, f.Type(p)) // not mut: the backward does not write it
			if f.Values[p].Padded {
				b.c.fb.Padded(b.c.to[p])
			}
			b.c.fb.Place(b.c.to[p], f.Values[p].Placements...)
			d.Params = append(d.Params, i)
		}
	}
}

// emitNode emits a node of the joint, after the nodes of the forward that it needs recomputed.
func (b *backward) emitNode(i int32, plan *Plan) {
	if b.done[i] {
		return
	}
	b.done[i] = true
	f := b.fb.Func()
	for _, a := range f.Nodes[i].Args {
		v := b.read(a)
		if k := f.Values[v].Node; k >= 0 && b.again[k] && !b.keeps[v] {
			b.emitNode(k, plan)
		}
		b.c.to[a] = b.c.value(v)
	}
	b.c.node(f.Nodes[i], int(i) < b.primal)
	for _, r := range f.Nodes[i].Results {
		if k := slices.Index(b.kept, r); k >= 0 { // this result is saved; the node is repeated for another one
			b.c.to[r] = b.c.fb.Func().Params[k]
		}
	}
	if int(i) < b.primal {
		plan.Recomputed++
	}
}
