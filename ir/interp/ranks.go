package interp

import (
	"context"
	"fmt"
	"maps"

	"pwc/ir"
)

// RunRanks runs f on all devices of m's world, node by node, so that they can exchange values in
// collectives. Each device has its own weights, states and inputs: envs and inputs have one entry
// for each device, by its number ([ir.Module.GroupRank]). RunRanks binds the load symbols of ranks;
// if Env.Symbols has one of them, the values must be equal. It returns the results of every device.
// Otherwise each device's run is like [Run], with an Env.MaxBytes of its own.
func RunRanks(ctx context.Context, m *ir.Module, f *ir.Func, envs []*Env, inputs [][]*Tensor) ([][]*Tensor, error) {
	if m == nil || f == nil {
		return nil, fmt.Errorf("interp: %w", ir.ErrNoModule)
	}
	if len(envs) != m.World() || len(inputs) != m.World() {
		return nil, fmt.Errorf("interp: the module runs on %d devices, got environments of %d and inputs of %d", m.World(), len(envs), len(inputs))
	}
	runs := make([]*run, len(envs))
	for d := range envs {
		env := &Env{}
		if envs[d] != nil {
			env = envs[d]
		}
		bound := *env
		bound.Symbols = m.RankSymbols(d)
		for name, rank := range bound.Symbols {
			if given, ok := env.Symbols[name]; ok && given != rank {
				return nil, fmt.Errorf("interp: device %d: symbol %s is %d by the given value, but the rank of the device is %d", d, name, given, rank)
			}
		}
		maps.Copy(bound.Symbols, env.Symbols)
		r, err := newRun(ctx, m, f, &bound, inputs[d])
		if err != nil {
			return nil, fmt.Errorf("device %d: %w", d, err)
		}
		runs[d] = r
		defer func() { env.IndexErrors = bound.IndexErrors }()
	}
	for i, n := range f.Nodes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := stepRanks(runs, i, n); err != nil {
			return nil, err
		}
	}
	out := make([][]*Tensor, len(runs))
	for d, r := range runs {
		out[d] = r.results()
	}
	return out, nil
}

// stepRanks runs one node on all devices.
func stepRanks(runs []*run, i int, irn *ir.Node) error {
	if irn.Op.Class != ir.Collective {
		for d, r := range runs {
			if err := r.step(i, irn); err != nil {
				return fmt.Errorf("device %d: %w", d, err)
			}
		}
		return nil
	}
	m := runs[0].m
	g := m.Group(irn.Group())
	nodes := make([]*node, len(runs))
	for d, r := range runs {
		n, err := r.enter(i, irn)
		if err != nil {
			return fmt.Errorf("device %d: %w", d, err)
		}
		nodes[d] = n
	}
	for d, n := range nodes {
		members := make([]*node, g.Size)
		for e, o := range nodes {
			if sameButFor(m, g, d, e) {
				members[m.GroupRank(g, e)] = o
			}
		}
		if err := exchange(n, members, m.GroupRank(g, d)); err != nil {
			return m.ErrorAt(runs[d].f, i, "%s: %v", irn.Op.Name, err)
		}
		if err := runs[d].ended; err != nil {
			return fmt.Errorf("device %d: %w", d, err)
		}
	}
	for d, r := range runs {
		r.leave(i, nodes[d])
	}
	return nil
}

// sameButFor reports whether two devices have the same rank in every group but g.
func sameButFor(m *ir.Module, g *ir.Group, d, e int) bool {
	for _, h := range m.Groups {
		if h != g && m.GroupRank(h, d) != m.GroupRank(h, e) {
			return false
		}
	}
	return true
}

// exchange computes the result of the collective at the member with that rank.
func exchange(n *node, members []*node, rank int) error {
	for i, o := range members {
		if a, b := n.args[0], o.args[0]; a.String() != b.String() {
			return fmt.Errorf("operands differ between ranks: rank %d has %s, rank %d has %s", rank, a, i, b)
		}
	}
	out := n.out[0]
	switch n.Op.ID {
	case ir.OpAllReduce:
		for i := range out.Len() {
			if n.visits(len(members)) {
				break
			}
			out.setFloat(i, sumOver(members, i))
		}
	case ir.OpBroadcast:
		out.copyAll(members[n.Int("root")].args[0])
	default:
		n.exchangeBlocks(members, rank)
	}
	return nil
}

// sumOver adds element i of the operands in rank order.
func sumOver(members []*node, i int) float64 {
	sum := 0.0
	for _, o := range members {
		sum += o.args[0].floats[i]
	}
	return sum
}

// exchangeBlocks joins the operands along an axis, or takes the rank's block of their sum.
func (n *node) exchangeBlocks(members []*node, rank int) {
	x, out := n.args[0], n.out[0]
	axis := n.Axis("axis", len(x.Shape))
	from := make([]int64, len(x.Shape))
	n.each(out.Shape, func(i int, idx []int64) {
		copy(from, idx)
		if n.Op.ID == ir.OpReduceScatter {
			from[axis] += int64(rank) * out.Shape[axis]
			out.setFloat(i, sumOver(members, offset(x.Shape, from)))
			return
		}
		from[axis] = idx[axis] % x.Shape[axis]
		out.move(i, members[idx[axis]/x.Shape[axis]].args[0], offset(x.Shape, from))
	})
}
