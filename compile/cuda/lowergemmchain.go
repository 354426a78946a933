package cuda

import (
	"slices"

	"golang.org/x/sync/errgroup"

	"pwc/compile"
	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/fusion"
	"pwc/compile/cuda/internal/library"
	"pwc/program"
)

// lowerGEMMChain compiles a GEMM→norm→GEMM chain. The library routine may compute either GEMM, or both.
// A variant joins one of the first GEMM and one of the rest. The first that a device takes has the parts
// that it would choose separately.
func (b *Backend) lowerGEMMChain(p *fusion.Plan) (compile.Code, error) {
	c, h := p.Chain, loweredChain{p.GEMMChain, compile.Step{}}
	var gemm, rest, norms compile.Code
	var g errgroup.Group
	for _, part := range []struct {
		to    *compile.Code
		lower func() (compile.Code, error)
	}{
		{&gemm, func() (compile.Code, error) { return b.lower(h.GEMM) }},
		{&rest, func() (compile.Code, error) { return b.lowerFused(h.Rest) }},
		{&norms, func() (compile.Code, error) { return b.lower(h.Norm) }},
	} {
		g.Go(func() (err error) {
			*part.to, err = part.lower()
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return compile.Code{}, err
	}
	h.norm = norms.Variants[0].Steps[0]
	h.norm.Args = h.Args
	for _, v := range gemm.Variants {
		if preferenceOf(v) == byLibrary { // no launch for its epilogue: it serves smaller numbers of rows, too
			v.Steps[0].Attrs = library.ServesFrom(v.Steps[0].Attrs, library.From(h.GEMM))
		}
	}
	first, all, temps := int32(len(h.GEMM.Args)), int32(len(c.Same)), int32(len(gemm.Temps))
	for i := range gemm.Variants {
		moveArgs(gemm.Variants[i].Steps, first, 0, all)
	}
	for i := range rest.Variants {
		moveArgs(rest.Variants[i].Steps, all-first, first, all+temps)
	}
	rows := h.GEMM.Rows[len(h.GEMM.Rows)-1]
	firsts, seconds := byPreference(rowsOfLast(gemm.Variants, rows)), byPreference(rowsOfLast(rest.Variants, rows))
	out := compile.Code{Temps: slices.Concat(gemm.Temps, rest.Temps)}
	// In the order of preference of the second GEMM, then of the first.
	for to := byTuned; to <= byOthers; to++ {
		for from := byTuned; from <= byOthers; from++ {
			for _, v := range firsts[from] {
				out.Variants = append(out.Variants, h.join(v, seconds[to])...)
			}
		}
	}
	out.Variants[len(out.Variants)-1].Guard = program.Guard{} // it serves all remaining sizes
	return out, nil
}

// loweredChain is a GEMM→norm→GEMM chain with the code of its norm.
type loweredChain struct {
	*fusion.GEMMChain
	norm compile.Step // one launch: the epilogue of the first GEMM, then the norm
}

// join returns the variants that run a variant of the first GEMM, then one of the rest. If the library
// routine computes the first GEMM, and the variant of the rest begins with the norm, the epilogue of
// the first GEMM runs in the norm's launch.
func (h loweredChain) join(first compile.Variant, rest []compile.Variant) []compile.Variant {
	var out []compile.Variant
	merges := preferenceOf(first) == byTuned || preferenceOf(first) == byLibrary
	for _, second := range rest {
		guard, ok := both(first.Guard, second.Guard)
		if !ok {
			continue
		}
		steps := slices.Concat(first.Steps, second.Steps)
		if s := second.Steps[0]; merges && s.Library == "" && s.Kernel.Name == cgen.EntryName(h.Rest.Chain.Kernels[0].Name) {
			steps = slices.Concat(first.Steps[:1], []compile.Step{h.norm}, second.Steps[1:])
		}
		device := first.Device // all arch-specific variants are of one architecture
		if device.Always() {
			device = second.Device
		}
		out = append(out, compile.Variant{Guard: guard, Device: device, Steps: steps})
	}
	return out
}
