package pt2

import (
	"pwc/ir"
	"pwc/ir/dim"
)

// recurrentRules are the cells of recurrent networks, and whole layers over sequences of a
// fixed length, which are unrolled.
var recurrentRules = map[string]opRule{
	"aten.gru_cell": func(c *call) []ir.Value {
		return one(c.gru(c.tensor("input"), c.tensor("hx"), c.cell("w_ih", "w_hh", "b_ih", "b_hh")))
	},
	"aten.lstm_cell": func(c *call) []ir.Value {
		hx := c.tensors("hx")
		if len(hx) != 2 {
			c.fail("it takes a hidden and a cell state")
		}
		h, cell := c.lstm(c.tensor("input"), hx[0], hx[1], c.cell("w_ih", "w_hh", "b_ih", "b_hh"))
		return []ir.Value{h, cell}
	},
	"aten.rnn_tanh_cell": func(c *call) []ir.Value {
		return one(c.rnn("tanh", c.tensor("input"), c.tensor("hx"), c.cell("w_ih", "w_hh", "b_ih", "b_hh")))
	},
	"aten.rnn_relu_cell": func(c *call) []ir.Value {
		return one(c.rnn("relu", c.tensor("input"), c.tensor("hx"), c.cell("w_ih", "w_hh", "b_ih", "b_hh")))
	},
	"aten.gru": layers("gru"), "aten.lstm": layers("lstm"), "aten.rnn_tanh": layers("tanh"), "aten.rnn_relu": layers("relu"),
}

// A cell has the parameters of a recurrent cell; biases may be ir.NoValue.
type cell struct{ inWeight, hiddenWeight, inBias, hiddenBias ir.Value }

func (c *call) cell(wi, wh, bi, bh string) cell {
	p := cell{c.tensor(wi), c.tensor(wh), ir.NoValue, ir.NoValue}
	if c.has(bi) {
		p.inBias = c.tensor(bi)
	}
	if c.has(bh) {
		p.hiddenBias = c.tensor(bh)
	}
	return p
}

func (c *call) affineOf(x, w, b ir.Value) ir.Value {
	if b == ir.NoValue {
		return c.op("linear", []ir.Value{x, w})
	}
	return c.op("linear", []ir.Value{x, w, b})
}

// parts cuts the last axis into n equal parts.
func (c *call) parts(x ir.Value, n int64) []ir.Value {
	out := make([]ir.Value, n)
	axis := c.rank(x) - 1
	if axis < 0 {
		return out
	}
	size := c.shape(x)[axis].FloorDiv(n)
	for i := range out {
		out[i] = c.slice(x, axis, size.Mul(dim.Const(int64(i))), size.Mul(dim.Const(int64(i)+1)), 1)
	}
	return out
}

// halves cuts an axis into two equal parts.
func (c *call) halves(x ir.Value, axis int) (a, b ir.Value) {
	n := c.shape(x)[axis]
	half := n.FloorDiv(2)
	return c.slice(x, axis, dim.Const(0), half, 1), c.slice(x, axis, half, n, 1)
}

// gru is torch.nn.GRUCell: n + z*(h-n).
func (c *call) gru(x, h ir.Value, p cell) ir.Value {
	dt := c.dtype(h)
	i, g := c.parts(c.wide(c.affineOf(x, p.inWeight, p.inBias)), 3), c.parts(c.wide(c.affineOf(h, p.hiddenWeight, p.hiddenBias)), 3)
	h = c.wide(h)
	r := c.un("sigmoid", c.bin("add", i[0], g[0]))
	z := c.un("sigmoid", c.bin("add", i[1], g[1]))
	n := c.un("tanh", c.bin("add", i[2], c.bin("mul", r, g[2])))
	return c.cast(c.bin("add", n, c.bin("mul", z, c.bin("sub", h, n))), dt)
}

// lstm is torch.nn.LSTMCell.
func (c *call) lstm(x, h, state ir.Value, p cell) (hidden, next ir.Value) {
	dt := c.dtype(state)
	gates := c.parts(c.bin("add", c.wide(c.affineOf(x, p.inWeight, p.inBias)), c.wide(c.affineOf(h, p.hiddenWeight, p.hiddenBias))), 4)
	in, forget, out := c.un("sigmoid", gates[0]), c.un("sigmoid", gates[1]), c.un("sigmoid", gates[3])
	next = c.bin("add", c.bin("mul", forget, c.wide(state)), c.bin("mul", in, c.un("tanh", gates[2])))
	return c.cast(c.bin("mul", out, c.un("tanh", next)), dt), c.cast(next, dt)
}

func (c *call) rnn(act string, x, h ir.Value, p cell) ir.Value {
	sum := c.bin("add", c.wide(c.affineOf(x, p.inWeight, p.inBias)), c.wide(c.affineOf(h, p.hiddenWeight, p.hiddenBias)))
	return c.cast(c.un(act, sum), c.dtype(h))
}

// maxUnrolled bounds the steps of a sequence that are unrolled.
const maxUnrolled = 256

// layers is the rule of gru.input(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
// batch_first), and of lstm, rnn_tanh and rnn_relu.
func layers(kind string) opRule {
	return func(c *call) []ir.Value {
		x := c.tensor("input")
		first, both := c.bool("batch_first", false), c.bool("bidirectional", false)
		if c.overload != "input" || c.rank(x) != 3 {
			c.fail("packed sequences, and inputs that do not have 3 axes, are not supported")
		}
		if c.bool("train", false) && c.float("dropout", 0) != 0 && c.int("num_layers", 1) > 1 {
			c.fail("it drops values between layers at random (train=True); call eval() before the export")
		}
		if first {
			x = c.transpose(x, 1, 0, 2)
		}
		steps, ok := c.shape(x)[0].Const()
		if !ok || steps < 1 || steps > maxUnrolled {
			c.fail("the sequence is unrolled, so its length (%s) must be a constant from 1 to %d", c.shape(x)[0], maxUnrolled)
		}
		var hx []ir.Value
		if kind == "lstm" {
			hx = c.tensors("hx")
		} else {
			hx = []ir.Value{c.tensor("hx")}
		}
		l := &layered{kind: kind, steps: steps, hx: hx, params: c.tensors("params"), biases: c.bool("has_biases", true), last: make([][]ir.Value, len(hx))}
		for layer := range c.int("num_layers", 1) {
			x = c.layer(l, x, int(layer), both)
		}
		if first {
			x = c.transpose(x, 1, 0, 2)
		}
		out := one(x)
		for _, list := range l.last {
			out = append(out, c.concat(0, list...))
		}
		return out
	}
}

// layered is a stack of recurrent layers.
type layered struct {
	kind   string
	steps  int64
	hx     []ir.Value // states before the first step: [layers*directions, N, H]
	params []ir.Value
	biases bool
	last   [][]ir.Value // states after the last step, for each of hx
}

func (c *call) layer(l *layered, x ir.Value, layer int, both bool) ir.Value {
	directions := 1 + b2i(both)
	var sides []ir.Value
	for d := range directions {
		run := layer*directions + d
		each := 2 + 2*b2i(l.biases)
		if (run+1)*each > len(l.params) || len(l.hx) != len(l.last) || len(l.hx) == 0 {
			c.fail("it has %d parameters, too few for its layers", len(l.params))
		}
		own := l.params[run*each:]
		p := cell{own[0], own[1], ir.NoValue, ir.NoValue}
		if l.biases {
			p.inBias, p.hiddenBias = own[2], own[3]
		}
		sides = append(sides, c.sweep(l, x, run, p, d == 1))
	}
	return c.concat(2, sides...)
}

// sweep runs a cell over all steps, from the last to the first if backward is set.
func (c *call) sweep(l *layered, x ir.Value, run int, p cell, backward bool) ir.Value {
	state := make([]ir.Value, len(l.hx))
	for i, h := range l.hx {
		state[i] = c.at(h, 0, dim.Const(int64(run)))
	}
	outputs := make([]ir.Value, l.steps)
	for i := range l.steps {
		step := i
		if backward {
			step = l.steps - 1 - i
		}
		in := c.at(x, 0, dim.Const(step))
		switch l.kind {
		case "gru":
			state[0] = c.gru(in, state[0], p)
		case "lstm":
			state[0], state[1] = c.lstm(in, state[0], state[1], p)
		default:
			state[0] = c.rnn(l.kind, in, state[0], p)
		}
		outputs[step] = c.unsqueeze(state[0], 0)
	}
	for i, s := range state {
		l.last[i] = append(l.last[i], c.unsqueeze(s, 0))
	}
	return c.concat(0, outputs...)
}
