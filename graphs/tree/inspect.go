package tree

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pwc/graphs"
)

// Place is an output of the current path: the depth of its node and its number there.
type Place = place

// Inspection is the state of a manager between two calls.
type Inspection struct {
	State      State
	Node       int  // the current node, if HasNode
	Parent     int  // its parent, if HasParent
	HasNode    bool // false: the next call starts at a root
	HasParent  bool
	Roots      int
	Children   []int // number of descendants of each root, in the order of the roots' recording
	Generation int32 // generations begun
	Pending    bool
	Live       int // storages of the path that have owners

	// Of the current node.
	Unaliased  []bool
	DeadBefore []Place
	DeadAfter  []Place

	Stats Stats
}

// Inspect returns the manager's present state.
func (m *Manager) Inspect() (Inspection, error) {
	if err := m.enter(); err != nil {
		return Inspection{}, err
	}
	defer m.leave()
	x := Inspection{State: m.state, Generation: m.generation, Pending: m.pending, Live: len(m.cur.storages()), Stats: m.stats}
	x.Stats.Skips = maps.Clone(m.stats.Skips)
	for _, r := range m.roots() {
		x.Roots++
		x.Children = append(x.Children, r.descendants())
	}
	if n := m.cur; n != nil {
		x.HasNode, x.Node = true, n.id
		if n.parent != nil {
			x.HasParent, x.Parent = true, n.parent.id
		}
		for i := range n.outputs {
			x.Unaliased = append(x.Unaliased, n.outputs[i].unaliased)
		}
		x.DeadBefore, x.DeadAfter = slices.Clone(n.deadBefore), slices.Clone(n.deadAfter)
	}
	return x, nil
}

// roots returns the roots in the order of their recording.
func (m *Manager) roots() []*node {
	var all []*node
	for _, i := range m.instances {
		all = append(all, i.roots...)
	}
	slices.SortFunc(all, func(a, b *node) int { return a.id - b.id })
	return all
}

// Explain returns which recording would serve a call of f now, or which checks fail. It runs nothing. It
// does not tell whether the call would be skipped or an error because of written inputs, the re-recording
// limit, Options.FixedStatics or [ErrBorrowed].
func (m *Manager) Explain(f *Func, in []Input, keys ...int64) (string, error) {
	if err := m.enter(); err != nil {
		return "", err
	}
	defer m.leave()
	if f.m != m {
		return "", fmt.Errorf("%w: %s is a function of another manager", graphs.ErrArguments, f.def.Name)
	}
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	i := &instance{f: f, keys: keys} // without recordings
	for _, x := range f.byKey {
		if slices.Equal(x.keys, keys) {
			i = x
		}
	}
	warmsUp, isRecorded := "warms up", "is recorded"
	switch m.sealed {
	case Refuse:
		warmsUp, isRecorded = "is refused (sealed)", "is refused (sealed)"
	case Eager:
		warmsUp, isRecorded = "runs eagerly (sealed)", "runs eagerly (sealed)"
	}
	starts := m.mayStart()
	if m.opts.Generations == ByCall && !m.marked {
		starts = !m.pending
	}
	cur := m.cur
	switch {
	case len(keys) > 0 && m.opts.CaptureSizes != nil && !slices.Contains(m.opts.CaptureSizes, keys[0]):
		say("%s runs eagerly: %d is not among the capture sizes %v", f.def.Name, keys[0], m.opts.CaptureSizes)
		return b.String(), nil
	case !i.warm && !m.opts.SkipWarmup:
		say("%s %s: it has not warmed up with integer inputs %v", f.def.Name, warmsUp, keys)
		return b.String(), nil
	case m.state == Recording || m.state == Warmup:
		switch {
		case starts:
			say("a generation starts: the outputs of the path become stale")
			cur = nil
		case cur.allDead():
			say("all outputs of the path are released")
			cur = nil
		case m.state == Warmup:
			say("%s %s after node %d, which is a warm-up: its addresses are not fixed", f.def.Name, warmsUp, cur.id)
			return b.String(), nil
		default:
			say("%s %s after node %d, which was recorded last", f.def.Name, isRecorded, cur.id)
			return b.String(), nil
		}
	}
	served := func(where string, nodes []*node) bool {
		for _, n := range nodes {
			if why, _ := m.serves(n, in); why != nil {
				say("node %d %s does not serve: %v", n.id, where, why)
				continue
			}
			say("node %d %s serves", n.id, where)
			return true
		}
		return false
	}
	if cur != nil {
		if served(fmt.Sprintf("after node %d", cur.id), cur.candidates(i)) {
			return b.String(), nil
		}
		if !starts && !cur.allDead() {
			say("%s %s after node %d, which has live outputs", f.def.Name, isRecorded, cur.id)
			return b.String(), nil
		}
		say("the path of node %d ends", cur.id)
	}
	if !served("at the root", i.roots) {
		say("%s %s as a root", f.def.Name, isRecorded)
	}
	return b.String(), nil
}

// keepOutputs makes the live outputs of a replayed path own their blocks, so that they outlive the
// recordings.
func (m *Manager) keepOutputs() error {
	if m.state != Execution || m.cur == nil || len(m.cur.storages()) == 0 {
		return nil
	}
	return m.checkpoint(m.cur.f)
}

// Reset drops all recordings. Functions stay registered and warm up again. Outputs with owners stay
// valid until their last release. Reset also ends Seal, and the effect of MarkStep on
// Options.Generations.
func (m *Manager) Reset() error {
	if err := m.enter(); err != nil {
		return err
	}
	defer m.leave()
	return m.reset()
}

func (m *Manager) reset() error {
	errs := []error{m.keepOutputs()}
	for _, r := range m.roots() {
		r.each(func(n *node) { errs = append(errs, n.graph.Reset(), n.dropStaging()) })
	}
	for _, i := range m.instances {
		i.roots = nil
	}
	for _, i := range m.all {
		i.roots, i.rooted, i.warm, i.hints, i.again = nil, false, false, nil, nil
	}
	m.instances, m.cur, m.state = nil, nil, Idle
	m.marked, m.pending, m.running = false, false, -1
	m.sealed = Open
	// Outputs with owners keep the pool. Later recordings get a new one, so that their
	// checkpoints do not contain the blocks of these outputs.
	errs = append(errs, m.pool.Release())
	m.pool = m.s.NewManagedPool("trees")
	return errors.Join(errs...)
}

// Close drops all recordings, releases the pool and returns the manager's stream. Outputs with owners
// stay valid until their last release. A second Close does nothing.
func (m *Manager) Close() error {
	if !m.busy.CompareAndSwap(false, true) {
		return graphs.ErrBusy
	}
	defer m.leave()
	if m.closed {
		return nil
	}
	m.closed = true
	err := errors.Join(m.reset(), m.pool.Release())
	m.s.ReturnStream(m.side)
	return err
}
