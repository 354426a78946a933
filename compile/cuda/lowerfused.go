package cuda

import (
	"slices"

	"golang.org/x/sync/errgroup"

	"pwc/compile"
	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/fusion"
	"pwc/compile/cuda/internal/gemm"
	"pwc/ir/dim"
)

var _ compile.VerticalFuser = (*Backend)(nil)

// FusesVertically accepts the chains that package fusion has a plan for: a GEMM with a prologue, epilogues
// or both; or a GEMM, a norm and a second GEMM with or without epilogues.
func (b *Backend) FusesVertically(c *compile.Chain) bool { return fusion.Match(c) != nil }

// LowerVertical compiles a chain that FusesVertically accepts. With few rows a GEMM and its epilogues are
// one launch, which may have the prologue, too, if there is one row. With many rows the prologue and the
// GEMM are launches of their own, and so are epilogues that FusesHorizontally does not accept together.
func (b *Backend) LowerVertical(c *compile.Chain) (compile.Code, error) {
	p := fusion.Match(c)
	if p.GEMMChain != nil {
		return b.lowerGEMMChain(p)
	}
	return b.lowerFused(p)
}

// lowerFused compiles a chain with one GEMM.
func (b *Backend) lowerFused(p *fusion.Plan) (compile.Code, error) {
	specific, others, rest, err := gemm.FusedSources(p, b.on())
	if err != nil {
		return compile.Code{}, err
	}
	fused := slices.Concat(specific, others)
	sources := make([]cgen.Source, len(fused))
	for i, f := range fused {
		sources[i] = f.Source
	}
	var fewRows compile.Code
	var apart apart
	var g errgroup.Group
	g.Go(func() (err error) {
		fewRows, err = b.lowerSources(sources)
		return err
	})
	b.lowerApart(&g, p, rest, &apart)
	if err := g.Wait(); err != nil {
		return compile.Code{}, err
	}
	for i := range fewRows.Variants {
		v := &fewRows.Variants[i]
		v.Steps[0].Args = fused[i].Fused.From
		if p.Fused.Prologue != nil && fused[i].Fused.Prologue == nil {
			v.Steps = slices.Concat(apart.prologue, v.Steps)
		}
	}
	out := compile.Code{Temps: apart.gemm.Temps}
	for i := range apart.gemm.Variants {
		v := &apart.gemm.Variants[i]
		v.Steps = slices.Concat(apart.prologue, v.Steps, apart.epilogues)
	}
	by := byPreference(apart.gemm.Variants)
	// The library routine comes before the fused kernels for all devices: it declines the sizes for which it is slower.
	ours := slices.Concat(fewRows.Variants[:len(specific)], by[bySpecific])
	out.Variants = slices.Concat(beforeSpecific(ours, by[byLibrary]...), ours, by[byLibrary], fewRows.Variants[len(specific):], by[byOthers])
	return out, nil
}

// apart is the code of a chain's kernels one after the other.
type apart struct {
	prologue  []compile.Step
	gemm      compile.Code
	epilogues []compile.Step
}

// lowerApart compiles the kernels of a chain without vertical fusion. The code of the GEMM is for the
// given numbers of rows, which no fused kernel for all devices serves, and for the library routine. The
// prologue also runs before fused kernels without one. Epilogues that FusesHorizontally accepts are one
// launch.
func (b *Backend) lowerApart(g *errgroup.Group, p *fusion.Plan, rows dim.Interval, out *apart) {
	c, at := p.Chain, p.GEMM
	if at > 0 {
		g.Go(func() error {
			code, err := b.lower(c.Kernels[0])
			if err != nil {
				return err
			}
			out.prologue = onChain(c, 0, 1, code).Variants[0].Steps
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
			fused := !s.Device.Always() && at+1 < len(c.Kernels) // arch-specific: lowerFused compiles it with the epilogues
			return fused || rows.Lo > rows.Hi || s.Guard.Hi < rows.Lo && !s.Guard.Always()
		}))
		if err == nil {
			err = b.lowerLibrary(k, &code)
		}
		out.gemm = onChain(c, at, at+1, code)
		return err
	})
	g.Go(func() error {
		for next := at + 1; next < len(c.Kernels); {
			end := next + 1
			if b.FusesHorizontally(c.Kernels[next:]) {
				end = len(c.Kernels)
			}
			code, err := b.lower(c.Kernels[next], c.Kernels[next+1:end]...)
			if err != nil {
				return err
			}
			out.epilogues, next = append(out.epilogues, onChain(c, next, end, code).Variants[0].Steps...), end
		}
		return nil
	})
}
