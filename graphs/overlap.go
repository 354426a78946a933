package graphs

import (
	"slices"

	"pwc/graphs/internal/store"
	"pwc/runtime/device"
)

// read is a storage that a graph reads or writes and did not make.
type read struct {
	t        Tensor
	recorded Tensor          // t at the capture
	graph    bool            // a capture made t's storage, so it may be read without owners until that graph's reset
	made     bool            // graph at the capture
	writes   []device.Buffer // what a replay writes of t; offsets count from its storage's beginning
	write    bool            // a replay writes memory of its storage
}

// written is memory that a capture writes, and its storage.
type written struct {
	of     *store.Storage
	memory device.Buffer
}

// respan recomputes the memory that a replay writes, after reads have changed.
func (g *Graph) respan() {
	spans := slices.Clone(g.own)
	for _, r := range g.reads {
		b := r.t.Storage().Buffer()
		for _, w := range r.writes {
			spans = append(spans, device.Buffer{Memory: b.Memory, Offset: b.Offset + w.Offset, Size: w.Size})
		}
	}
	g.spans = merge(spans)
	for i := range g.reads {
		g.reads[i].write = slices.ContainsFunc(g.spans, func(b device.Buffer) bool {
			return store.Overlaps(b, g.reads[i].t.Storage().Buffer())
		})
	}
}

// madeBy returns the graph whose capture made a storage.
func (s *Session) madeBy(sto *store.Storage) (*Graph, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pools {
		for _, g := range p.graphs {
			if slices.Contains(g.tracked, sto) {
				return g, true
			}
		}
	}
	return nil, false
}

// merge sorts ranges and joins those that overlap or touch.
func merge(spans []device.Buffer) []device.Buffer {
	order := map[device.Memory]int{}
	for _, b := range spans {
		if _, ok := order[b.Memory]; !ok {
			order[b.Memory] = len(order)
		}
	}
	slices.SortFunc(spans, func(a, b device.Buffer) int {
		if d := order[a.Memory] - order[b.Memory]; d != 0 {
			return d
		}
		return int(min(1, max(-1, a.Offset-b.Offset)))
	})
	var out []device.Buffer
	for _, b := range spans {
		if b.Size == 0 {
			continue
		}
		if n := len(out); n > 0 && out[n-1].Memory == b.Memory && out[n-1].Offset+out[n-1].Size >= b.Offset {
			out[n-1].Size = max(out[n-1].Size, b.Offset+b.Size-out[n-1].Offset)
			continue
		}
		out = append(out, b)
	}
	return out
}

// remeet recomputes g's overlaps with others. s.mu is held.
func (g *Graph) remeet() {
	for _, h := range g.near {
		if h != g {
			h.near = slices.DeleteFunc(h.near, func(x *Graph) bool { return x == g })
		}
	}
	g.pool.graphs = slices.DeleteFunc(g.pool.graphs, func(h *Graph) bool { return h == g })
	g.near, g.victims = nil, nil
	g.meetAll()
}

// meetAll computes g's overlaps with the graphs and storages of the session. s.mu is held.
func (g *Graph) meetAll() {
	g.near = append(g.near, g)
	for _, p := range g.s.poolsWith(g.pool) {
		for _, h := range p.graphs {
			if h == g {
				continue
			}
			for _, sto := range h.tracked {
				g.meets(sto)
			}
			for _, sto := range g.tracked {
				h.meets(sto)
			}
			if g.conflicts(h) {
				g.near, h.near = append(g.near, h), append(h.near, g)
			}
		}
		for _, sto := range p.eager {
			g.meets(sto)
		}
	}
	g.pool.graphs = append(g.pool.graphs, g)
	if !slices.Contains(g.s.pools, g.pool) {
		g.s.pools = append(g.s.pools, g.pool)
	}
}

// poolsWith returns the session's pools, and p.
func (s *Session) poolsWith(p *Pool) []*Pool {
	if slices.Contains(s.pools, p) {
		return s.pools
	}
	return append(slices.Clone(s.pools), p)
}

// meets makes sto a victim of g if a replay of g writes sto's memory, unless g made sto or accesses it as
// an input. s.mu is held.
func (g *Graph) meets(sto *store.Storage) {
	if slices.Contains(g.tracked, sto) || slices.Contains(g.victims, sto) {
		return
	}
	if slices.ContainsFunc(g.reads, func(r read) bool { return r.t.Storage() == sto }) {
		return
	}
	if slices.ContainsFunc(g.spans, func(b device.Buffer) bool { return store.Overlaps(b, sto.Buffer()) }) {
		g.victims = append(g.victims, sto)
	}
}

// conflicts reports whether replays of g and h must be ordered.
func (g *Graph) conflicts(h *Graph) bool {
	for _, a := range g.spans {
		for _, b := range h.spans {
			if store.Overlaps(a, b) {
				return true
			}
		}
		for _, r := range h.reads {
			if store.Overlaps(a, r.t.Range()) {
				return true
			}
		}
	}
	for _, r := range g.reads {
		for _, b := range h.spans {
			if store.Overlaps(b, r.t.Range()) {
				return true
			}
		}
	}
	return slices.ContainsFunc(g.libraries, func(st int32) bool { return slices.Contains(h.libraries, st) })
}

// ready returns an error if a storage that a graph reads cannot be read.
func (r *read) ready() error {
	if r.graph {
		return r.t.At(r.t.Storage()).Weak().Err() // callables start incarnations of their results
	}
	return r.t.Err()
}
