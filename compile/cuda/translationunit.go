package cuda

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"pwc/compile"
	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/src"
	"pwc/program"
)

// unit is a translation unit: one source, or two whose kernels compute the same GEMM for
// neighbouring ranges of the number of rows. They have most of their text in common, and NVRTC's front
// end reads it once. Larger units would finish last and set the critical path of a compilation
// on many processors.
type unit []cgen.Source

// units returns the translation units of sources, in their order.
func units(sources []cgen.Source) []unit {
	var out []unit
	for i, s := range sources {
		last := len(out) - 1
		if i > 0 && len(out[last]) == 1 && s.Pairs && sources[i-1].Pairs && s.Arch == sources[i-1].Arch {
			out[last] = sources[i-1 : i+1]
			continue
		}
		out = append(out, sources[i:i+1])
	}
	return out
}

// source returns the name and the text of a unit.
func (u unit) source() (name, source string, err error) {
	var names []string
	var parts []cgen.Part
	for _, s := range u {
		names, parts = append(names, s.Name), append(parts, s.Part)
	}
	source, err = text(parts...)
	return strings.Join(names, "+"), source, err
}

// text returns the source of kernels: a comment line for each, the snippets that they use, each once,
// then the kernels.
func text(parts ...cgen.Part) (string, error) {
	var heads, entries strings.Builder
	var made []src.Snippet
	used := make(map[string]bool)
	for _, p := range parts {
		fmt.Fprintf(&heads, "// %s\n", p.Does)
		entries.WriteString(p.Entry)
		made = append(made, p.Generated...)
		maps.Copy(used, p.Used)
	}
	snippets, err := src.Text(used, made)
	return heads.String() + snippets + entries.String(), err
}

// made is the result of compiling a unit, which happens once: its code, named after its first kernel.
type made struct {
	once   sync.Once
	kernel program.Kernel
	err    error
}

// lowerSources compiles sources in parallel. Each is a variant of the result.
func (b *Backend) lowerSources(sources []cgen.Source) (compile.Code, error) {
	out := compile.Code{Variants: make([]compile.Variant, 0, len(sources))}
	var g errgroup.Group
	for _, s := range sources {
		out.Variants = append(out.Variants, compile.Variant{Guard: s.Guard, Device: s.Device, Steps: []compile.Step{{Launch: s.Launch}}})
	}
	variants := out.Variants
	for _, u := range units(sources) {
		of := variants[:len(u)]
		variants = variants[len(u):]
		g.Go(func() error {
			kernel, err := b.compile(u)
			for i := range of {
				of[i].Steps[0].Kernel = kernel
				of[i].Steps[0].Kernel.Name = u[i].Name
			}
			return err
		})
	}
	return out, g.Wait()
}

// compile returns the code of a unit, named after its first kernel. The code has the unit's other
// kernels, too; callers set their names. A Backend compiles equal units once.
func (b *Backend) compile(u unit) (program.Kernel, error) {
	name, source, err := u.source()
	if err != nil {
		return program.Kernel{}, err
	}
	arch := u[0].Arch
	key := sha256.Sum256([]byte(arch + source))
	b.mu.Lock()
	m := b.made[key]
	if m == nil {
		m = &made{}
		b.made[key] = m
	}
	b.mu.Unlock()
	m.once.Do(func() {
		cubin, ptx, err := b.compiler.Compile(context.Background(), source, name+".cu", arch)
		if arch != b.gpu.String() {
			ptx = nil // PTX for sm_90a does not run on other architectures
		}
		if err == nil {
			m.kernel, err = program.CUDAKernel(u[0].Name, cubin, ptx)
		}
		m.err = err
	})
	return m.kernel, m.err
}
