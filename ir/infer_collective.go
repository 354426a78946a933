package ir

import "pwc/ir/dim"

// ranks returns the number of ranks of the node's group.
func (c *inferCtx) ranks() (int64, bool) {
	name := c.attr("group").Str
	if g := c.group(name); g != nil {
		return g.Size, true
	}
	c.errf("%s: group %s is not declared (group %s in 2)", c.op.Name, name, name)
	return 0, false
}

func inferAllReduce(c *inferCtx) []Type {
	if _, ok := c.ranks(); !ok {
		return nil
	}
	return sameFloat(c)
}

// blocks returns x's type with count applied to the extent along attribute axis.
func (c *inferCtx) blocks(count func(d dim.Dim, ranks int64) (dim.Dim, bool)) []Type {
	x := c.args[0]
	ranks, ok := c.ranks()
	if !ok {
		return nil
	}
	a, ok := c.axis("axis", x.Rank())
	if !ok {
		return nil
	}
	d, ok := count(x.Shape[a], ranks)
	if !ok {
		return c.fail("%s: the extent %s of axis %d is not known to be a multiple of the %d ranks", c.op.Name, x.Shape[a], a, ranks)
	}
	shape := append([]dim.Dim{}, x.Shape...)
	shape[a] = d
	return []Type{{x.DType, shape}}
}

func inferAllGather(c *inferCtx) []Type {
	if !c.wantComputable(c.args[0]) {
		return nil
	}
	return c.blocks(func(d dim.Dim, ranks int64) (dim.Dim, bool) { return d.Mul(dim.Const(ranks)), true })
}

func inferReduceScatter(c *inferCtx) []Type {
	if !c.wantDType(c.args[0].DType, "a float", isFloat) {
		return nil
	}
	return c.blocks(func(d dim.Dim, ranks int64) (dim.Dim, bool) { return d.Div(dim.Const(ranks)) })
}

func inferBroadcast(c *inferCtx) []Type {
	ranks, ok := c.ranks()
	if !ok || !c.wantComputable(c.args[0]) {
		return nil
	}
	if root, isConst := c.attr("root").Dim.Const(); !isConst || root < 0 || root >= ranks {
		return c.fail("broadcast: root is %s, want a rank from 0 to %d", c.attr("root").Dim, ranks-1)
	}
	return []Type{c.args[0]}
}
