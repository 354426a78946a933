package tree

import (
	"slices"

	"pwc/graphs"
	"pwc/runtime/device"
	"pwc/runtime/mem"
)

// node is one run of a function after its parent: a recording, or a warm-up, which is never replayed.
type node struct {
	id     int // recordings count from 0, warm-ups down from -1
	f      *instance
	parent *node
	path   []*node // from the root to the node
	next   []children
	warm   bool

	graph   *graphs.Graph
	inputs  []nodeInput
	where   []inputPlace // the required addresses of inputs, packed for the check before each replay
	copies  []int        // inputs that are copied
	outputs []output

	liveAfter  [][]bool // outputs of the path with owners at the recording's end, by depth and output
	deadBefore []place  // died between the parent's end and this node's start
	deadAfter  []place  // died while the node was recorded
	state      *mem.State

	staging []graphs.Tensor // by copied input; allocated when copies first overlap
}

// children are the recordings of one function after a node.
type children struct {
	f     *instance
	nodes []*node
}

// place is an output of a path.
type place struct{ Depth, Output int }

type inputKind uint8

const (
	copied  inputKind = iota // into memory of the pool
	static                   // read in place
	managed                  // an output of the path, read in place
)

// nodeInput is an input of a recording.
type nodeInput struct {
	kind inputKind
	at   device.Buffer // the memory that the recording reads
	from place         // of a managed input

	storage *graphs.Storage // of at
	off     int64           // of at in storage
}

// fits reports whether each input has the recorded size and, unless it is copied, the recorded
// address. It visits hundreds of static inputs before each replay, so it reads the packed form.
func (n *node) fits(in []Input) bool {
	for j := range n.where {
		x, t := &n.where[j], &in[j].Tensor
		if t.Size() != x.size || x.storage != nil && !t.SameAddress(x.storage, x.off) {
			return false
		}
	}
	return true
}

// inputPlace is the required address and size of an input. storage is nil for a copied input, which
// may have any address.
type inputPlace struct {
	storage   *graphs.Storage
	off, size int64
}

// place makes the packed form of the inputs.
func (n *node) place() {
	n.where = make([]inputPlace, len(n.inputs))
	for j, x := range n.inputs {
		n.where[j].size = x.at.Size
		if x.kind != copied {
			n.where[j].storage, n.where[j].off = x.storage, x.off
		}
	}
}

// reads reports whether a tensor is the memory that the recording reads.
func (x *nodeInput) reads(t *graphs.Tensor) bool {
	return t.SameAddress(x.storage, x.off) && t.Size() == x.at.Size || t.Range() == x.at
}

type outputKind uint8

const (
	fresh    outputKind = iota // memory of the pool that the node writes
	outside                    // a static input or a constant
	earlier                    // an output of an ancestor
	repeated                   // an earlier output of the node
)

// output is an output of a node. t names the storage, which all runs of the node share.
type output struct {
	kind      outputKind
	t         graphs.Tensor
	from      place // earlier: of the path; repeated: Output of the node
	input     int   // outside: the input, -1: a constant
	unaliased bool  // no later output, in any path, shares its storage
}

// storage returns the output's storage if it is memory of the pool, else nil.
func (o *output) storage() *graphs.Storage {
	if o.kind == outside {
		return nil
	}
	return o.t.Storage()
}

// live reports whether the output has owners.
func (o *output) live() bool {
	s := o.storage()
	return s != nil && s.Live()
}

// liveness reports for each output of the path whether it has owners, by depth and output.
func (n *node) liveness() [][]bool {
	if n == nil {
		return nil
	}
	all := make([][]bool, len(n.path))
	for d, p := range n.path {
		all[d] = make([]bool, len(p.outputs))
		for i := range p.outputs {
			all[d][i] = p.outputs[i].live()
		}
	}
	return all
}

// allDead reports whether no output of the path has owners.
func (n *node) allDead() bool {
	for _, p := range n.path {
		for i := range p.outputs {
			if p.outputs[i].live() {
				return false
			}
		}
	}
	return true
}

// storages returns the storages with owners on the path, each once.
func (n *node) storages() []*graphs.Storage {
	var all []*graphs.Storage
	if n == nil {
		return nil
	}
	for _, p := range n.path {
		for i := range p.outputs {
			if s := p.outputs[i].storage(); s != nil && s.Live() && !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	return all
}

// at returns the output at a place of the path.
func (n *node) at(p place) *output { return &n.path[p.Depth].outputs[p.Output] }

// find returns the place of a storage on the path: the first output that has it.
func (n *node) find(s *graphs.Storage) (place, bool) {
	if n == nil || s == nil {
		return place{}, false
	}
	for d, p := range n.path {
		for i := range p.outputs {
			if p.outputs[i].storage() == s {
				return place{d, i}, true
			}
		}
	}
	return place{}, false
}

// candidates returns the recordings of f after n.
func (n *node) candidates(f *instance) []*node {
	for i := range n.next {
		if n.next[i].f == f {
			return n.next[i].nodes
		}
	}
	return nil
}

// add makes c a child.
func (n *node) add(c *node) {
	for i := range n.next {
		if n.next[i].f == c.f {
			n.next[i].nodes = append(n.next[i].nodes, c)
			return
		}
	}
	n.next = append(n.next, children{c.f, []*node{c}})
}

// descendants counts the descendants of n.
func (n *node) descendants() int {
	sum := 0
	for _, c := range n.next {
		for _, m := range c.nodes {
			sum += 1 + m.descendants()
		}
	}
	return sum
}

// each calls f for n and its descendants.
func (n *node) each(f func(*node)) {
	f(n)
	for _, c := range n.next {
		for _, m := range c.nodes {
			m.each(f)
		}
	}
}

// died returns the places that are live in before and not in now.
func died(before, now [][]bool) []place {
	var places []place
	for d := range before {
		for i := range before[d] {
			if before[d][i] && !now[d][i] {
				places = append(places, place{d, i})
			}
		}
	}
	return places
}
