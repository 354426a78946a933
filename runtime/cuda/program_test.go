package cuda_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/fake"
	"pwc/runtime/device"
)

// single is a program of one kernel over parameters and a result, each f32[N].
func (r *rig) single(t testing.TB, kernel string, params int, l program.Launch) *program.Program {
	t.Helper()
	n := parse(t, "N")
	p := &program.Program{
		Target: r.target, Symbols: []string{"N"}, Kernels: []program.Kernel{r.kernel(kernel)},
		Results: []program.Result{{DType: dtype.F32, Shape: n, Alias: -1, Same: -1}},
	}
	st := program.Step{Launch: l}
	for i := range params {
		p.Params = append(p.Params, program.Param{DType: dtype.F32, Shape: n})
		p.Buffers = append(p.Buffers, program.Buffer{Kind: program.BufferParam, Index: int32(i), DType: dtype.F32, Shape: n})
		st.Args = append(st.Args, int32(i))
	}
	p.Buffers = append(p.Buffers, program.Buffer{Kind: program.BufferResult, DType: dtype.F32, Shape: n})
	st.Args = append(st.Args, int32(params))
	p.Steps = []program.Step{st}
	return p
}

// TestSteps runs copies, fills with patterns of every kind, variants, constants,
// several dims in order, and grids without blocks, from a stream and a graph.
func TestSteps(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		n := parse(t, "N")
		const fills = 6
		patterns := [fills]string{"\x07", "\x01\x02", "\x01\x02\x03\x04", "\x01\x02\x03\x04\x05\x06\x07\x08", "\x01\x02\x03", "\x00\x00\x00\x00\x00\x00\x00\x00"}
		p := &program.Program{
			Target: b.rig.target, Symbols: []string{"N"},
			Params:  []program.Param{{DType: dtype.F32, Shape: n}},
			Consts:  [][]byte{floats(9), floats(1, -2, 3)},
			Kernels: []program.Kernel{b.rig.kernel("scale"), b.rig.kernel("add")},
		}
		result := func(dt dtype.DType, shape []dim.Dim) int32 {
			i := int32(len(p.Results))
			p.Results = append(p.Results, program.Result{DType: dt, Shape: shape, Alias: -1, Same: -1})
			p.Buffers = append(p.Buffers, program.Buffer{Kind: program.BufferResult, Index: i, DType: dt, Shape: shape})
			return int32(len(p.Buffers) - 1)
		}
		for _, pattern := range patterns {
			to := result(dtype.U8, consts(24))
			p.Steps = append(p.Steps, program.Step{Kind: program.StepFill, Args: []int32{to}, Attrs: []program.Attr{{Name: program.PatternAttr, Kind: program.AttrString, Str: pattern}}})
		}
		copied, scaled := result(dtype.F32, consts(3)), result(dtype.F32, n)
		p.Buffers = append(p.Buffers, program.Buffer{Kind: program.BufferConst, Index: 1, DType: dtype.F32, Shape: consts(3)},
			program.Buffer{Kind: program.BufferParam, DType: dtype.F32, Shape: n})
		constant, param := int32(len(p.Buffers)-2), int32(len(p.Buffers)-1)
		p.Steps = append(p.Steps,
			program.Step{Kind: program.StepCopy, Args: []int32{copied, constant}},
			// n elements are scaled by 2·n, but a single one is added to itself.
			// The device has no library routine for it.
			program.Step{Kind: program.StepChoice, Variants: []program.Variant{
				{Steps: []program.Step{{Kind: program.StepLibrary, Extern: "lib::scale", Args: []int32{param, scaled}}}},
				{Guard: program.Guard{Expr: n[0], Lo: 1, Hi: 1}, Steps: []program.Step{
					{Kernel: 0, Args: []int32{param, scaled}, Launch: launch(t, dimsAttr(cuda.AttrDims, append(n, dim.Const(9))...))},
					{Kernel: 0, Args: []int32{param, scaled}, Launch: launch(t, dimsAttr(cuda.AttrDims, append(n, dim.Const(5))...))}}},
				{Steps: []program.Step{{Kernel: 0, Args: []int32{param, scaled}, Launch: launch(t, dimsAttr(cuda.AttrDims, append(n, parse(t, "2*N")...)...))}}}}})
		x, err := b.dev.Load(p, nil)
		must(t, err)
		for size, want := range map[int64][]byte{3: floats(6, 12, 18), 1: floats(5), 0: nil} {
			in := b.alloc(floats(1, 2, 3)[:4*size])
			all := b.alloc(make([]byte, 256*(fills+2)))
			args := device.Args{Params: []device.Buffer{in}}
			for i := range fills + 2 {
				args.Results = append(args.Results, all.Slice(int64(256*i), 256))
			}
			l, err := x.Bind([]int64{size}, args)
			must(t, err)
			check := func(how string) {
				t.Helper()
				got := b.read(all)
				for i, pattern := range patterns {
					if g := got[256*i:][:25]; string(g) != strings.Repeat(pattern, 24/len(pattern))+"\xee" {
						t.Errorf("%s: a fill with %q: %q", how, pattern, g)
					}
				}
				if g := got[256*fills:][:12]; !bytes.Equal(g, floats(1, -2, 3)) {
					t.Errorf("%s: a copy of a constant: %v", how, g)
				}
				if g := got[256*(fills+1):][:len(want)+1]; string(g) != string(want)+"\xee" {
					t.Errorf("%s: N=%d: %v, want %v", how, size, g, want)
				}
			}
			must(t, b.s.Fill(all, 0xee))
			must(t, b.s.Launch(l))
			check("a launch")
			g := b.capture(func() { must(t, b.s.Launch(l)) })
			must(t, b.s.Fill(all, 0xee))
			must(t, b.s.LaunchGraph(g))
			check("a replay")
			must(t, g.Close())
		}
	})
}

// TestSharedMemory launches with more dynamic shared memory than kernels get
// without asking, by an amount that only Bind knows.
func TestSharedMemory(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		l := launch(t, dimsAttr(cuda.AttrDims, parse(t, "N")...))
		l.Shared = parse(t, "N*1024")[0]
		p := b.rig.single(t, "shared", 0, l)
		x, err := b.dev.Load(p, nil)
		must(t, err)
		out := b.alloc(make([]byte, 4*1024))
		most := b.dev.Info().Properties["device.shared_bytes"] / 1024
		for _, n := range []int64{1, 48, most} {
			bound, err := x.Bind([]int64{n}, device.Args{Results: []device.Buffer{out}})
			must(t, err)
			must(t, b.s.Launch(bound))
			b.expect("elements of shared memory", out.Slice(0, 4), floats(float32(256*n)))
		}
		if _, err := x.Bind([]int64{most + 1}, device.Args{Results: []device.Buffer{out}}); err == nil {
			t.Error("a bind with more shared memory than there is succeeded")
		}
	})
}

// TestCachePreference pins what a kernel that asks for cache leaves to shared memory:
// what three of its blocks take. Others ask for nothing.
func TestCachePreference(t *testing.T) {
	for _, cached := range []bool{false, true} {
		f := newFake(t, fake.Options{Schedule: fake.Lazy})
		b := newBench(t, open(t, f), fakeRig())
		l := launch(t, dimsAttr(cuda.AttrDims, parse(t, "N")...), program.Attr{Name: cuda.AttrL1, Kind: program.AttrBool, Bool: cached})
		l.Shared = dim.Const(19 << 10)
		_, err := b.dev.Load(b.rig.single(t, "add", 2, l), nil)
		must(t, err)
		want := 0
		if cached {
			want = int(100 * 3 * (20 << 10) / b.dev.Info().Properties["device.shared_bytes"])
		}
		if got := f.SharedPercent("add"); got != want {
			t.Errorf("cached %t: %d %% of memory is shared, want %d", cached, got, want)
		}
	}
}

// TestLoadErrors loads programs that do not fit the device or their kernels.
func TestLoadErrors(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		n := parse(t, "N")
		good := func() *program.Program {
			return b.rig.single(t, "add", 2, launch(t, dimsAttr(cuda.AttrDims, n...)))
		}
		for name, c := range map[string]struct {
			change func(p *program.Program)
			want   string
		}{
			"other target":       {func(p *program.Program) { p.Target = "host" }, `target "host"`},
			"newer target":       {func(p *program.Program) { p.Target = "cuda:sm_200" }, "cuda:sm_200"},
			"target with a tail": {func(p *program.Program) { p.Target += "x" }, "target"},
			"cubin of another major": {func(p *program.Program) {
				p.Target, p.Kernels[0].Format = "cuda:sm_70", program.KernelCubin
			}, "cubin for sm_70"},
			"no such kernel": {func(p *program.Program) { p.Kernels[0].Name = "nothing" }, "kernel 0 (nothing)"},
			"damaged image":  {func(p *program.Program) { p.Kernels[0].Code = []byte("\x7fELF damaged") }, "kernel 0 (add)"},
			"damaged PTX": {func(p *program.Program) {
				p.Kernels[0] = program.Kernel{Name: "add", Format: program.KernelPTX, Code: []byte(".version 7.8\n.target sm_80\n.address_size 64\nnonsense;\n")}
			}, "ptxas"},
			"parameters":    {func(p *program.Program) { p.Steps[0].Args = p.Steps[0].Args[1:] }, "4 parameters, launched with 3"},
			"threads":       {func(p *program.Program) { p.Steps[0].Launch.Block[0] = 2048 }, "2048"},
			"no threads":    {func(p *program.Program) { p.Steps[0].Launch.Block[1] = 0 }, "threads"},
			"shared memory": {func(p *program.Program) { p.Steps[0].Launch.Shared = dim.Const(1 << 20) }, "dynamic shared memory"},
			"launch attribute": {func(p *program.Program) {
				p.Steps[0].Launch.Attrs = append(p.Steps[0].Launch.Attrs, program.Attr{Name: "warp_speed"})
			}, "warp_speed"},
			"kind of attribute": {func(p *program.Program) { p.Steps[0].Launch.Attrs[0].Kind = program.AttrDim }, "another kind"},
			"faults": {func(p *program.Program) {
				p.Steps[0].Launch.Attrs = append(p.Steps[0].Launch.Attrs, dimsAttr(cuda.AttrFaults, n...))
			}, "no list of nodes"},
			"cluster": {func(p *program.Program) {
				p.Steps[0].Launch.Attrs = append(p.Steps[0].Launch.Attrs, dimsAttr(cuda.AttrCluster, n...))
			}, "3 extents"},
			"library": {func(p *program.Program) {
				p.Steps[0] = program.Step{Kind: program.StepLibrary, Extern: "blas::gemm", Args: []int32{0}}
			}, "blas::gemm"},
			"vector program": {func(p *program.Program) {
				p.Kernels = append(p.Kernels, program.Kernel{Name: "v", Format: program.KernelVec})
			}, "kernel 1 (v)"},
		} {
			p := good()
			c.change(p)
			x, err := b.dev.Load(p, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v does not say %q", name, err, c.want)
			}
			if x != nil {
				t.Errorf("%s: an executable beside the error", name)
			}
			if errors.Is(err, device.ErrDeviceLost) {
				t.Fatal(err)
			}
		}
		x, err := b.dev.Load(good(), nil)
		must(t, err)
		must(t, x.Close())
	})
}

// TestBindErrors binds launches that no GPU has.
func TestBindErrors(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		for name, axis := range map[string]int{"x": 0, "y": 1, "z": 2} {
			l := launch(t, dimsAttr(cuda.AttrDims, parse(t, "N")...))
			l.Grid[axis] = parse(t, "M")[0]
			p := b.rig.single(t, "add", 2, l)
			p.Symbols = append(p.Symbols, "M")
			x, err := b.dev.Load(p, nil)
			must(t, err)
			buf := b.alloc(make([]byte, 4))
			args := device.Args{Params: []device.Buffer{buf, buf}, Results: []device.Buffer{b.alloc(make([]byte, 4))}}
			_, err = x.Bind([]int64{1, 1}, args)
			must(t, err)
			for _, m := range []int64{-1, 1 << 31} {
				if _, err := x.Bind([]int64{1, m}, args); err == nil || !strings.Contains(err.Error(), "grid") {
					t.Errorf("a grid of %d along %s: %v", m, name, err)
				}
			}
		}
	})
}

// TestTargets holds which targets' programs a device takes: its own, older ones
// in PTX, older ones of its major version in cubin.
func TestTargets(t *testing.T) {
	d := open(t, newFake(t, fake.Options{Major: 8, Minor: 6}))
	if got := d.Info().Target; got != "cuda:sm_86" {
		t.Errorf("target %s", got)
	}
	cubin, ptx := program.KernelCubin, program.KernelPTX
	for _, c := range []struct {
		target string
		format program.KernelFormat
		ok     bool
	}{
		{"cuda:sm_86", cubin, true}, {"cuda:sm_80", cubin, true}, {"cuda:sm_75", cubin, false}, {"cuda:sm_89", cubin, false},
		{"cuda:sm_86", ptx, true}, {"cuda:sm_75", ptx, true}, {"cuda:sm_89", ptx, false}, {"cuda:sm_", ptx, false}, {"cuda:sm_080", ptx, false},
	} {
		r := &rig{c.target, c.format, fake.Image(names...)}
		if c.format == ptx {
			r.image = fake.PTX(names...)
		}
		_, err := d.Load(r.single(t, "add", 2, launch(t, dimsAttr(cuda.AttrDims, parse(t, "N")...))), nil)
		if (err == nil) != c.ok {
			t.Errorf("%s, format %d: %v", c.target, c.format, err)
		}
	}
}

// TestImagesAreShared holds that an image is loaded, and its PTX compiled, once.
func TestImagesAreShared(t *testing.T) {
	f := newFake(t, fake.Options{})
	d := open(t, f)
	b := newBench(t, d, &rig{cuda.Target(8, 0), program.KernelPTX, fake.PTX(names...)})
	p := b.rig.single(t, "add", 2, launch(t, dimsAttr(cuda.AttrDims, parse(t, "N")...)))
	p.Kernels = append(p.Kernels, b.rig.kernel("scale"))
	var all []device.Executable
	for range 3 {
		x, err := d.Load(p, nil)
		must(t, err)
		all = append(all, x)
	}
	if got := d.PTXCompiled(); got != 1 {
		t.Errorf("%d images compiled, want 1", got)
	}
	must(t, all[0].Close())
	must(t, all[2].Close())
	in := b.alloc(floats(1))
	out := b.alloc(floats(0))
	l, err := all[1].Bind([]int64{1}, device.Args{Params: []device.Buffer{in, in}, Results: []device.Buffer{out}})
	must(t, err)
	must(t, b.s.Launch(l))
	b.expect("after others were closed", out, floats(2))
	must(t, all[1].Close())
	_, err = d.Load(p, nil)
	must(t, err)
	if got := d.PTXCompiled(); got != 2 {
		t.Errorf("%d images compiled, want 2 after the last use ended", got)
	}
}

// TestOldDriver loads where the driver cannot tell a kernel's parameters.
func TestOldDriver(t *testing.T) {
	d := open(t, newFake(t, fake.Options{Version: 12000}))
	if major, minor := d.DriverVersion(); major != 12 || minor != 0 {
		t.Errorf("CUDA %d.%d", major, minor)
	}
	x, err := d.Load(fakeRig().single(t, "add", 2, launch(t, dimsAttr(cuda.AttrDims, parse(t, "N")...))), nil)
	must(t, err)
	must(t, x.Close())
}
