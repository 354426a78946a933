package fake

import (
	"slices"

	"pwc/runtime/cuda/internal/driver"
	"pwc/runtime/cuda/internal/thread"
)

// recording is a capture under way.
type recording struct {
	nodes   []op
	invalid bool
}

// graph is a graph, executable or not.
type graph struct{ nodes []op }

// StreamBeginCapture starts a capture of the calling thread.
func (f *Driver) StreamBeginCapture(id driver.Stream, m driver.CaptureMode) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuStreamBeginCapture"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	s := f.byID[id]
	if s == nil || s.capture != nil {
		f.wrong("%s on no stream, or one that captures", call)
		return fail(call, driver.InvalidValue)
	}
	if m != driver.CaptureThreadLocal {
		f.wrong("%s in mode %d", call, m)
	}
	s.capture = &recording{}
	t := f.thread()
	t.capturing = append(t.capturing, s)
	return nil
}

// StreamEndCapture ends the capture, also if it fails.
func (f *Driver) StreamEndCapture(id driver.Stream) (driver.Graph, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuStreamEndCapture"
	err := f.begin(call, needContext)
	s := f.byID[id]
	if s == nil || s.capture == nil {
		f.wrong("%s on no stream that captures", call)
		return 0, fail(call, driver.InvalidValue)
	}
	at, t := f.capturing(s)
	if at != thread.ID() {
		s.capture.invalid = true
		f.wrong("%s on another thread", call)
		return 0, fail(call, driver.CaptureWrongThread)
	}
	t.capturing = slices.DeleteFunc(t.capturing, func(x *stream) bool { return x == s })
	c := s.capture
	s.capture = nil
	switch {
	case err != nil:
		return 0, err
	case c.invalid:
		return 0, fail(call, driver.CaptureInvalidated)
	}
	g := driver.Graph(f.handle())
	f.graphs[g] = &graph{c.nodes}
	return g, nil
}

// StreamAddGraph adds a copy of a graph as a node.
func (f *Driver) StreamAddGraph(id driver.Stream, g driver.Graph) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuGraphAddChildGraphNode"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	child, s := f.graphs[g], f.byID[id]
	if child == nil || s == nil || s.capture == nil {
		f.wrong("%s without a graph or a capture", call)
		return fail(call, driver.InvalidValue)
	}
	return f.enqueue(call, id, op{kind: opGraph, node: driver.NodeGraph, graph: &graph{slices.Clone(child.nodes)}})
}

// GraphNodeTypes lists the nodes in the order of capture.
func (f *Driver) GraphNodeTypes(g driver.Graph) ([]driver.NodeType, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuGraphGetNodes"
	if err := f.begin(call, 0); err != nil {
		return nil, err
	}
	x := f.graphs[g]
	if x == nil {
		f.wrong("%s of no graph", call)
		return nil, fail(call, driver.InvalidHandle)
	}
	var out []driver.NodeType
	for i := range x.nodes {
		out = append(out, x.nodes[i].node)
	}
	return out, nil
}

// GraphInstantiate makes a graph executable.
func (f *Driver) GraphInstantiate(g driver.Graph) (driver.GraphExec, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuGraphInstantiateWithFlags"
	if err := f.begin(call, needContext|needNoCapture); err != nil {
		return 0, err
	}
	x := f.graphs[g]
	if x == nil {
		f.wrong("%s of no graph", call)
		return 0, fail(call, driver.InvalidHandle)
	}
	e := driver.GraphExec(f.handle())
	f.execs[e] = &graph{slices.Clone(x.nodes)}
	return e, nil
}

// GraphUpload does nothing.
func (f *Driver) GraphUpload(x driver.GraphExec, s driver.Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuGraphUpload"
	if err := f.begin(call, needContext|needNoCapture); err != nil {
		return err
	}
	if f.execs[x] == nil || f.byID[s] == nil || f.byID[s].capture != nil {
		f.wrong("%s of no graph, or on no stream", call)
		return fail(call, driver.InvalidHandle)
	}
	return nil
}

// GraphLaunch enqueues the graph's nodes.
func (f *Driver) GraphLaunch(x driver.GraphExec, s driver.Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuGraphLaunch"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	g := f.execs[x]
	if g == nil {
		f.wrong("%s of no graph", call)
		return fail(call, driver.InvalidHandle)
	}
	return f.enqueue(call, s, op{kind: opGraph, node: driver.NodeGraph, graph: g})
}

// GraphExecDestroy leaves launches of the graph to be executed.
func (f *Driver) GraphExecDestroy(x driver.GraphExec) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuGraphExecDestroy"
	err := f.begin(call, needContext)
	if f.execs[x] == nil {
		f.wrong("%s of no graph", call)
		return fail(call, driver.InvalidHandle)
	}
	delete(f.execs, x)
	return err
}

// GraphDestroy drops a graph.
func (f *Driver) GraphDestroy(g driver.Graph) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuGraphDestroy"
	err := f.begin(call, 0)
	if f.graphs[g] == nil {
		f.wrong("%s of no graph", call)
		return fail(call, driver.InvalidHandle)
	}
	delete(f.graphs, g)
	return err
}
