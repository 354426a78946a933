package cuda

import (
	"errors"
	"fmt"
	"strings"

	"pwc/internal/cuda/driver"
	"pwc/runtime/device"
)

// nodeTypes is how many types of nodes are counted.
const nodeTypes = 14

// capture is a capture under way of one or more streams: the recorded operations, and the nodes
// that the driver's graph must have.
type capture struct {
	streams []*Stream // the first began it
	ops     []operation
	op      operation // call and program of the op that records now
	planned [nodeTypes]int
	open    bool  // a library may have recorded more nodes of openTypes than planned
	spoiled error // the first error of a recorded call: the capture cannot become a graph
	reach   reach
}

// operation is one recorded operation: a node of device.Graph.
type operation struct {
	kind  device.NodeKind
	name  string           // of a kernel
	bound *bound           // the program; nil: the operation belongs to no program
	step  *boundStep       // kernel step of the program; nil: an op or a call of the stream recorded the operation
	call  *device.OpCall   // of the op that recorded the operation; nil: no op
	args  []device.Buffer  // dst and src of a copy, dst of a fill, arguments of a KernelCall, or of a step after Rebind
	node  driver.GraphNode // for Rebind; 0: the driver's node is not known, or there are several
}

// changeable reports whether Rebind may change the operation. It may not if an op recorded it,
// because the op may keep addresses elsewhere, or if its addresses are not known.
func (o *operation) changeable() bool {
	return o.call == nil && (o.step != nil || o.kind == device.NodeCopy || o.kind == device.NodeFill)
}

// reach lists the objects that a graph uses, each once.
type reach struct {
	mems    []*memory
	hosts   []*hostMemory
	execs   []*Executable
	modules []*Module
	events  []*event
	seen    map[any]struct{}
}

func (r *reach) first(x any) bool {
	if _, ok := r.seen[x]; ok {
		return false
	}
	if r.seen == nil {
		r.seen = map[any]struct{}{}
	}
	r.seen[x] = struct{}{}
	return true
}

func (r *reach) memory(m *memory) {
	if m != nil && r.first(m) {
		r.mems = append(r.mems, m)
	}
}

func (r *reach) event(e *event) {
	if r.first(e) {
		r.events = append(r.events, e)
	}
}

func (r *reach) add(o *reach) {
	for _, e := range o.events {
		r.event(e)
	}
	for _, m := range o.mems {
		r.memory(m)
	}
	for _, h := range o.hosts {
		if r.first(h) {
			r.hosts = append(r.hosts, h)
		}
	}
	for _, x := range o.execs {
		if r.first(x) {
			r.execs = append(r.execs, x)
		}
	}
	for _, m := range o.modules {
		if r.first(m) {
			r.modules = append(r.modules, m)
		}
	}
}

// alive returns an error if one of the objects was freed or closed.
func (r *reach) alive() error {
	for _, x := range r.execs {
		if x.closed.Load() {
			return fmt.Errorf("program: %w", device.ErrClosed)
		}
	}
	for _, m := range r.modules {
		if m.closed.Load() {
			return fmt.Errorf("module: %w", device.ErrClosed)
		}
	}
	for _, m := range r.mems {
		if m.freed.Load() {
			return device.ErrFreed
		}
	}
	for _, e := range r.events {
		if e.closed.Load() {
			return fmt.Errorf("event: %w", device.ErrClosed)
		}
	}
	for _, h := range r.hosts {
		if h.freed.Load() {
			return fmt.Errorf("host memory: %w", device.ErrFreed)
		}
	}
	return nil
}

// record notes an operation that became n nodes of a type. The context is current.
func (s *Stream) record(c *capture, o operation, t driver.NodeType, n int) error {
	o.call = c.op.call
	if o.bound == nil {
		o.bound = c.op.bound
	}
	s.branch.Add()
	c.ops = append(c.ops, o)
	c.planned[t] += n
	for i := range o.args {
		c.reach.memory(segment(o.args[i]))
	}
	if n != 1 || !o.changeable() {
		return nil
	}
	node, err := s.dev.drv.StreamCaptureNode(s.handle)
	c.ops[len(c.ops)-1].node = node
	return err
}

func (c *capture) reachHost(h *hostMemory) {
	if c.reach.first(h) {
		c.reach.hosts = append(c.reach.hosts, h)
	}
}

// spoil notes that the capture under way, if there is one, cannot become a
// graph: the driver cannot remove recorded nodes.
func (s *Stream) spoil(err error) {
	if c := s.recording(); c != nil && c.spoiled == nil {
		c.spoiled = err
	}
}

// BeginCapture starts recording, in the driver's mode of the same name. Unless the mode is
// relaxed, the goroutine is locked to its thread until EndCapture, which it must call, too:
// the driver identifies a capture by its thread. BeginCapture waits for loads of other
// goroutines that are under way.
func (s *Stream) BeginCapture(mode device.CaptureMode) error {
	const what = "begin capture"
	switch {
	case s.closed:
		return refuse(what, device.ErrClosed)
	case s.branch.Active() != nil:
		return s.notCapturing(what)
	}
	d := s.dev
	if err := d.usable(what); err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return d.wrap(what, err)
	}
	defer d.leave()
	relaxed := mode == device.CaptureRelaxed
	if !d.gate.begin(relaxed) {
		return refuse(what, device.ErrClosed)
	}
	b, err := d.captures.Begin(mode, s.name)
	if err != nil {
		d.gate.end(relaxed)
		return named(err)
	}
	if err := d.drv.StreamBeginCapture(s.handle, driverMode(mode)); err != nil {
		b.Rec.End()
		d.gate.end(relaxed)
		return d.wrap(what, err)
	}
	s.branch, s.capture = b, &capture{streams: []*Stream{s}}
	return nil
}

// driverMode returns the driver's number of a mode.
func driverMode(m device.CaptureMode) driver.CaptureMode {
	return [...]driver.CaptureMode{driver.CaptureGlobal, driver.CaptureThreadLocal, driver.CaptureRelaxed}[m]
}

// EndCapture ends recording and makes a graph that is ready to be launched. It is an error
// if the driver's graph has other nodes than the recorded operations planned, such as an
// allocation of a library, if an operation failed while capturing, or if a stream was not
// joined. After such an error the capture has ended, and its graph is destroyed.
func (s *Stream) EndCapture() (device.Graph, error) {
	r, err := s.finish()
	if err != nil {
		return nil, err
	}
	g, err := r.instantiate(s)
	if err != nil {
		return nil, errors.Join(s.dev.wrap("end capture", err), r.drop("end capture"))
	}
	return g, nil
}

// EndTemplate ends recording, with the checks of EndCapture, and makes a template.
func (s *Stream) EndTemplate() (device.Template, error) {
	r, err := s.finish()
	if err != nil {
		return nil, err
	}
	t := &Template{recording: r}
	s.dev.adopt(t)
	return t, nil
}

// finish ends the capture of all its streams.
func (s *Stream) finish() (*recording, error) {
	const what = "end capture"
	b := s.branch.Active()
	switch {
	case s.closed || s.dev.shut.Load():
		return nil, refuse(what, device.ErrClosed)
	case b == nil:
		return nil, named(&device.CaptureError{Call: what, Stream: s.name, Err: device.ErrNotCapturing})
	}
	if err := s.dev.captures.Usable(what, s.name, b); err != nil {
		return nil, named(err)
	}
	if err := b.Ends(what); err != nil {
		return nil, named(err)
	}
	unjoined := named(b.Joined(what))
	if unjoined == nil {
		s.joinIdle()
	}
	raw, c, err := s.stop(b, unjoined == nil && s.capture.spoiled == nil)
	if unjoined != nil {
		return nil, errors.Join(unjoined, c.spoiled, s.dev.wrap(what, err), s.drop(what, raw))
	}
	if err == nil {
		err = c.spoiled
	}
	if err != nil {
		return nil, s.dev.wrap(what, errors.Join(c.spoiled, err, s.drop(what, raw)))
	}
	r := newRecording(s.dev, raw)
	r.ops, r.notes, r.reach = c.ops, b.Rec.Nodes, c.reach
	r.reach.seen = nil
	if err := s.dev.check(r.verify(&c.planned, c.open)); err != nil {
		return nil, s.dev.wrap(what, errors.Join(err, s.drop(what, raw)))
	}
	return r, nil
}

// joinIdle joins all forked streams in the driver, which requires that also of streams that did
// nothing since their last fork.
func (s *Stream) joinIdle() {
	c := s.capture
	if len(c.streams) == 1 || c.spoiled != nil {
		return
	}
	if err := s.dev.enter(); err != nil {
		s.spoil(s.dev.check(err))
		return
	}
	defer s.dev.leave()
	for _, o := range c.streams[1:] {
		if err := o.follow(s); err != nil {
			s.spoil(s.dev.check(err))
			return
		}
	}
}

// drop destroys the driver's graph of a capture that failed.
func (s *Stream) drop(what string, raw driver.Graph) error {
	if raw == 0 {
		return nil
	}
	return s.dev.release(what, newRecording(s.dev, raw))
}

// stop ends the capture in the driver, also if it failed, and unlocks the goroutine. If joined is
// false, it is no error that streams were not joined.
func (s *Stream) stop(b *device.Branch, joined bool) (driver.Graph, *capture, error) {
	c := s.capture
	s.capture = nil
	raw, err := s.dev.endRaw(s.handle, joined)
	b.Rec.End()
	s.dev.gate.end(b.Rec.Mode == device.CaptureRelaxed)
	return raw, c, err
}

// endRaw ends a capture in the driver, even if the context is gone: otherwise the thread
// would capture forever. If joined is false, it drops the driver's error that streams were not
// joined.
func (d *Device) endRaw(s driver.Stream, joined bool) (driver.Graph, error) {
	err := d.enter()
	if err == nil {
		defer d.leave()
	}
	err = d.check(err) // before other calls report the same fault
	g, endErr := d.drv.StreamEndCapture(s)
	var e *driver.Error
	if !joined && errors.As(endErr, &e) && e.Result == driver.CaptureUnjoined {
		endErr = nil
	}
	return g, errors.Join(err, d.check(endErr))
}

// matches compares the nodes of a graph with the planned ones; open allows more of openTypes.
func matches(types []driver.NodeType, planned *[nodeTypes]int, open bool) error {
	var have [nodeTypes]int
	for _, t := range types {
		if t < 0 || t >= nodeTypes {
			return fmt.Errorf("%w: the graph has a node of type %d", device.ErrNotCapturable, t)
		}
		have[t]++
	}
	if open {
		for _, t := range openTypes {
			have[t] = min(have[t], planned[t])
		}
	}
	if have == *planned {
		return nil
	}
	var diff []string
	for t := range driver.NodeType(nodeTypes) {
		if have[t] != planned[t] {
			diff = append(diff, fmt.Sprintf("%d %s nodes, planned %d", have[t], t, planned[t]))
		}
	}
	return fmt.Errorf("%w: the graph has %s", device.ErrNotCapturable, strings.Join(diff, "; "))
}
