package cuda

import (
	"math"
	"slices"

	"golang.org/x/sync/errgroup"

	"pwc/compile"
	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/program"
)

// headed is a chain that begins with a product whose result the norm of another
// chain reads: where the routine computes the first product, what happens to its
// sums (a residual is added) runs in the launch of the norm.
type headed struct {
	rest  *compile.Chain // from the norm on
	way   *libraryWay    // of the first product
	norm  *loop.Kernel   // with what happens to the sums before it
	args  []int32        // of norm, in the chain; the last of them is the first product's temp
	first int32          // arguments of the first product
}

// heads returns a chain with a product at its head, nil if it is none.
func (b *Backend) heads(c *compile.Chain) *headed {
	head := c.Kernels[0]
	if head.MatMul == nil || len(c.Kernels) < 3 {
		return nil
	}
	h := &headed{rest: afterFirst(c), first: int32(len(head.Args))}
	if f := fuse(h.rest); f == nil || f.lead == nil || !head.Rows[len(head.Rows)-1].Equal(f.product.Rows[0]) {
		return nil
	}
	var ok bool
	if h.way, ok = library(head); !ok || h.way.after == nil {
		return nil
	}
	store := nest.OnlyStore(h.way.after)
	if store == nil {
		return nil
	}
	out := store.Access.Arg // of what comes after the sums
	norm := c.Kernels[1]
	x := int32(-1)
	for a := range norm.Args {
		if c.Same[h.first+int32(a)] == c.Same[h.way.from[out]] {
			x = int32(a)
		}
	}
	if x < 0 {
		return nil
	}
	merged, more := merge(h.way.after, norm, x, out)
	if merged == nil {
		return nil
	}
	for a := range norm.Args {
		h.args = append(h.args, h.first+int32(a))
	}
	for _, a := range more[:len(more)-1] { // the last is the temp
		h.args = append(h.args, h.way.from[a])
	}
	h.args, h.norm = append(h.args, int32(len(c.Same))), merged
	for a, arg := range merged.Args { // nothing is written that is read elsewhere in the launch
		for o, other := range merged.Args[:a] {
			if (arg.Write || other.Write) && h.args[a] < int32(len(c.Same)) && h.args[o] < int32(len(c.Same)) && c.Same[h.args[a]] == c.Same[h.args[o]] {
				return nil
			}
		}
	}
	return h
}

// afterFirst returns a chain without its first kernel.
func afterFirst(c *compile.Chain) *compile.Chain {
	n := len(c.Kernels[0].Args)
	rest := &compile.Chain{Kernels: c.Kernels[1:], Dead: c.Dead[n:]}
	for _, root := range c.Same[n:] {
		rest.Same = append(rest.Same, int32(slices.Index(c.Same[n:], root)))
	}
	return rest
}

// lowerHeaded makes code of a chain with a product at its head. Either product may be
// the routine's: it takes each call or does not. The first of the ways that holds is
// the one that would be taken of each part alone.
func (b *Backend) lowerHeaded(c *compile.Chain, h *headed) (compile.Code, error) {
	var head, rest, norms compile.Code
	var g errgroup.Group
	for _, part := range []struct {
		to    *compile.Code
		lower func() (compile.Code, error)
	}{
		{&head, func() (compile.Code, error) { return b.lower(c.Kernels[0]) }},
		{&rest, func() (compile.Code, error) { return b.LowerChain(h.rest) }},
		{&norms, func() (compile.Code, error) { return b.lower(h.norm) }},
	} {
		g.Go(func() (err error) {
			*part.to, err = part.lower()
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return compile.Code{}, err
	}
	norm := norms.Variants[0].Steps[0]
	norm.Args = h.args
	for _, v := range head.Variants {
		if kindOf(v) == byRoutine { // what happens to its sums costs next to nothing here
			v.Steps[0].Attrs = servesFrom(v.Steps[0].Attrs, libraryFrom(c.Kernels[0]))
		}
	}
	all, temps := int32(len(c.Same)), int32(len(head.Temps))
	for i := range head.Variants {
		moveArgs(head.Variants[i].Steps, h.first, 0, all)
	}
	for i := range rest.Variants {
		moveArgs(rest.Variants[i].Steps, all-h.first, h.first, all+temps)
	}
	out := compile.Code{Temps: slices.Concat(head.Temps, rest.Temps)}
	join := func(first, second compile.Variant, merged bool) {
		steps := slices.Concat(first.Steps, second.Steps)
		if lead := second.Steps[0]; merged && lead.Library == "" && lead.Kernel.Name == cgen.EntryName(c.Kernels[1].Name) {
			steps = slices.Concat(first.Steps[:1], []compile.Step{norm}, second.Steps[1:])
		}
		own := first.Device // there is one architecture
		if own.Always() {
			own = second.Device
		}
		if g, ok := both(first.Guard, second.Guard); ok {
			out.Variants = append(out.Variants, compile.Variant{Guard: g, Device: own, Steps: steps})
		}
	}
	rows := c.Kernels[0].Rows
	heads, others := apartByRows(head.Variants, rows[len(rows)-1]), apartByRows(rest.Variants, rows[len(rows)-1])
	// In the order of preference of the second product, then of the first.
	for to := byTuned; to <= byOthers; to++ {
		for from := byTuned; from <= byOthers; from++ {
			for _, first := range heads {
				for _, second := range others {
					if kindOf(first) == from && kindOf(second) == to {
						join(first, second, from == byTuned || from == byRoutine)
					}
				}
			}
		}
	}
	out.Variants[len(out.Variants)-1].Guard = program.Guard{} // what is left
	return out, nil
}

// apartByRows says of variants for rising numbers of rows, the last of which is for
// all that are left, how many these are.
func apartByRows(vs []compile.Variant, rows dim.Dim) []compile.Variant {
	out := slices.Clone(vs)
	last := len(out) - 1
	for _, v := range out[:last] {
		if _, known := rows.Const(); !known && kindOf(v) == byOthers {
			out[last].Guard = program.Guard{Expr: rows, Lo: v.Guard.Hi + 1, Hi: math.MaxInt64}
		}
	}
	return out
}

// moveArgs gives steps of code for so many arguments their numbers in code of which
// they are part: arguments from first on, temps from temp on.
func moveArgs(steps []compile.Step, count, first, temp int32) {
	for i := range steps {
		s := &steps[i]
		args := s.Args
		if args == nil {
			for a := range count {
				args = append(args, a)
			}
		}
		s.Args = make([]int32, len(args))
		for k, a := range args {
			if s.Args[k] = first + a; a >= count {
				s.Args[k] = a - count + temp
			}
		}
	}
}

// both returns the guard that holds where both do, and whether there may be such a
// size. Guards of one chain are over its rows.
func both(a, b program.Guard) (program.Guard, bool) {
	switch {
	case a.Always():
		return b, true
	case b.Always():
		return a, true
	}
	a.Lo, a.Hi = max(a.Lo, b.Lo), min(a.Hi, b.Hi)
	return a, a.Lo <= a.Hi
}
