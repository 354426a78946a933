package pt2

import (
	"pwc/ir"
	"pwc/ir/dtype"
)

// runsRegion imports a higher-order op that runs a graph once under other settings: the nodes of the graph replace
// it. It reports whether the op is one.
func (c *call) runsRegion() bool {
	switch c.base {
	case "higher_order.wrap_with_set_grad_enabled": // the import computes no gradients
		c.region(c.autocast)
	case "higher_order.wrap_with_autocast":
		// The arguments are device, dtype, enabled and cache_enabled.
		c.region(len(c.n.Inputs) > 2 && c.n.Inputs[2].Arg.Bool != nil && *c.n.Inputs[2].Arg.Bool)
	default:
		return false
	}
	return true
}

// region imports the nodes of the graph that the call runs. The graph has names of its own.
func (c *call) region(autocast bool) {
	at := -1
	for i := range c.n.Inputs {
		if c.n.Inputs[i].Arg.Graph != nil {
			at = i
			break
		}
	}
	if at < 0 || c.n.Inputs[at].Arg.Graph.Graph == nil {
		c.fail("it has no graph")
	}
	g := c.n.Inputs[at].Arg.Graph.Graph
	operands := c.n.Inputs[at+1:]
	if len(operands) != len(g.Inputs) {
		c.fail("its graph has %d inputs, the call gives %d", len(g.Inputs), len(operands))
	}
	values := map[string]*tensor{}
	for i := range operands {
		in, given := g.Inputs[i].Tensor, operands[i].Arg.Tensor
		switch {
		case in == nil && given == nil: // a size, which the graph has as an expression
		case in == nil || given == nil:
			c.fail("input %d is a tensor in only one of the call and its graph", i)
		default:
			values[in.Name] = c.named(given.Name)
		}
	}
	results := c.inRegion(g, values, autocast)
	k := 0
	for _, name := range c.outs {
		if k >= len(results) {
			c.fail("its graph has %d results, the call %d", len(results), len(c.outs))
		}
		if name != "" {
			if results[k] == nil {
				c.fail("result %d of its graph is not a tensor", k)
			}
			c.values[name] = results[k]
		}
		k++
	}
}

// inRegion imports the nodes of a graph, which reads these values, and returns its results; nil for a result that is
// not a tensor.
func (im *importer) inRegion(g *graph, values map[string]*tensor, autocast bool) []*tensor {
	graph, outer, cast := im.graph, im.values, im.autocast
	im.graph, im.values, im.autocast = g, values, autocast
	defer func() { im.graph, im.values, im.autocast = graph, outer, cast }()
	for i := range g.Nodes {
		if err := im.node(&g.Nodes[i]); err != nil {
			panic(refusal{err})
		}
	}
	var out []*tensor
	for i := range g.Outputs {
		var t *tensor
		if ref := g.Outputs[i].Tensor; ref != nil {
			t = values[ref.Name]
		}
		out = append(out, t)
	}
	return out
}

// autocastOperand casts an operand to the dtype in which autocast computes, which the export recorded as the dtype of
// the result.
func (c *call) autocastOperand(v ir.Value) ir.Value {
	if !c.autocast || !castable(c.dtype(v)) || len(c.outs) == 0 || c.outs[0] == "" {
		return v
	}
	if meta, ok := c.graph.TensorValues[c.outs[0]]; ok {
		if dt := scalarTypes[meta.DType]; castable(dt) {
			return c.cast(v, dt)
		}
	}
	return v
}

// castable reports whether autocast converts from and to the dtype.
func castable(dt dtype.DType) bool {
	return dt == dtype.F32 || dt == dtype.F16 || dt == dtype.BF16
}
