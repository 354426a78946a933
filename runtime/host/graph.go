package host

import (
	"fmt"
	"slices"

	"pwc/program"
	"pwc/runtime/device"
)

// nodeKind is the kind of a node.
type nodeKind uint8

const (
	nodeCopy nodeKind = iota
	nodeFill
	nodeKernel
	nodeCall
	nodeEvent
)

// node is one operation. kind decides which other fields are used.
type node struct {
	kind   nodeKind
	value  byte
	dst    []byte
	src    []byte
	kernel *kernel
	call   func() error
	event  *event
}

// origin is the origin of a node, and the memory that the node uses.
type origin struct {
	bound *bound          // the program; nil: the node belongs to no program
	step  *program.Step   // kernel step of the program; nil: an op or a call of the stream recorded the node
	call  *device.OpCall  // of the op that recorded the node; nil: no op
	args  []device.Buffer // dst and src of a copy, dst of a fill, or arguments of a step after Rebind
}

// run executes the node, and returns when it is done. Kernels and long copies use the device's workers, too.
func (n *node) run(s *Stream) error {
	l := &s.lane
	if l.spend(nodeWork) || s.until.ended.Load() {
		return s.until.err()
	}
	switch n.kind {
	case nodeCopy:
		s.copy(n.dst, n.src)
	case nodeFill:
		l.fill(n.dst, n.value)
	case nodeKernel:
		n.kernel.launch(s)
	case nodeCall:
		return s.until.after(s.do(n.call))
	case nodeEvent:
		n.event.record()
	}
	return s.until.err()
}

// do calls f. Afterwards s.until.err may return an error, too.
func (s *Stream) do(f func() error) error {
	defer s.lane.caught(protect())
	return f()
}

// nodeWork is the work that a node counts as in addition to its kernel's, in the units of lookEvery.
const nodeWork = 1 << 8

// fillStep is how many bytes are filled between two checks of the context.
const fillStep = 16 << 20

// fill sets dst to v, unless the context ends first. Each copy doubles the bytes that are set, but adds at
// most fillStep bytes.
func (l *lane) fill(dst []byte, v byte) {
	if len(dst) == 0 {
		return
	}
	dst[0] = v
	for done := 1; done < len(dst); {
		if done >= fillStep && l.stop.look() {
			return
		}
		done += copy(dst[done:], dst[:min(done, fillStep)])
	}
}

// recording has the operations of a capture. It is not changed once the capture has ended.
type recording struct {
	nodes   []node
	origins []origin
	notes   []device.Recorded // names and dependencies
}

// Graph is a list of operations with all addresses bound, which a replay executes in the order
// of recording.
type Graph struct {
	dev *Device
	recording
	mems    []*memory // segments that the nodes use, each once
	execs   []*Executable
	events  []*event
	rebound bool
	closed  bool
}

// Template makes graphs from one recording.
type Template struct {
	dev *Device
	recording
	closed bool
}

// Instantiate returns a graph of the recording.
func (t *Template) Instantiate() (device.Graph, error) {
	if t.closed || t.dev == nil || t.dev.shut.Load() {
		return nil, fmt.Errorf("host: instantiate: %w", device.ErrClosed)
	}
	g := &Graph{dev: t.dev, recording: t.recording}
	g.seal()
	return g, nil
}

// Close drops the recording; graphs that were made from it stay.
func (t *Template) Close() error {
	if t.closed {
		return fmt.Errorf("host: close of a template: %w", device.ErrClosed)
	}
	t.closed = true
	t.recording = recording{}
	return nil
}

// Nodes returns the number of recorded operations.
func (r *recording) Nodes() int { return len(r.nodes) }

// buffers returns the memory that a node was given.
func (o *origin) buffers() []device.Buffer {
	if o.step == nil || o.args != nil {
		return o.args
	}
	out := make([]device.Buffer, len(o.step.Args))
	for i, a := range o.step.Args {
		out[i] = o.bound.assigned.Buffers[a]
	}
	return out
}

// given returns the memory of the call that recorded a node.
func (o *origin) given() []device.Buffer {
	if o.call == nil {
		return nil
	}
	out := []device.Buffer{o.call.Scratch}
	for i := range o.call.Args {
		out = append(out, o.call.Args[i].Buffer)
	}
	return out
}

// seal collects the objects that a replay has to check.
func (g *Graph) seal() {
	g.mems, g.execs, g.events = nil, nil, nil
	mems, execs := map[*memory]bool{}, map[*Executable]bool{}
	for i := range g.origins {
		o := &g.origins[i]
		for _, b := range slices.Concat(o.buffers(), o.given()) {
			if m, ok := b.Memory.(*memory); ok && b.Size > 0 && !mems[m] {
				mems[m] = true
				g.mems = append(g.mems, m)
			}
		}
		if e := g.nodes[i].event; e != nil {
			g.events = append(g.events, e)
		}
		if o.bound != nil && !execs[o.bound.exec] {
			execs[o.bound.exec] = true
			g.execs = append(g.execs, o.bound.exec)
		}
	}
}

// alive returns an error if an object that the graph uses was freed or closed.
func (g *Graph) alive() error {
	for _, m := range g.mems {
		if m.base.Load() == nil {
			return device.ErrFreed
		}
	}
	for _, x := range g.execs {
		if x.closed.Load() {
			return fmt.Errorf("program: %w", device.ErrClosed)
		}
	}
	for _, e := range g.events {
		if e.closed.Load() {
			return fmt.Errorf("event: %w", device.ErrClosed)
		}
	}
	return nil
}

func (g *Graph) replay(s *Stream) error {
	for i := range g.nodes {
		if err := g.nodes[i].run(s); err != nil {
			return fmt.Errorf("host: graph launch: operation %d: %w", i, err)
		}
	}
	return nil
}

// Describe returns the recorded operations. A kernel's reads and writes are those of its
// vector program.
func (r *recording) Describe() []device.Node {
	out := make([]device.Node, len(r.nodes))
	for i := range out {
		r.describe(i, &out[i])
	}
	return out
}

func (r *recording) describe(i int, n *device.Node) {
	o := &r.origins[i]
	args := o.buffers()
	n.Recorded, n.Known = r.notes[i], true
	switch r.nodes[i].kind {
	case nodeCopy:
		n.Kind = device.NodeCopy
		n.Writes, n.Reads = device.Present(args[:1]), device.Present(args[1:])
	case nodeFill:
		n.Kind, n.Writes = device.NodeFill, device.Present(args)
	case nodeKernel:
		n.Kind = device.NodeKernel
		n.Name = o.bound.exec.program.Kernels[o.step.Kernel].Name
		code := o.bound.exec.kernels[o.step.Kernel]
		stores, loads := code.Stores(), code.Loads()
		for j := range args {
			if slices.Contains(loads, int32(j)) {
				n.Reads = append(n.Reads, device.Present(args[j:j+1])...)
			}
			if slices.Contains(stores, int32(j)) {
				n.Writes = append(n.Writes, device.Present(args[j:j+1])...)
			}
		}
	case nodeEvent:
		n.Kind = device.NodeEvent
	case nodeCall:
		n.Kind, n.Known = device.NodeCall, false
		n.Reads = device.Present(o.given())
		n.Writes = n.Reads
	}
}

// Rebind implements [device.Graph].
func (g *Graph) Rebind(moves []device.Move) error {
	const what = "rebind"
	if g.closed || g.dev.shut.Load() {
		return fmt.Errorf("host: %s: %w", what, device.ErrClosed)
	}
	if err := g.dev.checkMoves(moves); err != nil {
		return fmt.Errorf("host: %s: %w", what, err)
	}
	next := &Graph{dev: g.dev, recording: recording{slices.Clone(g.nodes), slices.Clone(g.origins), g.notes}}
	changed := false
	for i := range next.nodes {
		moved, err := next.rebind(i, moves)
		if err != nil {
			return fmt.Errorf("host: %s: %w", what, err)
		}
		changed = changed || moved
	}
	if changed {
		next.seal()
		next.rebound = true
		*g = *next
	}
	return nil
}

// checkMoves checks that the moves are of the device's memory. The memory of From may be freed.
func (d *Device) checkMoves(moves []device.Move) error {
	if err := device.CheckMoves(moves); err != nil {
		return err
	}
	for i, m := range moves {
		if from, ok := m.From.Memory.(*memory); !ok || from.dev != d {
			return fmt.Errorf("move %d: %w", i, device.ErrForeignBuffer)
		}
		if _, _, err := d.bytes(m.To); err != nil {
			return fmt.Errorf("move %d: %w", i, err)
		}
	}
	return nil
}

// rebind changes a node of a graph that shares its nodes and origins with no other, and reports whether
// it changed.
func (g *Graph) rebind(i int, moves []device.Move) (bool, error) {
	o := &g.origins[i]
	refuse := func(reason string, cause error) error {
		var n device.Node
		g.describe(i, &n)
		return device.NotRebindable(i, n, reason, cause)
	}
	args := slices.Clone(o.buffers())
	changed := false
	for j, b := range args {
		to, moved, err := device.Relocate(b, moves)
		if err != nil {
			return false, refuse("only a part of its memory moves", err)
		}
		args[j] = to
		changed = changed || moved
	}
	for _, b := range o.given() {
		if _, moved, err := device.Relocate(b, moves); moved || err != nil {
			return false, refuse("an op was given the address and may keep it", nil)
		}
	}
	if g.nodes[i].kind == nodeCall && o.call == nil && len(moves) > 0 {
		return false, refuse("which memory its Go code uses is not known; Stream.LaunchOp runs it as an op, which declares its memory", nil)
	}
	if !changed {
		return false, nil
	}
	if g.notes[i].Child {
		return false, refuse("the node is part of a graph that was launched while capturing", nil)
	}
	if err := g.resolve(i, args); err != nil {
		return false, refuse("the memory cannot take its place", err)
	}
	o.args = args
	return true, nil
}

// resolve binds a node to other memory.
func (g *Graph) resolve(i int, args []device.Buffer) error {
	n, o := &g.nodes[i], &g.origins[i]
	data := make([][]byte, len(args))
	for j, b := range args {
		var err error
		if data[j], _, err = g.dev.bytes(b); err != nil {
			return err
		}
		if o.step != nil && b.Size > 0 {
			if err := g.dev.aligned(b, o.bound.exec.program.Buffers[o.step.Args[j]].Alignment()); err != nil {
				return err
			}
		}
	}
	if n.kind == nodeCopy || n.kind == nodeFill {
		if err := writable(args[0]); err != nil {
			return err
		}
	}
	switch n.kind {
	case nodeCopy:
		if args[0].Memory != nil {
			n.dst = data[0]
		}
		if args[1].Memory != nil {
			n.src = data[1]
		}
		if overlap(n.dst, n.src) {
			return device.ErrOverlap
		}
	case nodeFill:
		n.dst = data[0]
	case nodeKernel:
		k, err := newKernel(o.bound.exec, o.bound.exec.kernels[o.step.Kernel], o.bound.env, data)
		if err != nil {
			return err
		}
		n.kernel = k
	}
	return nil
}

// Close drops the recording.
func (g *Graph) Close() error {
	if g.closed {
		return fmt.Errorf("host: close of a graph: %w", device.ErrClosed)
	}
	*g = Graph{dev: g.dev, closed: true}
	return nil
}
