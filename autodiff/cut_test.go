package autodiff

import (
	"math/rand"
	"testing"
)

// The cut at the sink of a saturated network has the cost of the cheapest of all cuts.
func TestFlow(t *testing.T) {
	type edge struct {
		a, b     int
		capacity int64
	}
	for seed := range int64(200) {
		r := rand.New(rand.NewSource(seed))
		n := 3 + r.Intn(6)
		var g flow
		for range n {
			g.node()
		}
		var edges []edge
		for range 2 * n {
			e := edge{r.Intn(n), r.Intn(n), int64(r.Intn(8))}
			if e.a != e.b {
				edges = append(edges, e)
				g.edge(e.a, e.b, e.capacity)
			}
		}
		cost := func(near func(v int) bool) (sum int64) {
			for _, e := range edges {
				if !near(e.a) && near(e.b) {
					sum += e.capacity
				}
			}
			return sum
		}
		best := int64(1) << 62
		for set := range 1 << n { // node 0 is the source, node 1 the sink
			if set&1 == 0 && set&2 != 0 {
				best = min(best, cost(func(v int) bool { return set>>v&1 != 0 }))
			}
		}
		g.saturate(0, 1)
		near := g.reaching(1)
		if near[0] || cost(func(v int) bool { return near[v] }) != best {
			t.Fatalf("seed %d: the cut costs %d, the cheapest one %d", seed, cost(func(v int) bool { return near[v] }), best)
		}
	}
}
