package cuda

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"pwc/internal/cuda/driver"
	"pwc/runtime/device"
)

// recording is the driver's graph of a capture. A template and its executable graphs share it; the
// last of them destroys it.
type recording struct {
	dev   *Device
	raw   driver.Graph
	users atomic.Int32
	empty bool // it has no nodes
	ops   []operation
	notes []device.Recorded // names and dependencies, by operation
	reach reach
}

// newRecording returns a recording with one user.
func newRecording(d *Device, raw driver.Graph) *recording {
	r := &recording{dev: d, raw: raw}
	r.users.Store(1)
	return r
}

// destroy ends a use; the last one destroys the driver's graph. The context must be current.
func (r *recording) destroy() error {
	if r.users.Add(-1) > 0 {
		return nil
	}
	return r.dev.drv.GraphDestroy(r.raw)
}

// drop ends a use.
func (r *recording) drop(what string) error { return r.dev.release(what, r) }

// verify compares the driver's nodes with the planned ones; open allows more of openTypes.
func (r *recording) verify(planned *[nodeTypes]int, open bool) error {
	if err := r.dev.enter(); err != nil {
		return err
	}
	defer r.dev.leave()
	types, err := r.dev.drv.GraphNodeTypes(r.raw)
	if err != nil {
		return err
	}
	r.empty = len(types) == 0
	return matches(types, planned, open)
}

// Nodes returns the number of recorded operations. A call of a library may be several
// nodes of the driver.
func (r *recording) Nodes() int { return len(r.ops) }

// buffers returns the memory that an operation was given.
func (o *operation) buffers() []device.Buffer {
	if o.step == nil || o.args != nil {
		return o.args
	}
	out := make([]device.Buffer, len(o.step.of.Args))
	for i, a := range o.step.of.Args {
		out[i] = o.bound.assigned.Buffers[a]
	}
	return out
}

// given returns the memory of the call that recorded an operation.
func (o *operation) given() []device.Buffer {
	if o.call == nil {
		return nil
	}
	out := []device.Buffer{o.call.Scratch}
	for i := range o.call.Args {
		out = append(out, o.call.Args[i].Buffer)
	}
	return out
}

// Describe returns the recorded operations. It cannot tell which of its arguments a kernel
// reads and which it writes.
func (r *recording) Describe() []device.Node { return describeNodes(r.ops, r.notes) }

func describeNodes(ops []operation, notes []device.Recorded) []device.Node {
	out := make([]device.Node, len(ops))
	for i := range out {
		ops[i].describe(&out[i])
		out[i].Recorded = notes[i]
	}
	return out
}

func (o *operation) describe(n *device.Node) {
	args := o.buffers()
	n.Kind, n.Name = o.kind, o.name
	switch o.kind {
	case device.NodeCopy:
		n.Writes, n.Reads, n.Known = device.Present(args[:1]), device.Present(args[1:]), true
	case device.NodeFill:
		n.Writes, n.Known = device.Present(args), true
	default:
		n.Reads = device.Present(slices.Concat(args, o.given()))
		n.Writes = n.Reads
	}
}

// Template makes executable graphs from one recording.
type Template struct {
	*recording
	closed bool
}

// Instantiate makes a graph and uploads it.
func (t *Template) Instantiate() (device.Graph, error) {
	const what = "instantiate"
	if err := t.dev.usable(what); err != nil {
		return nil, err
	}
	if t.closed {
		return nil, refuse(what, device.ErrClosed)
	}
	t.users.Add(1)
	g, err := t.instantiate(nil)
	if err != nil {
		return nil, errors.Join(t.dev.wrap(what, err), t.drop(what))
	}
	return g, nil
}

// Close drops the recording; graphs that were made from it stay.
func (t *Template) Close() error {
	const what = "close of a template"
	if t.closed || t.dev.shut.Load() {
		return refuse(what, device.ErrClosed)
	}
	t.closed = true
	return t.dev.release(what, t)
}

// Graph is an instantiated and uploaded CUDA graph. It owns no memory: all memory that it uses
// must exist when it is launched.
type Graph struct {
	dev    *Device
	rec    *recording
	exec   driver.GraphExec // 0: the graph has no nodes
	ops    []operation      // of the recording, with the addresses of the last Rebind
	reach  *reach
	closed bool

	rebound bool
	spoiled error // a Rebind failed, and some of its changes could not be undone
}

// instantiate makes a graph, which takes over a use of the recording, and uploads it on
// s; nil: on the device's own stream. After an error the caller still has the use.
func (r *recording) instantiate(s *Stream) (*Graph, error) {
	d := r.dev
	g := &Graph{dev: d, rec: r, ops: r.ops, reach: &r.reach}
	if !r.empty {
		if err := d.check(g.makeExec(s)); err != nil {
			return nil, err
		}
	}
	d.adopt(g)
	return g, nil
}

func (g *Graph) makeExec(s *Stream) error {
	d := g.dev
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	mode, err := d.relax() // the thread may capture on another stream
	if err != nil {
		return err
	}
	if g.exec, err = d.drv.GraphInstantiate(g.rec.raw); err == nil {
		if s != nil {
			err = d.drv.GraphUpload(g.exec, s.handle)
		} else {
			d.util.Lock()
			err = d.drv.GraphUpload(g.exec, d.util.stream)
			d.util.Unlock()
		}
		if err != nil {
			err = errors.Join(d.check(err), d.drv.GraphExecDestroy(g.exec))
		}
	}
	if modeErr := d.unrelax(mode); modeErr != nil {
		if err == nil { // the mode is still relaxed, so the capture does not forbid the call
			err = d.drv.GraphExecDestroy(g.exec)
		}
		return errors.Join(modeErr, err)
	}
	return err
}

// Nodes returns the number of recorded operations.
func (g *Graph) Nodes() int { return g.rec.Nodes() }

// Describe returns the recorded operations.
func (g *Graph) Describe() []device.Node { return describeNodes(g.ops, g.rec.notes) }

// LaunchGraph replays a graph. While capturing, the graph becomes part of the graph
// that is recorded.
func (s *Stream) LaunchGraph(g device.Graph) error {
	const what = "graph launch"
	if err := s.usable(what); err != nil {
		return err
	}
	x, ok := g.(*Graph)
	switch {
	case !ok || x.dev != s.dev:
		return refuse(what, device.ErrForeignStream)
	case x.closed:
		return refuse(what, device.ErrClosed)
	}
	if x.spoiled != nil {
		return refuse(what, x.spoiled)
	}
	if err := x.reach.alive(); err != nil {
		return refuse(what, err)
	}
	if x.exec == 0 {
		return nil
	}
	if err := s.begin(); err != nil {
		return s.dev.wrap(what, err)
	}
	defer s.end()
	c := s.recording()
	if c == nil {
		return s.dev.wrap(what, s.dev.drv.GraphLaunch(x.exec, s.handle))
	}
	if x.rebound {
		return fmt.Errorf("cuda: %s: %w: the graph was rebound; capture its work anew, or rebind the graph that it would be part of", what, device.ErrNotCapturable)
	}
	if err := s.dev.drv.StreamAddGraph(s.handle, x.rec.raw); err != nil {
		return s.issued(what, err)
	}
	s.branch.AddGraph(x.rec.notes)
	c.ops = append(c.ops, x.rec.ops...)
	c.planned[driver.NodeGraph]++
	c.reach.add(&x.rec.reach)
	return nil
}

// Close drops the graph; the driver finishes a replay under way.
func (g *Graph) Close() error {
	const what = "close of a graph"
	if g.closed || g.dev.shut.Load() {
		return refuse(what, device.ErrClosed)
	}
	g.closed = true
	return g.dev.release(what, g)
}

func (g *Graph) destroy() error {
	g.closed = true
	var errs []error
	if g.exec != 0 {
		errs = append(errs, g.dev.drv.GraphExecDestroy(g.exec))
		g.exec = 0
	}
	return errors.Join(append(errs, g.rec.destroy())...)
}
