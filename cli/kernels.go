package cli

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"pwc/cache"
	"pwc/internal/opattr"
	"pwc/ir"
	"pwc/pieces"
	"pwc/program"
	"pwc/runtime/device"
)

// Kernel is a kernel of an extern op for NVIDIA GPUs.
type Kernel struct {
	Name         string // for messages
	Source       string // CUDA C++17. It uses no headers, no textures, and no functions or types of the CUDA runtime
	ArchSpecific string // the target of arch-specific code in the source, "sm_90a" (nvrtc.CompileSpecific); or ""
}

// kernelPipeline is the version of the compilation of kernels, a part of their keys.
const kernelPipeline = "kernel 1"

// hash is the hash of the source and its arch-specific target.
func (k *Kernel) hash() [sha256.Size]byte {
	return sha256.Sum256([]byte(k.ArchSpecific + "\x00" + k.Source))
}

// kernels has the compiled kernels of extern ops and collectives, by Kernel.hash, as programs without steps.
type kernels struct {
	mu   sync.Mutex
	code map[[sha256.Size]byte]*program.Program
}

func (ks *kernels) keep(k Kernel, code *program.Program) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	ks.code[k.hash()] = code
}

// find returns the code of a kernel that was compiled with the model.
func (ks *kernels) find(_ context.Context, k Kernel) (*program.Program, error) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if code, ok := ks.code[k.hash()]; ok {
		return code, nil
	}
	return nil, fmt.Errorf("kernel %s was not compiled with the model; cli.Op.Kernels must return the kernels of an extern op", k.Name)
}

// extras returns the kernels of the module's extern ops and collectives on the target. They are
// compiled and cached with the module's pieces.
func (a *app) extras(m *ir.Module, t *target) ([]pieces.Extra, error) {
	if t.cuda == nil {
		return nil, nil
	}
	var out []pieces.Extra
	seen := map[[sha256.Size]byte]bool{}
	add := func(owner string, list []Kernel) {
		for _, k := range list {
			if seen[k.hash()] {
				continue
			}
			seen[k.hash()] = true
			out = append(out, pieces.Extra{
				Key:     cache.Key{Piece: k.hash(), Target: t.name, Pipeline: kernelPipeline, Externs: owner, Format: program.FormatVersion},
				Origin:  fmt.Sprintf("kernel %s of %s", k.Name, owner),
				Compile: func(ctx context.Context) (*program.Program, error) { return t.compileKernel(ctx, k) },
				Use:     func(p *program.Program) { t.kernels.keep(k, p) },
			})
		}
	}
	for _, e := range m.Called() {
		op, ok := a.op(e.Name)
		if !ok || op.Kernels == nil {
			continue
		}
		calls, err := callsOf(m, e)
		if err != nil {
			return nil, err
		}
		list, err := op.Kernels(t.name, calls)
		if err != nil {
			return nil, err
		}
		add(e.Name, list)
	}
	add("collectives", collectiveKernels(m))
	return out, nil
}

// callsOf returns the operands, results and attributes of every call of an op. Symbols have their
// largest values, so that kernels do not depend on the limits of a machine.
func callsOf(m *ir.Module, e *ir.Extern) ([]device.OpCall, error) {
	largest := func(name string) (int64, bool) {
		if s := m.Symbol(name); s != nil {
			return s.Hi, true
		}
		return 0, false
	}
	var calls []device.OpCall
	for _, f := range m.Funcs {
		for _, n := range f.Nodes {
			if n.Extern == nil || n.Extern.Name != e.Name {
				continue
			}
			call := device.OpCall{Attrs: opattr.Of(n.Attrs)}
			for _, v := range slices.Concat(n.Args, n.Results) {
				t, err := evalTensor(f.Type(v), largest)
				if err != nil {
					return nil, fmt.Errorf("an operand or result of %s: %w", e.Name, err)
				}
				call.Args = append(call.Args, t)
			}
			calls = append(calls, call)
		}
	}
	return calls, nil
}

// evalTensor returns a tensor of a type, with the values of its symbols.
func evalTensor(typ ir.Type, values func(string) (int64, bool)) (device.Tensor, error) {
	t := device.Tensor{DType: typ.DType}
	for _, d := range typ.Shape {
		n, err := d.Eval(values)
		if err != nil {
			return t, err
		}
		t.Shape = append(t.Shape, n)
	}
	return t, nil
}

// compileKernel compiles a kernel into a program.
func (t *target) compileKernel(ctx context.Context, k Kernel) (*program.Program, error) {
	cubin, ptx, err := t.cuda.compileKernel(ctx, k, t.arch())
	var kernel program.Kernel
	if err == nil {
		kernel, err = program.CUDAKernel(k.Name, cubin, ptx)
	}
	if err != nil {
		return nil, err
	}
	return program.Alone(t.name, kernel), nil
}
