package tree

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pwc/graphs"
	"pwc/graphs/internal/store"
	"pwc/ir/dtype"
	"pwc/runtime/device"
)

// copyAlign is the alignment, in bytes, that an input needs to be read in place (ALIGNMENT of
// torch/_inductor/utils.py): kernels load vectors of 16 bytes.
const copyAlign = 16

// kindOf returns how a recording after the current node reads an input.
func (m *Manager) kindOf(i *instance, j int, t graphs.Tensor) (inputKind, place) {
	if t.Range().Offset%copyAlign != 0 {
		return copied, place{}
	}
	if p, ok := m.cur.find(t.Storage()); ok {
		return managed, p
	}
	if i.static(j) && !m.pool.Has(t.Storage()) {
		return static, place{}
	}
	return copied, place{}
}

// hold gets an owner of each input for the body: the caller's owner of a taken input, else a new one.
func hold(in []Input, keys []int64) (*Inputs, error) {
	ins := &Inputs{Keys: keys, tensors: make([]graphs.Tensor, len(in)), held: make([]bool, len(in))}
	for j := range in {
		ins.tensors[j] = in[j].Tensor
		if !in[j].Take {
			if err := in[j].Tensor.Retain(); err != nil {
				return nil, errors.Join(fmt.Errorf("tree: input %d: %w", j, err), ins.releaseBorrowed(in))
			}
		}
		ins.held[j] = true
	}
	return ins, nil
}

// releaseBorrowed undoes hold.
func (in *Inputs) releaseBorrowed(from []Input) error {
	var errs []error
	for j := range from {
		if in.held[j] && !from[j].Take {
			errs = append(errs, in.Release(j))
		}
	}
	return errors.Join(errs...)
}

// body runs a function's body and settles ownership: each output gets an owner for the caller, and
// everything else that the body made is released.
func (i *instance) body(r *graphs.Recorder, ins *Inputs) ([]graphs.Tensor, error) {
	i.f.bodies++
	outs, err := i.f.def.Body(r, ins)
	if err != nil {
		return nil, errors.Join(err, r.ReleaseMade(nil), ins.releaseAll())
	}
	var given []*graphs.Storage
	var retained []graphs.Tensor
	for o, t := range outs {
		err := t.Alive()
		if s := t.Storage(); err == nil && r.Made(s) && !slices.Contains(given, s) {
			given = append(given, s)
			continue
		}
		if err == nil {
			err = t.Retain()
		}
		if err != nil {
			// ReleaseMade has no effect on the owners that Retain added.
			err = releaseAll(fmt.Errorf("tree: %s: %w", i.maker(o), err), retained)
			return nil, errors.Join(err, r.ReleaseMade(nil), ins.releaseAll())
		}
		retained = append(retained, t)
	}
	if err := errors.Join(r.ReleaseMade(given), ins.releaseAll()); err != nil {
		return nil, releaseAll(err, outs)
	}
	return outs, nil
}

// evacuate copies inputs that are outputs of the previous generation out of the pool, because the
// run may allocate their memory.
func (m *Manager) evacuate(i *instance, given []Input) (in []Input, err error) {
	if len(m.carried) == 0 {
		return given, nil
	}
	in = slices.Clone(given)
	defer func() {
		if err != nil {
			err = errors.Join(err, releaseMoved(given, in))
		}
	}()
	moved := map[*graphs.Storage]graphs.Tensor{}
	for j := range in {
		t := in[j].Tensor
		s := t.Storage()
		if !slices.Contains(m.carried, s) {
			continue
		}
		whole, ok := moved[s]
		if !ok {
			b := s.Buffer()
			if whole, err = m.s.Tensor(fmt.Sprintf("input %d of %s, kept from the generation before", j, i.f.def.Name), dtype.U8, b.Size); err != nil {
				return in, err
			}
			if err := m.out.CopyTo(whole.Range(), s.Tensor(dtype.U8, whole.Shape())); err != nil {
				return in, errors.Join(err, whole.Release())
			}
			moved[s] = whole
		} else if err := whole.Retain(); err != nil {
			return in, err
		}
		v, err := whole.View(t.Offset(), t.DType(), t.Shape()...)
		if err != nil {
			return in, errors.Join(err, whole.Release())
		}
		in[j] = Input{Tensor: v, Take: true}
	}
	return in, m.dropCarried(i)
}

// releaseMoved releases the copies that evacuate made, if the call ends before it owns its inputs.
func releaseMoved(given, in []Input) error {
	var errs []error
	for j := range in {
		if in[j].Tensor.Storage() != given[j].Tensor.Storage() {
			errs = append(errs, in[j].Tensor.Release())
		}
	}
	return errors.Join(errs...)
}

// runEager runs a function outside of the pool.
func (m *Manager) runEager(f *Func, in []Input, out []graphs.Tensor, keys []int64) ([]graphs.Tensor, error) {
	i := &instance{f: f}
	given := in
	in, err := m.evacuate(i, given)
	if err != nil {
		return nil, err
	}
	ins, err := hold(in, keys)
	if err != nil {
		return nil, errors.Join(err, releaseMoved(given, in))
	}
	m.stats.Eager++
	outs, err := i.body(m.s.Eager(m.out).Scoped(), ins)
	return append(out, outs...), err
}

// warmup runs a function eagerly with memory of the pool.
func (m *Manager) warmup(i *instance, in []Input, out []graphs.Tensor) ([]graphs.Tensor, error) {
	given := in
	in, err := m.evacuate(i, given)
	if err != nil {
		return nil, err
	}
	if err := m.side.Wait(m.out); err != nil {
		return nil, errors.Join(err, releaseMoved(given, in))
	}
	n := &node{id: -1 - m.stats.Warmups, f: i, parent: m.cur, warm: true}
	if m.cur != nil {
		n.path = slices.Clone(m.cur.path)
	}
	n.path = append(n.path, n)
	i.warm = true
	ins, err := hold(in, i.keys)
	if err != nil {
		return nil, errors.Join(err, releaseMoved(given, in))
	}
	outs, err := i.body(m.s.EagerIn(m.pool, m.side).Scoped(), ins)
	if err != nil {
		return nil, fmt.Errorf("tree: warm-up of %s: %w", i.f.def.Name, err)
	}
	if err := m.out.Wait(m.side); err != nil {
		return nil, releaseAll(err, outs)
	}
	m.setOutputs(n, in, outs)
	m.stats.Warmups++
	m.transition(i, Warmup, n, "it runs for the first time here")
	m.cur, m.running = n, m.generation
	return m.give(n, outs, out), nil
}

// give appends a node's outputs to out, as handles of their present incarnations.
func (m *Manager) give(n *node, outs, out []graphs.Tensor) []graphs.Tensor {
	for o, t := range outs {
		if n.outputs[o].kind == fresh {
			store.Stamp(t.Storage(), n.f.maker(o), m.generation)
		}
		out = append(out, t.At(t.Storage()))
	}
	return out
}

// setOutputs classifies the outputs of a node that ran.
func (m *Manager) setOutputs(n *node, in []Input, outs []graphs.Tensor) {
	for _, t := range outs {
		x := output{t: t, input: -1}
		s := t.Storage()
		switch p, known := n.parent.find(s); {
		case known:
			x.kind, x.from = earlier, p
			n.at(p).unaliased = false
		case !m.pool.Has(s):
			x.kind = outside
			x.input = slices.IndexFunc(in, func(y Input) bool { return y.Tensor.Storage() == s })
		default:
			if k := slices.IndexFunc(n.outputs, func(y output) bool { return y.storage() == s }); k >= 0 {
				x.kind, x.from = repeated, place{len(n.path) - 1, k}
				n.outputs[k].unaliased = false
			} else {
				x.kind, x.unaliased = fresh, true
			}
		}
		n.outputs = append(n.outputs, x)
	}
}

// releaseAll releases the outputs of a failed call.
func releaseAll(err error, ts []graphs.Tensor) error {
	for _, t := range ts {
		err = errors.Join(err, t.Release())
	}
	return err
}

// record captures a function after the current node, and replays it once.
func (m *Manager) record(i *instance, in []Input, out []graphs.Tensor) (_ []graphs.Tensor, err error) {
	given := in
	if in, err = m.evacuate(i, given); err != nil {
		return nil, err
	}
	if err := m.side.Wait(m.out); err != nil {
		return nil, errors.Join(err, releaseMoved(given, in))
	}
	parent := m.cur
	n := &node{id: m.stats.Recorded, f: i, parent: parent}
	if parent != nil {
		n.path = slices.Clone(parent.path)
	}
	n.path = append(n.path, n)
	before := parent.liveness()
	if parent != nil {
		n.deadBefore = died(parent.liveAfter, before)
	}
	ins, own, err := m.recordInputs(n, given, in)
	if err != nil {
		return nil, err
	}
	n.graph = m.s.NewGraph(graphs.Options{Name: fmt.Sprintf("node %d (%s)", n.id, i.f.def.Name), Pool: m.pool, Stream: m.side,
		Errors: device.CaptureThreadLocal, Generators: i.f.def.Generators})
	var outs []graphs.Tensor
	ran := false
	err = n.graph.Capture(context.Background(), func(r *graphs.Recorder) error {
		ran = true
		var err error
		outs, err = i.body(r, ins)
		return err
	})
	if err != nil {
		if !ran {
			err = errors.Join(err, ins.releaseAll())
		}
		return nil, fmt.Errorf("tree: recording of %s: %w", i.f.def.Name, err)
	}
	i.warm = true
	if n.graph.Nodes() == 0 {
		m.warn(EmptyGraph, fmt.Sprintf("the graph of %s is empty: its body gave no work to the recorder", i.f.def.Name))
	}
	n.deadAfter = died(before, parent.liveness())
	m.setOutputs(n, own, outs)
	n.liveAfter = n.liveness()
	n.place()
	fail := func(err error) error {
		err = releaseAll(err, outs)
		return errors.Join(fmt.Errorf("tree: recording of %s: %w", i.f.def.Name, err), n.graph.Reset())
	}
	if n.state, err = m.pool.Checkpoint(); err != nil {
		return nil, fail(err)
	}
	if err = m.out.Wait(m.side); err == nil {
		err = n.graph.Launch(m.out)
	}
	if err != nil {
		return nil, fail(err)
	}
	m.stats.Recorded++
	if parent != nil {
		parent.add(n)
	} else {
		if len(i.roots) == 0 {
			m.instances = append(m.instances, i)
		}
		i.roots = append(i.roots, n)
		i.rooted = true
	}
	m.transition(i, Recording, n, "no recording serves the call")
	m.cur, m.running = n, m.generation
	return m.give(n, outs, out), nil
}

// recordInputs sets the inputs of a new node, copies those that are not read in place into the pool,
// and gets an owner of each for the body. own are the inputs of the call, with copies in place of the
// copied inputs. given are the inputs before evacuate.
func (m *Manager) recordInputs(n *node, given, in []Input) (_ *Inputs, own []Input, err error) {
	i := n.f
	ins := &Inputs{Keys: i.keys, tensors: make([]graphs.Tensor, len(in)), held: make([]bool, len(in))}
	own = make([]Input, len(in))
	prep := m.s.EagerIn(m.pool, m.side)
	for j := range in {
		t := in[j].Tensor
		kind, from := m.kindOf(i, j, t)
		x := nodeInput{kind: kind, at: t.Range(), from: from, storage: t.Storage(), off: t.Offset()}
		if kind == copied {
			// Copies go to the end of free memory, so that the body's allocations get the
			// same addresses as in a warm-up, which has no copies.
			c, err := prep.AllocLast(fmt.Sprintf("copy of input %d of %s", j, i.f.def.Name), t.DType(), t.Shape()...)
			if err == nil {
				x.at = c.Range()
				ins.tensors[j], ins.held[j] = c, true
				err = prep.Copy(c, t)
			}
			if err != nil {
				return nil, nil, errors.Join(fmt.Errorf("tree: recording of %s: %w", i.f.def.Name, err), ins.releaseAll(), releaseMoved(given, in))
			}
			n.copies = append(n.copies, j)
		}
		n.inputs = append(n.inputs, x)
	}
	for j := range in {
		switch {
		case n.inputs[j].kind == copied:
			own[j] = Input{Tensor: ins.tensors[j]}
			if in[j].Take {
				err = errors.Join(err, in[j].Tensor.Release())
			}
		default:
			own[j] = in[j]
			ins.tensors[j] = in[j].Tensor
			if !in[j].Take {
				err = errors.Join(err, in[j].Tensor.Retain())
			}
			ins.held[j] = true
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, ins.releaseAll())
	}
	return ins, own, nil
}

// execute replays a recording. It allocates no memory of the pool.
func (m *Manager) execute(n *node, in []Input, out []graphs.Tensor) ([]graphs.Tensor, error) {
	if err := m.copyInputs(n, in); err != nil {
		return nil, fmt.Errorf("tree: replay of node %d (%s): %w", n.id, n.f.f.def.Name, err)
	}
	if err := m.dropCarried(n.f); err != nil {
		return nil, err
	}
	if err := n.graph.Launch(m.out); err != nil {
		return nil, err
	}
	at := m.out.Tick()
	for o := range n.outputs {
		x := &n.outputs[o]
		t := x.t
		switch x.kind {
		case fresh:
			if err := store.Revive(t.Storage(), m.generation, at); err != nil {
				return nil, err
			}
			t = t.At(t.Storage())
		case outside:
			if x.input >= 0 {
				t = t.At(in[x.input].Tensor.Storage())
			}
			if err := t.Retain(); err != nil {
				return nil, err
			}
		case earlier, repeated:
			t = t.At(n.at(x.from).storage())
			if err := t.Retain(); err != nil {
				return nil, err
			}
		}
		out = append(out, t)
	}
	for j := range in {
		if in[j].Take {
			// dropCarried made an input from the previous generation stale.
			if err := in[j].Tensor.Release(); err != nil && !errors.Is(err, graphs.ErrStale) {
				return nil, err
			}
		}
	}
	m.stats.Executed++
	if m.state != Execution || m.opts.Log != nil {
		m.transition(n.f, Execution, n, "its checks hold")
	}
	m.cur, m.running = n, m.generation
	return out, nil
}

// copyInputs copies inputs into the memory that a recording reads. An input that is an output of the
// previous generation may overlap the destination of another copy, or a part of its own; then all copied
// inputs are first staged outside of the pool.
func (m *Manager) copyInputs(n *node, in []Input) error {
	for a, j := range n.copies {
		src := in[j].Tensor.Range()
		if !m.pool.Has(in[j].Tensor.Storage()) {
			continue
		}
		for b, k := range n.copies {
			if dst := n.inputs[k].at; graphs.Overlaps(src, dst) && (a != b || src != dst) {
				return m.stageInputs(n, in)
			}
		}
	}
	for _, j := range n.copies {
		if in[j].Tensor.Range() == n.inputs[j].at {
			continue
		}
		if err := m.out.CopyTo(n.inputs[j].at, in[j].Tensor); err != nil {
			return err
		}
	}
	return nil
}

// stageInputs copies inputs through memory outside of the pool, which the node keeps.
func (m *Manager) stageInputs(n *node, in []Input) error {
	if n.staging == nil {
		for _, j := range n.copies {
			t, err := m.s.Tensor(fmt.Sprintf("staging of input %d of node %d (%s)", j, n.id, n.f.f.def.Name), in[j].Tensor.DType(), in[j].Tensor.Shape()...)
			if err != nil {
				return errors.Join(err, n.dropStaging())
			}
			n.staging = append(n.staging, t)
		}
	}
	for a, j := range n.copies {
		if err := m.out.CopyTo(n.staging[a].Range(), in[j].Tensor); err != nil {
			return err
		}
	}
	for a, j := range n.copies {
		if err := m.out.CopyTo(n.inputs[j].at, n.staging[a]); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) dropStaging() error {
	var errs []error
	for _, t := range n.staging {
		errs = append(errs, t.Release())
	}
	n.staging = nil
	return errors.Join(errs...)
}
