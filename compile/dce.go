package compile

import "pwc/ir"

// dce drops nodes whose results nothing uses. It keeps calls, and writes to memory that
// outlives the function or that is read later.
func dce(m *ir.Module, fn *ir.Func) (*ir.Func, error) {
	used := make([]bool, len(fn.Values))
	for _, v := range fn.Returns {
		used[v] = true
	}
	live := make([]bool, len(fn.Nodes))
	for i := len(fn.Nodes) - 1; i >= 0; i-- {
		n := fn.Nodes[i]
		keep := n.Op.Class == ir.Call
		for _, r := range n.Results {
			keep = keep || used[r]
		}
		for _, w := range n.Versions {
			keep = keep || used[w.Value] || !local(fn, fn.Base(w.Value))
		}
		live[i] = keep
		if keep {
			for _, a := range n.Args {
				used[a] = true
			}
		}
	}
	return ir.RewriteUnverified(m, fn, func(rw *ir.Rewriter, i int, n *ir.Node) {
		if live[i] {
			rw.Keep(n)
		}
	})
}

// local reports whether a node of the function makes the storage.
func local(fn *ir.Func, base ir.Value) bool { return fn.Values[base].Kind == ir.ResultValue }
