package cuda

import (
	"slices"

	"golang.org/x/sync/errgroup"

	"pwc/compile"
	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

var _ compile.Chains = (*Backend)(nil)

// Chains accepts a product with what can run in its launch: a nest that makes the
// rows of its first operand, as a norm does, and pointwise nests that need a few of
// its columns at a time, as a gate and what it opens, or the halves of a rotation.
// Before that there may be the product whose result the rows are made of.
func (b *Backend) Chains(c *compile.Chain) bool { return fuse(c) != nil || b.heads(c) != nil }

// LowerChain makes code of a chain that Chains accepts: for the fewest rows one
// kernel; for more what makes the rows has its own; for many each kernel has.
func (b *Backend) LowerChain(c *compile.Chain) (compile.Code, error) {
	f := fuse(c)
	if f == nil {
		return b.lowerHeaded(c, b.heads(c))
	}
	rows := nest.RowsRange(f.product)
	var sources []cgen.Source // for few rows, in one launch
	var ways []*fused         // what they are of
	own := 0                  // of them for one architecture alone, which come first
	least := rows.Lo
	at := len(c.Kernels) - len(f.tails) - 1 // the product
	for _, p := range f.shapes(b.on()) {
		if p.most < least || least > rows.Hi {
			continue
		}
		one := f
		if f.lead != nil && !p.leads() {
			one = withoutLead(c)
		}
		src, err := fusedKernel(one, b.gpu, p)
		if err != nil {
			return compile.Code{}, err
		}
		src.Guard = p.guard(f.product, least, rows)
		if p.own {
			sources, ways = slices.Insert(sources, own, src), slices.Insert(ways, own, one)
			own++
			continue
		}
		sources, ways, least = append(sources, src), append(ways, one), p.most+1
	}
	var few compile.Code
	var apart apart
	var g errgroup.Group
	g.Go(func() (err error) {
		few, err = b.lowerSources(sources)
		return err
	})
	b.lowerApart(&g, c, at, dim.Interval{Lo: least, Hi: rows.Hi}, &apart)
	if err := g.Wait(); err != nil {
		return compile.Code{}, err
	}
	for i := range few.Variants {
		v := &few.Variants[i]
		v.Steps[0].Args = ways[i].from
		if f.lead != nil && ways[i].lead == nil {
			v.Steps = slices.Concat(apart.lead, v.Steps)
		}
	}
	out := compile.Code{Temps: apart.product.Temps}
	ofKind := make(map[kind][]compile.Variant)
	for _, v := range apart.product.Variants {
		k := kindOf(v)
		v.Steps = slices.Concat(apart.lead, v.Steps, apart.tails)
		ofKind[k] = append(ofKind[k], v)
	}
	// The routine declines where it is not faster.
	alone := slices.Concat(few.Variants[:own], ofKind[byOwn])
	out.Variants = slices.Concat(beforeOwn(alone, ofKind[byRoutine]...), alone, ofKind[byRoutine], few.Variants[own:], ofKind[byOthers])
	return out, nil
}

// kind is what computes the product of a variant, in the order of preference.
type kind uint8

const (
	byTuned   kind = iota // of a library, before kernels for one architecture alone
	byOwn                 // a kernel for one architecture alone
	byRoutine             // of a library
	byOthers
)

func kindOf(v compile.Variant) kind {
	routine := slices.ContainsFunc(v.Steps, func(s compile.Step) bool { return s.Library != "" })
	switch {
	case routine && !v.Device.Always():
		return byTuned
	case routine:
		return byRoutine
	case !v.Device.Always():
		return byOwn
	}
	return byOthers
}

// apart is the code of a chain's kernels one after the other.
type apart struct {
	lead    []compile.Step
	product compile.Code
	tails   []compile.Step
}

// lowerApart makes code of a chain's kernels one after the other, of which the at-th
// is the product, for the numbers of rows that are left.
func (b *Backend) lowerApart(g *errgroup.Group, c *compile.Chain, at int, rows dim.Interval, out *apart) {
	if at > 0 {
		g.Go(func() error {
			code, err := b.lower(c.Kernels[0])
			if err != nil {
				return err
			}
			out.lead = onChain(c, 0, 1, code).Variants[0].Steps
			return nil
		})
	}
	g.Go(func() error {
		k := c.Kernels[at]
		sources, err := b.sources(k)
		if err != nil {
			return err
		}
		code, err := b.lowerSources(slices.DeleteFunc(sources, func(s cgen.Source) bool {
			own := !s.Device.Always() && at+1 < len(c.Kernels) // its tails are in its launch
			return own || rows.Lo > rows.Hi || s.Guard.Hi < rows.Lo && !s.Guard.Always()
		}))
		if err == nil {
			err = b.lowerLibrary(k, &code)
		}
		out.product = onChain(c, at, at+1, code)
		return err
	})
	g.Go(func() error {
		for next := at + 1; next < len(c.Kernels); {
			end := next + 1
			if b.Beside(c.Kernels[next:]) {
				end = len(c.Kernels)
			}
			code, err := b.lower(c.Kernels[next], c.Kernels[next+1:end]...)
			if err != nil {
				return err
			}
			out.tails, next = append(out.tails, onChain(c, next, end, code).Variants[0].Steps...), end
		}
		return nil
	})
}

// withoutLead returns a chain as one launch that comes after its first kernel.
func withoutLead(c *compile.Chain) *fused {
	n := len(c.Kernels[0].Args)
	f := fuse(afterFirst(c))
	for i := range f.from {
		f.from[i] += int32(n)
	}
	return f
}

// onChain returns the code of some of the chain's kernels on the chain's arguments.
func onChain(c *compile.Chain, from, to int, code compile.Code) compile.Code {
	for i := range code.Variants {
		moveArgs(code.Variants[i].Steps, argsOf(c.Kernels[from:to]), argsOf(c.Kernels[:from]), int32(len(c.Same)))
	}
	return code
}

func argsOf(ks []*loop.Kernel) (n int32) {
	for _, k := range ks {
		n += int32(len(k.Args))
	}
	return n
}
