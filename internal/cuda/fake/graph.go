package fake

import (
	"cmp"
	"slices"
	"unsafe"

	"pwc/internal/cuda/driver"
	"pwc/internal/thread"
)

// recording is a capture under way.
type recording struct {
	graph
	mode    driver.CaptureMode
	streams []*stream // the first began it
	invalid bool
	ended   bool
}

// graph is a graph, executable or not.
type graph struct {
	nodes []op
	deps  [][]int // the dependencies of each node
	chain bool    // of a clone: each node but the first depends only on the node before it
}

// StreamBeginCapture starts a capture of the calling thread.
func (f *Driver) StreamBeginCapture(id driver.Stream, m driver.CaptureMode) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuStreamBeginCapture"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	s := f.byID[id]
	switch {
	case s == nil:
		f.wrong("%s on no stream", call)
		return fail(call, driver.InvalidHandle)
	case s.capture != nil:
		f.wrong("%s on a stream that captures", call)
		return fail(call, driver.InvalidValue)
	case m < driver.CaptureGlobal || m > driver.CaptureRelaxed:
		f.wrong("%s in mode %d", call, m)
		return fail(call, driver.InvalidValue)
	}
	s.capture = &recording{mode: m, streams: []*stream{s}}
	t := f.thread()
	t.capturing = append(t.capturing, s)
	return nil
}

// needCapture returns a stream that captures.
func (f *Driver) needCapture(call string, id driver.Stream) (*stream, error) {
	s := f.byID[id]
	switch {
	case s == nil:
		f.wrong("%s on no stream", call)
		return nil, fail(call, driver.InvalidHandle)
	case s.capture == nil:
		f.wrong("%s on a stream that does not capture", call)
		return nil, fail(call, driver.InvalidValue)
	}
	return s, nil
}

// StreamEndCapture ends the capture of all its streams, also if it fails, unless it is called on a
// forked stream or, for a capture that is not relaxed, on another thread than the capture's.
func (f *Driver) StreamEndCapture(id driver.Stream) (driver.Graph, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuStreamEndCapture"
	err := f.begin(call, needContext)
	s, wrong := f.needCapture(call, id)
	if wrong != nil {
		return 0, wrong
	}
	c := s.capture
	if c.streams[0] != s {
		c.invalid = true
		f.wrong("%s on a stream that was forked", call)
		return 0, fail(call, driver.CaptureUnmatched)
	}
	at, t := f.capturing(s)
	if at != thread.ID() && c.mode != driver.CaptureRelaxed {
		c.invalid = true
		f.wrong("%s on another thread", call)
		return 0, fail(call, driver.CaptureWrongThread)
	}
	t.capturing = slices.DeleteFunc(t.capturing, func(x *stream) bool { return x == s })
	unjoined := !c.joined()
	for _, x := range c.streams {
		x.capture, x.tail = nil, nil
	}
	c.ended = true
	switch {
	case err != nil:
		return 0, err
	case c.invalid:
		return 0, fail(call, driver.CaptureInvalidated)
	case unjoined:
		return 0, fail(call, driver.CaptureUnjoined)
	}
	g := driver.Graph(f.handle())
	f.graphs[g] = &c.graph
	return g, nil
}

// joined reports whether the stream that began the capture waited for all other streams, also
// for those that did nothing since they were forked. The driver accepts a stream that was
// joined through another one, too; package cuda joins every stream itself.
func (c *recording) joined() bool {
	for _, s := range c.streams[1:] {
		if !s.joined {
			return false
		}
	}
	return true
}

// StreamAddGraph adds a copy of a graph as a node.
func (f *Driver) StreamAddGraph(id driver.Stream, g driver.Graph) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuGraphAddChildGraphNode"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	child := f.graphs[g]
	if child == nil {
		f.wrong("%s of no graph", call)
		return fail(call, driver.InvalidHandle)
	}
	if _, err := f.needCapture(call, id); err != nil {
		return err
	}
	return f.enqueue(call, id, op{kind: opGraph, node: driver.NodeGraph, graph: child.clone()})
}

// clone copies the parts that an executable graph may change.
func (g *graph) clone() *graph {
	chain := true
	for i, d := range g.deps {
		chain = chain && (i == 0 || len(d) == 1 && d[0] == i-1)
	}
	return &graph{slices.Clone(g.nodes), g.deps, chain}
}

// StreamCaptureNode returns the node on which the stream's next node depends; 0 if it is not exactly one.
func (f *Driver) StreamCaptureNode(id driver.Stream) (driver.GraphNode, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuStreamGetCaptureInfo"
	if err := f.begin(call, needContext); err != nil {
		return 0, err
	}
	s, err := f.needCapture(call, id)
	switch {
	case err != nil:
		return 0, err
	case s.capture.invalid:
		return 0, fail(call, driver.CaptureInvalidated)
	case len(s.tail) != 1:
		return 0, nil
	}
	return s.capture.nodes[s.tail[0]].handle, nil
}

// execNode returns a node of an executable graph, to be changed. Launches before the change keep
// the node as it was.
func (f *Driver) execNode(call string, x driver.GraphExec, n driver.GraphNode, kind opKind) (*op, error) {
	if err := f.begin(call, needContext); err != nil {
		return nil, err
	}
	g := f.execs[x]
	if g == nil {
		f.wrong("%s of no graph", call)
		return nil, fail(call, driver.InvalidHandle)
	}
	i := slices.IndexFunc(g.nodes, func(o op) bool { return o.handle == n })
	if n == 0 || i < 0 || g.nodes[i].kind != kind {
		f.wrong("%s of no such node", call)
		return nil, fail(call, driver.InvalidValue)
	}
	g = g.clone()
	f.execs[x] = g
	return &g.nodes[i], nil
}

// GraphExecKernelNodeSetParams changes a node's kernel, grid, block, shared memory and arguments.
func (f *Driver) GraphExecKernelNodeSetParams(x driver.GraphExec, n driver.GraphNode, fn driver.Function, c *driver.LaunchConfig, params *unsafe.Pointer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuGraphExecKernelNodeSetParams"
	o, err := f.execNode(call, x, n, opKernel)
	if err != nil {
		return err
	}
	k, err := f.function(call, fn)
	if err != nil {
		return err
	}
	o.fn, o.args = k, arguments(k.sizes, params)
	o.config.Grid, o.config.Block, o.config.Shared = c.Grid, c.Block, c.Shared
	return nil
}

// graphNode returns a node of a graph, nil if the graph was destroyed.
func (f *Driver) graphNode(n driver.GraphNode) *op {
	for _, g := range f.graphs {
		if i := slices.IndexFunc(g.nodes, func(o op) bool { return o.handle == n }); i >= 0 {
			return &g.nodes[i]
		}
	}
	return nil
}

// GraphExecMemcpyNodeSetAddresses changes the device addresses of a copy; if dst or src is 0, that side
// gets its address in the graph.
func (f *Driver) GraphExecMemcpyNodeSetAddresses(x driver.GraphExec, n driver.GraphNode, ctx driver.Context, dst, src driver.Ptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuGraphExecMemcpyNodeSetParams"
	o, err := f.execNode(call, x, n, opCopy)
	if err != nil {
		return err
	}
	made := f.graphNode(n)
	if made == nil {
		f.wrong("%s of a node whose graph was destroyed", call)
		return fail(call, driver.InvalidValue)
	}
	o.dst, o.src = cmp.Or(dst, made.dst), cmp.Or(src, made.src)
	return nil
}

// GraphExecMemsetNodeSetAddress changes the address of a fill.
func (f *Driver) GraphExecMemsetNodeSetAddress(x driver.GraphExec, n driver.GraphNode, ctx driver.Context, dst driver.Ptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuGraphExecMemsetNodeSetParams"
	o, err := f.execNode(call, x, n, opFill)
	if err != nil {
		return err
	}
	o.dst = dst
	return nil
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
	f.execs[e] = x.clone()
	return e, nil
}

// GraphUpload checks its arguments and uploads nothing.
func (f *Driver) GraphUpload(x driver.GraphExec, s driver.Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuGraphUpload"
	if err := f.begin(call, needContext|needNoCapture); err != nil {
		return err
	}
	st := f.byID[s]
	switch {
	case f.execs[x] == nil:
		f.wrong("%s of no graph", call)
		return fail(call, driver.InvalidHandle)
	case st == nil:
		f.wrong("%s on no stream", call)
		return fail(call, driver.InvalidHandle)
	case st.capture != nil:
		f.wrong("%s on a stream that captures", call)
		return fail(call, driver.InvalidValue)
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
	return f.enqueue(call, s, op{kind: opGraph, node: driver.NodeGraph, graph: g, records: recordEvents(g, nil)})
}

// GraphExecDestroy destroys an executable graph. Launches of the graph still execute.
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
