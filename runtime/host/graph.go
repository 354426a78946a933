package host

import (
	"fmt"

	"pwc/runtime/device"
)

// Graph is a flat list of operations with all addresses bound.
type Graph struct {
	dev    *Device
	nodes  []node
	mems   []*memory // what the nodes reach, each once
	execs  []*Executable
	closed bool
}

// nodeKind is what a node does.
type nodeKind uint8

const (
	nodeCopy nodeKind = iota
	nodeFill
	nodePattern
	nodeKernel
	nodeCall
)

// node is one operation. Which fields count goes by kind.
type node struct {
	kind    nodeKind
	value   byte
	dst     []byte
	src     []byte // of a pattern: the bytes that repeat
	kernel  *kernel
	call    func() error
	mem     [2]*memory // of copies and fills; kernels reach what their launch reaches
	program *bound
}

// run executes the node on the caller's goroutine.
func (n *node) run(s *Stream) error {
	switch n.kind {
	case nodeCopy:
		copy(n.dst, n.src)
	case nodeFill:
		fill(n.dst, n.value)
	case nodePattern:
		fillPattern(n.dst, n.src)
	case nodeKernel:
		n.kernel.launch(s)
	case nodeCall:
		return n.call()
	}
	return nil
}

func fill(dst []byte, v byte) {
	if len(dst) > 0 {
		dst[0] = v
		fillPattern(dst, dst[:1])
	}
}

// fillPattern repeats pattern over dst, doubling what is there.
func fillPattern(dst, pattern []byte) {
	for done := copy(dst, pattern); done < len(dst); {
		done += copy(dst[done:], dst[:done])
	}
}

// seal collects what a replay has to check.
func (g *Graph) seal() {
	mems, execs := map[*memory]bool{}, map[*Executable]bool{}
	reach := func(m *memory) {
		if m != nil && !mems[m] {
			mems[m] = true
			g.mems = append(g.mems, m)
		}
	}
	for i := range g.nodes {
		n := &g.nodes[i]
		reach(n.mem[0])
		reach(n.mem[1])
		if n.program == nil {
			continue
		}
		for _, m := range n.program.mems {
			reach(m)
		}
		if x := n.program.exec; !execs[x] {
			execs[x] = true
			g.execs = append(g.execs, x)
		}
	}
}

// alive returns an error if something that the graph reaches is gone.
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

// Nodes returns the number of recorded operations.
func (g *Graph) Nodes() int { return len(g.nodes) }

// Close drops the recording.
func (g *Graph) Close() error {
	if g.closed {
		return fmt.Errorf("host: close of a graph: %w", device.ErrClosed)
	}
	g.closed = true
	g.nodes, g.mems, g.execs = nil, nil, nil
	return nil
}
