package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"strings"

	"pwc/runtime/cuda/internal/driver"
	"pwc/runtime/cuda/internal/thread"
	"pwc/runtime/device"
)

// nodeTypes is how many types of nodes are counted.
const nodeTypes = 14

// capture is a capture under way: what the graph must hold when it ends.
type capture struct {
	thread  int // the one that began it, which its goroutine is locked to
	ops     int // operations of device.Stream
	planned [nodeTypes]int
	spoiled error // why it cannot become a graph
	reach   reach
}

// reach is what a graph reaches, each once.
type reach struct {
	mems    []*memory
	hosts   []*hostMemory
	execs   []*Executable
	modules []*Module
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

func (r *reach) add(o *reach) {
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

// alive returns an error if something is gone.
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
	for _, h := range r.hosts {
		if h.freed.Load() {
			return fmt.Errorf("host memory: %w", device.ErrFreed)
		}
	}
	return nil
}

// record notes one operation that became n nodes of a type.
func (c *capture) record(t driver.NodeType, n int, m, other *memory) {
	c.ops++
	c.planned[t] += n
	c.reach.memory(m)
	c.reach.memory(other)
}

func (c *capture) reachHost(h *hostMemory) {
	if c.reach.first(h) {
		c.reach.hosts = append(c.reach.hosts, h)
	}
}

// spoil notes that the capture under way, if there is one, cannot become a
// graph: the driver takes nothing back that was recorded.
func (s *Stream) spoil(err error) {
	if s.capture != nil && s.capture.spoiled == nil {
		s.capture.spoiled = err
	}
}

// BeginCapture starts recording, in the driver's thread-local mode. The
// goroutine is locked to its thread until EndCapture, which it must call too.
// It waits for loads of other goroutines that are under way.
func (s *Stream) BeginCapture() error {
	const what = "begin capture"
	if err := s.notCapturing(what); err != nil {
		return err
	}
	d := s.dev
	if err := d.enter(); err != nil { // left by endCapture
		return d.wrap(what, err)
	}
	d.gate.begin()
	if err := d.drv.StreamBeginCapture(s.handle, driver.CaptureThreadLocal); err != nil {
		d.gate.end(thread.ID())
		d.leave()
		return d.wrap(what, err)
	}
	s.capture = &capture{thread: thread.ID()}
	return nil
}

// EndCapture ends recording and makes a graph of what was recorded, ready to be
// launched. The graph's nodes must be those that the recorded operations say:
// one that is not, like a host function or an allocation of a library, refuses
// the capture. So does an operation that failed while capturing. Nothing is
// left of a refused capture.
func (s *Stream) EndCapture() (device.Graph, error) {
	const what = "end capture"
	switch {
	case s.closed || s.dev.shut.Load():
		return nil, refuse(what, device.ErrClosed)
	case s.capture == nil:
		return nil, refuse(what, device.ErrNotCapturing)
	case s.capture.thread != thread.ID():
		return nil, fmt.Errorf("cuda: %s: another goroutine began the capture: %w", what, device.ErrCapturing)
	}
	g, err := s.endCapture()
	if err != nil {
		return nil, err
	}
	return g, nil
}

// endCapture ends the capture and makes a graph of it.
func (s *Stream) endCapture() (*Graph, error) {
	const what = "end capture"
	raw, c, err := s.stop()
	if err == nil && c.spoiled == nil {
		var g *Graph
		if g, err = s.makeGraph(raw, c); err == nil {
			return g, nil
		}
	} else {
		err = errors.Join(c.spoiled, err, s.drop(what, raw))
	}
	return nil, s.dev.wrap(what, err)
}

// drop gives back a recording that becomes no graph.
func (s *Stream) drop(what string, raw driver.Graph) error {
	if raw == 0 {
		return nil
	}
	return s.dev.release(what, &Graph{dev: s.dev, graph: raw})
}

// stop ends the capture in the driver, whatever became of it, and unlocks the
// goroutine.
func (s *Stream) stop() (driver.Graph, *capture, error) {
	c := s.capture
	s.capture = nil
	defer runtime.UnlockOSThread() // of BeginCapture
	raw, err := s.dev.endRaw(s.handle)
	s.dev.gate.end(c.thread)
	return raw, c, err
}

// endRaw ends a capture in the driver, even where the context is gone: the
// thread would capture for good.
func (d *Device) endRaw(s driver.Stream) (driver.Graph, error) {
	err := d.enter()
	if err == nil {
		defer d.leave()
	}
	err = d.check(err) // before other calls report the same fault
	g, endErr := d.drv.StreamEndCapture(s)
	return g, errors.Join(err, d.check(endErr))
}

// makeGraph checks what was captured, instantiates and uploads it.
func (s *Stream) makeGraph(raw driver.Graph, c *capture) (*Graph, error) {
	const what = "end capture"
	d := s.dev
	g := &Graph{dev: d, graph: raw, ops: c.ops, reach: c.reach}
	g.reach.seen = nil
	d.adopt(g)
	if err := d.check(s.instantiate(g, &c.planned)); err != nil {
		return nil, errors.Join(err, d.release(what, g))
	}
	return g, nil
}

func (s *Stream) instantiate(g *Graph, planned *[nodeTypes]int) error {
	d := s.dev
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	types, err := d.drv.GraphNodeTypes(g.graph)
	if err != nil {
		return err
	}
	if err := matches(types, planned); err != nil || len(types) == 0 {
		return err
	}
	mode, err := d.relax() // the thread may capture on another stream
	if err != nil {
		return err
	}
	if g.exec, err = d.drv.GraphInstantiate(g.graph); err == nil {
		err = d.drv.GraphUpload(g.exec, s.handle)
	}
	return errors.Join(err, d.unrelax(mode))
}

// matches holds the nodes of a graph to the planned ones.
func matches(types []driver.NodeType, planned *[nodeTypes]int) error {
	var have [nodeTypes]int
	for _, t := range types {
		if t < 0 || t >= nodeTypes {
			return fmt.Errorf("%w: the graph has a node of type %d", device.ErrNotCapturable, t)
		}
		have[t]++
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
