package program_test

import (
	"strings"
	"testing"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
)

// TestValidate checks programs that are valid, and the example, changed for each error.
func TestValidate(t *testing.T) {
	if err := example(t).Validate(); err != nil {
		t.Fatal(err)
	}
	collective := example(t) // its last variant calls a collective, which every device of a group has
	last := collective.Steps[2].Variants[1].Steps[0]
	last.Extern = program.CollectivePrefix + "all_reduce"
	collective.Steps[2].Variants[2].Steps = []program.Step{last}
	if err := collective.Validate(); err != nil {
		t.Error(err)
	}
	for _, change := range []func(k *program.Kernel){func(k *program.Kernel) { k.Code = nil }, func(k *program.Kernel) { k.PTX = nil }} {
		p := example(t)
		change(&p.Kernels[1])
		if err := p.Validate(); err != nil {
			t.Errorf("one image of two: %v", err)
		}
	}
	brief := example(t)
	if brief.Buffers[6].Last = brief.Buffers[6].First; brief.Validate() != nil {
		t.Errorf("scratch of one step: %v", brief.Validate())
	}
	inPlace := example(t)
	if inPlace.Steps[0].Args[2] = 5; inPlace.Validate() != nil {
		t.Errorf("a parameter that may be written: %v", inPlace.Validate())
	}
	overflow := dim.Const(1 << 62).Mul(dim.Const(4))
	type P = program.Program
	for _, c := range []struct {
		want   string
		change func(p *P)
	}{
		{"no target", func(p *P) { p.Target = "" }},
		{`symbol "N-1": want letters, digits`, func(p *P) { p.Symbols = append(p.Symbols, "N-1") }},
		{`symbol "device.sms"`, func(p *P) { p.Symbols = append(p.Symbols, "device.sms") }},
		{"symbol N twice", func(p *P) { p.Symbols = append(p.Symbols, "N") }},
		{"guard: unknown symbol M", func(p *P) { p.Guards[0].Expr = dim.Sym("M") }},
		{"guard: N in [2, 1], which is empty", func(p *P) { p.Guards[0].Lo, p.Guards[0].Hi = 2, 1 }},
		{"parameter 1: dim: overflows", func(p *P) { p.Params[1].Shape = []dim.Dim{overflow} }},
		{"parameter 0: kind 9, dtype bf16; want a kind from 0 to 2", func(p *P) { p.Params[0].Kind = 9 }},
		{"parameter 0: kind 0, dtype invalid", func(p *P) { p.Params[0].DType = 0 }},
		{"parameter 3: it is i64[2], kind 0, mut true; want i64[2] for a generator, not mut and not a weight", func(p *P) { p.Params[3].Mut = true }},
		{"parameter 3: it is i64[2], kind 1, mut false; want i64[2] for a generator, not mut and not a weight", func(p *P) { p.Params[3].Kind = program.ParamWeight }},
		{"parameter 3: it is i32[2]", func(p *P) { p.Params[3].DType = dtype.I32 }},
		{"parameter 3: it is i64[N]", func(p *P) { p.Params[3].Shape = []dim.Dim{dim.Sym("N")} }},
		{"parameter 3: it is i64[]", func(p *P) { p.Params[3].Shape = nil }},
		{"parameter 3: the generator advances by -4, want a multiple of 4, at least 0", func(p *P) { p.Params[3].Advance = -4 }},
		{"parameter 3: the generator advances by 6, want a multiple of 4", func(p *P) { p.Params[3].Advance = 6 }},
		{"parameter 0: it is not a generator, but advances by 4", func(p *P) { p.Params[0].Advance = 4 }},
		{"result 0: unknown symbol K", func(p *P) { p.Results[0].Shape = []dim.Dim{dim.Sym("K")} }},
		{"result 1: alias 4, want -1 or one of the 4 parameters", func(p *P) { p.Results[1].Alias = 4 }},
		{"result 1: alias -2", func(p *P) { p.Results[1].Alias = -2 }},
		{"result 0: same -2, want -1 or an earlier result", func(p *P) { p.Results[0].Same = -2 }},
		{"result 0: dtype invalid", func(p *P) { p.Results[0].DType = 0 }},
		{"result 2: same 2", func(p *P) { p.Results[2].Same = 2 }},
		{"result 2: alias 0 and same 0, want at most one of them", func(p *P) { p.Results[2].Alias = 0 }},
		{"buffer 0: index 4, want one below 4", func(p *P) { p.Buffers[0].Index = 4 }},
		{"buffer 3: index -1, want one below 3", func(p *P) { p.Buffers[3].Index = -1 }},
		{"buffer 3: result 1 returns a parameter or an earlier result", func(p *P) { p.Buffers[3].Index = 1 }},
		{"buffer 3: result 2 returns a parameter or an earlier result", func(p *P) { p.Buffers[3].Index = 2 }},
		{"buffer 0: unknown symbol K", func(p *P) { p.Buffers[0].Shape = []dim.Dim{dim.Sym("K")} }},
		{"buffer 4: index 2, want one below 2", func(p *P) { p.Buffers[4].Index = 2 }},
		{"buffer 4: constant 0 has 4 bytes, the buffer needs 6", func(p *P) { p.Buffers[4].Shape = []dim.Dim{dim.Const(3)} }},
		{"buffer 4: dim: symbol N has no value", func(p *P) { p.Buffers[4].Shape = []dim.Dim{dim.Sym("N")} }},
		{"buffer 2: lifetime from step 3 to 2", func(p *P) { p.Buffers[2].First = 3 }},
		{"buffer 2: lifetime from step 0 to 6, want an ascending range within the 6 steps", func(p *P) { p.Buffers[2].Last = 6 }},
		{"buffer 2: lifetime from step -1", func(p *P) { p.Buffers[2].First = -1 }},
		{"buffer 0: alignment 3, want 0 or a power of two up to 256", func(p *P) { p.Buffers[0].Align = 3 }},
		{"buffer 0: alignment 512", func(p *P) { p.Buffers[0].Align = 512 }},
		{"buffer 0: alignment -1", func(p *P) { p.Buffers[0].Align = -1 }},
		{"buffer 0: alignment -2147483648", func(p *P) { p.Buffers[0].Align = -1 << 31 }},
		{"buffer 1: dtype invalid", func(p *P) { p.Buffers[1].DType = dtype.DType(200) }},
		{"buffer 1: unknown kind 4", func(p *P) { p.Buffers[1].Kind = 4 }},
		{"kernel 0 (add): vec: damaged", func(p *P) { p.Kernels[0].Code = p.Kernels[0].Code[1:] }},
		{"kernel 0 (add): unknown format 7", func(p *P) { p.Kernels[0].Format = 7 }},
		{"kernel 0 (add): PTX of a vector kernel", func(p *P) { p.Kernels[0].PTX = p.Kernels[1].PTX }},
		{"kernel 1 (add_cuda): no code", func(p *P) { p.Kernels[1].Code, p.Kernels[1].PTX = nil, nil }},
		{"kernel 0 (add): unknown symbol N", func(p *P) {
			*p = P{Target: "host", Kernels: p.Kernels[:1]}
		}},
		{"step 0: kernel 3, want one below 3", func(p *P) { p.Steps[0].Kernel = 3 }},
		{"step 0: kernel -1, want one below 3", func(p *P) { p.Steps[0].Kernel = -1 }},
		{"step 0: 2 buffers for a kernel that takes 3", func(p *P) { p.Steps[0].Args = p.Steps[0].Args[:2] }},
		{"step 0: buffer 7, want one below 7", func(p *P) { p.Steps[0].Args[1] = 7 }},
		{"step 0: buffer -1, want one below 7", func(p *P) { p.Steps[0].Args[1] = -1 }},
		{"step 0: writes parameter 0", func(p *P) { p.Steps[0].Args[2] = 0 }},
		{"step 0: writes the constant buffer 4", func(p *P) { p.Steps[0].Args[2] = 4 }},
		{"step 4: buffer 2 is used outside its lifetime", func(p *P) { p.Steps[4].Args[0] = 2 }},
		{"step 2: variant 0: step 0: kernel 5, want one below 3", func(p *P) { p.Steps[2].Variants[0].Steps[0].Kernel = 5 }},
		{"step 2: variant 0: N in [9, 8]", func(p *P) { p.Steps[2].Variants[0].Guard.Lo, p.Steps[2].Variants[0].Guard.Hi = 9, 8 }},
		{"step 2: variant 1: step 0: buffer 6 is used outside its lifetime", func(p *P) { p.Steps[2].Variants[1].Steps[0].Args[0] = 6 }},
		{"step 2: variant 2: step 0: unknown symbol K", func(p *P) { p.Steps[2].Variants[2].Steps[0].Launch.Grid[0] = dim.Sym("K") }},
		{"step 2: variant 2: step 0: -1 threads, want at least 0", func(p *P) { p.Steps[2].Variants[2].Steps[0].Launch.Block[0] = -1 }},
		{"step 2: variant 2: step 0: node -2", func(p *P) { p.Steps[2].Variants[2].Steps[0].Origin = -2 }},
		{"step 2: variant 1: the last variant must hold for all sizes and devices", func(p *P) { p.Steps[2].Variants = p.Steps[2].Variants[:2] }},
		{"step 2: variant 2: the last variant must hold for all sizes and devices", func(p *P) { p.Steps[2].Variants[2].Device = p.Steps[2].Variants[0].Device }},
		{"step 2: variant 0: the device guard depends on symbol N", func(p *P) { p.Steps[2].Variants[0].Device.Expr = p.Steps[2].Variants[0].Guard.Expr }},
		{"step 2: variant 0: device.major in [10, 9]", func(p *P) { p.Steps[2].Variants[0].Device.Lo = 10 }},
		{"step 2: variant 1: step 0: a collective of a choice is async", func(p *P) {
			one := &p.Steps[2].Variants[1].Steps[0]
			one.Extern, one.Attrs = program.CollectivePrefix+"all_reduce", []program.Attr{{Name: "async", Kind: program.AttrBool, Bool: true}}
		}},
		{"step 2: variant 2: step 0: the last variant needs library routine", func(p *P) { p.Steps[2].Variants[2].Steps = p.Steps[2].Variants[1].Steps }},
		{"step 2: variant 0: step 0: a step of kind choice", func(p *P) { p.Steps[2].Variants[0].Steps[0] = p.Steps[2] }},
		{"step 2: variant 0: step 0: a step of kind extern, want a kernel or a library routine", func(p *P) { p.Steps[2].Variants[0].Steps[0].Kind = program.StepExtern }},
		{"step 2: a choice of 0 variants, with 0 buffers and 0 attributes; want at least 1 variant", func(p *P) { p.Steps[2].Variants = nil }},
		{"step 2: a choice of 3 variants, with 1 buffers", func(p *P) { p.Steps[2].Args = []int32{0} }},
		{"step 2: a choice of 3 variants, with 0 buffers and 1 attributes", func(p *P) { p.Steps[2].Attrs = p.Steps[1].Attrs[1:2] }},
		{"step 4: it has variants, and is not a choice", func(p *P) { p.Steps[4].Variants = p.Steps[2].Variants }},
		{"step 0: node -2, want an index, or -1 for no node", func(p *P) { p.Steps[0].Origin = -2 }},
		{"step 1: no name", func(p *P) { p.Steps[1].Extern = "" }},
		{"step 1: attribute dim of unknown kind", func(p *P) { p.Steps[1].Attrs[0].Kind = 17 }},
		{"step 1: unknown symbol Q", func(p *P) { p.Steps[1].Attrs[4].Dims[0] = dim.Sym("Q") }},
		{"step 1: unknown symbol Q", func(p *P) { p.Steps[1].Attrs[0].Dim = dim.Sym("Q") }},
		{"step 2: variant 2: step 0: attribute pdl of unknown kind", func(p *P) { p.Steps[2].Variants[2].Steps[0].Launch.Attrs[0].Kind = 17 }},
		{"step 4: writes parameter 0", func(p *P) { p.Steps[4].Args[2] = 0 }},
		{"step 5: unknown kind 9", func(p *P) { p.Steps[5].Kind = 9 }},
	} {
		p := example(t)
		c.change(p)
		err := p.Validate()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
		if _, err := p.Encode(); err == nil {
			t.Errorf("%q: an invalid program was encoded", c.want)
		}
	}
}

// TestValidateOverlap: no step may use the destination of an async collective before a step that waits for it.
func TestValidateOverlap(t *testing.T) {
	call := program.Step{Kind: program.StepLibrary, Extern: program.CollectivePrefix + "all_reduce", Args: []int32{1, 0}, Origin: -1,
		Attrs: []program.Attr{{Name: "async", Kind: program.AttrBool, Bool: true}}}
	wait := program.Step{Kind: program.StepLibrary, Extern: program.CollectiveWait, Args: []int32{1, 0}, Origin: -1}
	other := wait
	other.Args = []int32{0, 0}
	notWait, noArgs := wait, call
	notWait.Kind, noArgs.Args = program.StepExtern, nil
	read := program.Step{Kind: program.StepExtern, Extern: "ns::read", Args: []int32{1}, Origin: -1}
	choice := program.Step{Kind: program.StepChoice, Origin: -1, Variants: []program.Variant{{Steps: []program.Step{{Kind: program.StepLibrary, Extern: "ns::read", Args: []int32{1}, Origin: -1}}}}}
	for _, c := range []struct {
		want  string
		steps []program.Step
	}{
		{"", []program.Step{call, wait, read}},
		{"step 0: it is async, and no later step is collective::wait of its buffers", []program.Step{call, other}},
		{"it is async, and step 1 uses buffer 1, the memory of its destination, before a step waits", []program.Step{call, read, wait}},
		{"it is async, and step 1 uses buffer 1", []program.Step{call, choice, wait}},
		{"it is async, and step 1 uses buffer 1", []program.Step{call, notWait, wait}},
		{"step 0: it is async, and has no buffers", []program.Step{noArgs}},
	} {
		p := &program.Program{Target: "host", Steps: c.steps}
		for range 2 {
			p.Buffers = append(p.Buffers, program.Buffer{Kind: program.BufferScratch, DType: dtype.F32, Shape: []dim.Dim{dim.Const(4)}, Last: int32(len(c.steps) - 1)})
		}
		err := p.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v; want %q", err, c.want)
		}
	}
}

// TestValidateOverlapOfMemory: a step between an async collective and its wait may not use the destination's
// parameter or result through another buffer, either.
func TestValidateOverlapOfMemory(t *testing.T) {
	four := []dim.Dim{dim.Const(4)}
	buffer := func(kind program.BufferKind, index int32) program.Buffer {
		return program.Buffer{Kind: kind, Index: index, DType: dtype.F32, Shape: four}
	}
	for _, kind := range []program.BufferKind{program.BufferParam, program.BufferResult} {
		for other, ok := range []bool{false, true} {
			call := program.Step{Kind: program.StepLibrary, Extern: program.CollectivePrefix + "all_reduce", Args: []int32{0, 2}, Origin: -1,
				Attrs: []program.Attr{{Name: "async", Kind: program.AttrBool, Bool: true}}}
			wait := program.Step{Kind: program.StepLibrary, Extern: program.CollectiveWait, Args: call.Args, Origin: -1}
			read := program.Step{Kind: program.StepExtern, Extern: "ns::read", Args: []int32{1}, Origin: -1}
			p := &program.Program{
				Target: "host", Steps: []program.Step{call, read, wait},
				Buffers: []program.Buffer{buffer(kind, 0), buffer(kind, int32(other)), {Kind: program.BufferScratch, DType: dtype.F32, Shape: four, Last: 2}},
			}
			for range 2 {
				p.Params = append(p.Params, program.Param{Mut: true, DType: dtype.F32, Shape: four})
				p.Results = append(p.Results, program.Result{DType: dtype.F32, Shape: four, Alias: -1, Same: -1})
			}
			if err := p.Validate(); ok != (err == nil) || !ok && !strings.Contains(err.Error(), "step 1 uses buffer 1") {
				t.Errorf("kind %d, index %d: %v", kind, other, err)
			}
		}
	}
}
