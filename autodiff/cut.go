package autodiff

import (
	"slices"

	"pwc/ir"
)

// choose returns the values of the forward to save, in the order in which they are computed: the
// cheapest set from which the backward can compute all values that it reads. It is a minimum cut
// between the values that only the forward can compute and the values that the backward reads. If
// there are several, it is the one that recomputes least.
func (j *joint) choose(save Save, used []ir.Value) []ir.Value {
	f := j.fb.Func()
	var g flow
	source, sink := g.node(), g.node()
	in := map[ir.Value]int{} // the node of a value's computation; that of its use is the next one
	var order []ir.Value
	var visit func(v ir.Value) int
	visit = func(v ir.Value) int {
		if id, ok := in[v]; ok {
			return id
		}
		id := g.node()
		use := g.node()
		in[v] = id
		order = append(order, v)
		price := min(j.bytes(v), unlimited>>20)
		if slices.Contains(j.outs, v) {
			price = 0 // the forward returns it anyway
		}
		g.edge(id, use, price)
		n := f.Def(v)
		if !j.repeatable(n, save) {
			g.edge(source, id, unlimited)
			return id
		}
		for _, a := range n.Args {
			if a = j.read(a); j.computed(a) {
				g.edge(visit(a)+1, id, unlimited)
			}
		}
		return id
	}
	for _, v := range used {
		g.edge(visit(j.read(v))+1, sink, unlimited)
	}
	g.saturate(source, sink)
	near := g.reaching(sink)
	var kept []ir.Value
	for _, v := range order {
		if near[in[v]+1] && !near[in[v]] {
			kept = append(kept, v)
		}
	}
	slices.SortFunc(kept, func(a, b ir.Value) int { return int(a - b) })
	return kept
}

// unlimited is the capacity of an edge that no cut may have.
const unlimited = int64(1) << 60

// flow is a network for a maximum flow by Dinic's algorithm.
type flow struct {
	next  [][]int // by node: its edges; edge e and its reverse e^1 are neighbours
	to    []int
	left  []int64
	level []int
	at    []int
}

func (g *flow) node() int {
	g.next = append(g.next, nil)
	return len(g.next) - 1
}

func (g *flow) edge(a, b int, capacity int64) {
	g.next[a] = append(g.next[a], len(g.to))
	g.next[b] = append(g.next[b], len(g.to)+1)
	g.to = append(g.to, b, a)
	g.left = append(g.left, capacity, 0)
}

// saturate sends as much as fits from source to sink.
func (g *flow) saturate(source, sink int) {
	for g.levels(source, sink) {
		g.at = make([]int, len(g.next))
		for g.push(source, sink, unlimited) > 0 {
		}
	}
}

// levels counts the edges from the source; false: the sink cannot be reached.
func (g *flow) levels(source, sink int) bool {
	g.level = slices.Repeat([]int{-1}, len(g.next))
	g.level[source] = 0
	queue := []int{source}
	for len(queue) > 0 {
		a := queue[0]
		queue = queue[1:]
		for _, e := range g.next[a] {
			if b := g.to[e]; g.left[e] > 0 && g.level[b] < 0 {
				g.level[b] = g.level[a] + 1
				queue = append(queue, b)
			}
		}
	}
	return g.level[sink] >= 0
}

// push sends up to limit along one path to the sink and returns how much.
func (g *flow) push(a, sink int, limit int64) int64 {
	if a == sink {
		return limit
	}
	for ; g.at[a] < len(g.next[a]); g.at[a]++ {
		e := g.next[a][g.at[a]]
		if b := g.to[e]; g.left[e] > 0 && g.level[b] == g.level[a]+1 {
			if sent := g.push(b, sink, min(limit, g.left[e])); sent > 0 {
				g.left[e] -= sent
				g.left[e^1] += sent
				return sent
			}
		}
	}
	return 0
}

// reaching returns the nodes from which the sink can be reached through edges with capacity left.
func (g *flow) reaching(sink int) []bool {
	out := make([]bool, len(g.next))
	out[sink] = true
	queue := []int{sink}
	for len(queue) > 0 {
		b := queue[0]
		queue = queue[1:]
		for _, e := range g.next[b] { // the reverse of e leads to b
			if a := g.to[e]; g.left[e^1] > 0 && !out[a] {
				out[a] = true
				queue = append(queue, a)
			}
		}
	}
	return out
}
