package cuda

import (
	"errors"

	"pwc/runtime/cuda/internal/driver"
	"pwc/runtime/device"
)

// Graph is an instantiated and uploaded CUDA graph. It holds no memory: what it
// reaches must be there when it is launched.
type Graph struct {
	dev    *Device
	graph  driver.Graph     // the recording, of which graphs within graphs are made
	exec   driver.GraphExec // 0: nothing was recorded
	ops    int
	reach  reach
	closed bool
}

// Nodes returns the number of recorded operations. One operation may be several
// nodes of the driver: a fill with a pattern, a graph within the graph.
func (g *Graph) Nodes() int { return g.ops }

// LaunchGraph replays a graph. While capturing, it becomes part of the graph
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
	if s.capture == nil {
		return s.dev.wrap(what, s.dev.drv.GraphLaunch(x.exec, s.handle))
	}
	if err := s.dev.drv.StreamAddGraph(s.handle, x.graph); err != nil {
		return s.issued(what, err)
	}
	s.capture.record(driver.NodeGraph, 1, nil, nil)
	s.capture.ops += x.ops - 1
	s.capture.reach.add(&x.reach)
	return nil
}

// Close drops the graph; a replay under way is finished by the driver.
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
	g.reach = reach{}
	var errs []error
	if g.exec != 0 {
		errs = append(errs, g.dev.drv.GraphExecDestroy(g.exec))
		g.exec = 0
	}
	if g.graph != 0 {
		errs = append(errs, g.dev.drv.GraphDestroy(g.graph))
		g.graph = 0
	}
	return errors.Join(errs...)
}
