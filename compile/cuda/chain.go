package cuda

import (
	"slices"

	"golang.org/x/sync/errgroup"

	"pwc/compile"
	"pwc/compile/loop"
	"pwc/program"
)

var _ compile.Chains = (*Backend)(nil)

// Chains accepts a product with what can run in its launch: a nest that makes the
// rows of its first operand, as a norm does, and pointwise nests that need a few of
// its columns at a time, as a gate and what it opens, or the halves of a rotation.
func (b *Backend) Chains(c *compile.Chain) bool { return fuse(c) != nil }

// LowerChain makes code of a chain that Chains accepts: for the fewest rows one
// kernel; for more what makes the rows has its own; for many each kernel has.
func (b *Backend) LowerChain(c *compile.Chain) (compile.Code, error) {
	f := fuse(c)
	rows := newEmitter(f.product, b.arch, "").rowsRange()
	apart, err := b.lowerApart(c, f)
	if err != nil {
		return compile.Code{}, err
	}
	var few []compile.Variant
	var g errgroup.Group
	least := rows.Lo
	for _, p := range f.shapes(b.arch) {
		if p.most < least || least > rows.Hi {
			continue
		}
		way := compile.Variant{Guard: rowsGuard(f.product, least, p.most, rows)}
		least = p.most + 1
		one := f
		if f.lead != nil && !p.leads() {
			one = withoutLead(c)
			way.Steps = slices.Clone(apart.lead)
		}
		src, err := fusedKernel(one, b.arch, p)
		if err != nil {
			return compile.Code{}, err
		}
		way.Steps = append(way.Steps, compile.Step{Launch: src.Launch, Args: one.from})
		step := &way.Steps[len(way.Steps)-1]
		g.Go(func() error {
			code, err := b.compile(src)
			step.Kernel = program.Kernel{Name: src.Name, Format: b.format(), Code: code}
			return err
		})
		few = append(few, way)
	}
	if err := g.Wait(); err != nil {
		return compile.Code{}, err
	}
	out := compile.Code{Temps: apart.product.Temps}
	var many []compile.Variant
	for _, v := range apart.product.Variants {
		library := slices.ContainsFunc(v.Steps, func(s compile.Step) bool { return s.Library != "" })
		v.Steps = slices.Concat(apart.lead, v.Steps, apart.tails)
		switch {
		case library: // declines where it is not faster
			out.Variants = append(out.Variants, v)
		case least <= rows.Hi && (v.Guard.Always() || v.Guard.Hi >= least):
			many = append(many, v)
		}
	}
	out.Variants = slices.Concat(out.Variants, few, many)
	return out, nil
}

// apart is the code of a chain's kernels one after the other.
type apart struct {
	lead    []compile.Step
	product compile.Code
	tails   []compile.Step
}

func (b *Backend) lowerApart(c *compile.Chain, f *fused) (*apart, error) {
	out := &apart{}
	at := 0
	if f.lead != nil {
		code, err := b.lowerSome(c, 0, 1)
		if err != nil {
			return nil, err
		}
		out.lead, at = code.Variants[0].Steps, 1
	}
	var err error
	if out.product, err = b.lowerSome(c, at, at+1); err != nil {
		return nil, err
	}
	for next := at + 1; next < len(c.Kernels); {
		end := next + 1
		if b.Beside(c.Kernels[next:]) {
			end = len(c.Kernels)
		}
		code, err := b.lowerSome(c, next, end)
		if err != nil {
			return nil, err
		}
		out.tails, next = append(out.tails, code.Variants[0].Steps...), end
	}
	return out, nil
}

// withoutLead returns a chain as one launch that comes after its first kernel.
func withoutLead(c *compile.Chain) *fused {
	n := len(c.Kernels[0].Args)
	rest := &compile.Chain{Kernels: c.Kernels[1:], Dead: c.Dead[n:]}
	for _, root := range c.Same[n:] {
		rest.Same = append(rest.Same, int32(slices.Index(c.Same[n:], root)))
	}
	f := fuse(rest)
	for i := range f.from {
		f.from[i] += int32(n)
	}
	return f
}

// lowerSome makes code of some of the chain's kernels, side by side, on the chain's
// arguments.
func (b *Backend) lowerSome(c *compile.Chain, from, to int) (compile.Code, error) {
	code, err := b.Lower(c.Kernels[from])
	if to > from+1 {
		code, err = b.LowerBeside(c.Kernels[from:to])
	}
	if err != nil {
		return code, err
	}
	first, count := argsOf(c.Kernels[:from]), argsOf(c.Kernels[from:to])
	for i := range code.Variants {
		for j := range code.Variants[i].Steps {
			s := &code.Variants[i].Steps[j]
			args := s.Args
			if args == nil {
				for a := range count {
					args = append(args, a)
				}
			}
			s.Args = make([]int32, len(args))
			for k, a := range args {
				if s.Args[k] = first + a; a >= count { // one of Temps
					s.Args[k] = a - count + int32(len(c.Same))
				}
			}
		}
	}
	return code, nil
}

func argsOf(ks []*loop.Kernel) (n int32) {
	for _, k := range ks {
		n += int32(len(k.Args))
	}
	return n
}
