package cuda_test

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"testing"

	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// single is a program of one kernel over parameters and a result, each f32[N].
func (r *rig) single(t testing.TB, kernel string, params int, l program.Launch) *program.Program {
	t.Helper()
	n := testkit.Dims(t, "N")
	p := &program.Program{
		Target: r.target, Symbols: []string{"N"}, Kernels: []program.Kernel{r.kernel(t, kernel)},
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

// TestSteps runs variants, constants, several dims in order, and grids without blocks,
// from a stream and a graph.
func TestSteps(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		n := testkit.Dims(t, "N")
		p := &program.Program{
			Target: b.rig.target, Symbols: []string{"N"},
			Params:  []program.Param{{DType: dtype.F32, Shape: n}},
			Consts:  [][]byte{floats(9), floats(1, -2, 3)},
			Kernels: []program.Kernel{b.rig.kernel(t, "scale"), b.rig.kernel(t, "add")},
		}
		result := func(dt dtype.DType, shape []dim.Dim) int32 {
			i := int32(len(p.Results))
			p.Results = append(p.Results, program.Result{DType: dt, Shape: shape, Alias: -1, Same: -1})
			p.Buffers = append(p.Buffers, program.Buffer{Kind: program.BufferResult, Index: i, DType: dt, Shape: shape})
			return int32(len(p.Buffers) - 1)
		}
		copied, scaled := result(dtype.F32, testkit.Consts(3)), result(dtype.F32, n)
		p.Buffers = append(p.Buffers, program.Buffer{Kind: program.BufferConst, Index: 1, DType: dtype.F32, Shape: testkit.Consts(3)},
			program.Buffer{Kind: program.BufferParam, DType: dtype.F32, Shape: n})
		constant, param := int32(len(p.Buffers)-2), int32(len(p.Buffers)-1)
		once := launch(t, dimsAttr(cuda.AttrDims, dim.Const(3), dim.Const(1)))
		once.Grid[0] = dim.Const(1)
		p.Steps = append(p.Steps,
			program.Step{Kernel: 0, Args: []int32{constant, copied}, Launch: once},
			// N elements are scaled by 2·N. A single one is scaled by 9, and then the parameter by 5
			// into the same result. The first variant is never taken: the device has no routine lib::scale.
			program.Step{Kind: program.StepChoice, Variants: []program.Variant{
				{Steps: []program.Step{{Kind: program.StepLibrary, Extern: "lib::scale", Args: []int32{param, scaled}}}},
				{Guard: program.Guard{Expr: n[0], Lo: 1, Hi: 1}, Steps: []program.Step{
					{Kernel: 0, Args: []int32{param, scaled}, Launch: launch(t, dimsAttr(cuda.AttrDims, append(n, dim.Const(9))...))},
					{Kernel: 0, Args: []int32{param, scaled}, Launch: launch(t, dimsAttr(cuda.AttrDims, append(n, dim.Const(5))...))}}},
				{Steps: []program.Step{{Kernel: 0, Args: []int32{param, scaled}, Launch: launch(t, dimsAttr(cuda.AttrDims, append(n, testkit.Dims(t, "2*N")...)...))}}}}})
		x, err := b.dev.Load(p, nil)
		must(t, err)
		for size, want := range map[int64][]byte{3: floats(6, 12, 18), 1: floats(5), 0: nil} {
			in := b.alloc(floats(1, 2, 3)[:4*size])
			all := b.alloc(make([]byte, 256*2))
			args := device.Args{Params: []device.Buffer{in}}
			for i := range 2 {
				args.Results = append(args.Results, all.Slice(int64(256*i), 256))
			}
			l, err := x.Bind([]int64{size}, args)
			must(t, err)
			check := func(how string) {
				t.Helper()
				got := b.read(all)
				if g := got[:12]; !bytes.Equal(g, floats(1, -2, 3)) {
					t.Errorf("%s: a constant: %v", how, g)
				}
				if g := got[256:][:len(want)+1]; string(g) != string(want)+"\xee" {
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

// TestSharedMemory launches with up to all shared memory of the device, more than the 48 KiB that need
// no attribute of the function. The amount is known only at Bind.
func TestSharedMemory(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		l := launch(t, dimsAttr(cuda.AttrDims, testkit.Dims(t, "N")...))
		l.Shared = testkit.Dims(t, "N*1024")[0]
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

// TestLoadErrors loads programs that do not fit the device or their kernels.
func TestLoadErrors(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		n := testkit.Dims(t, "N")
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
				p.Target, p.Kernels[0].Code, p.Kernels[0].PTX = "cuda:sm_70", []byte("\x7fELF"), nil
			}, "no PTX"},
			"no such kernel": {func(p *program.Program) { p.Kernels[0].Name = "nothing" }, "kernel 0 (nothing)"},
			"damaged image": {func(p *program.Program) {
				p.Target, p.Kernels[0].Code = b.dev.Info().Target, []byte("\x7fELF damaged")
			}, "kernel 0 (add)"},
			"damaged PTX": {func(p *program.Program) {
				r := &rig{target: p.Target, ptx: []byte(".version 7.8\n.target sm_80\n.address_size 64\nnonsense;\n")}
				p.Kernels[0] = r.kernel(t, "add")
			}, "ptxas"},
			"PTX that does not unpack": {func(p *program.Program) {
				p.Kernels[0].Code, p.Kernels[0].PTX = nil, []byte("nothing of the kind")
			}, "damaged"},
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
				t.Errorf("%s: Load returns both an executable and an error", name)
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

// TestBindErrors: Bind refuses grids that are negative or larger than any GPU's.
func TestBindErrors(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		for name, axis := range map[string]int{"x": 0, "y": 1, "z": 2} {
			l := launch(t, dimsAttr(cuda.AttrDims, testkit.Dims(t, "N")...))
			l.Grid[axis] = testkit.Dims(t, "M")[0]
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

// TestLaunchErrorNamesTheStep: the number is that in the program, also after a choice of two steps.
func TestLaunchErrorNamesTheStep(t *testing.T) {
	f := newFake(t, fake.Options{})
	b := newBench(t, open(t, f), fakeRig())
	scale := launch(t, dimsAttr(cuda.AttrDims, append(testkit.Dims(t, "N"), dim.Const(2))...))
	p := b.rig.single(t, "scale", 1, scale)
	one := p.Steps[0]
	p.Steps = []program.Step{{Kind: program.StepChoice, Variants: []program.Variant{{Steps: []program.Step{one, one}}}}, one}
	x, err := b.dev.Load(p, nil)
	must(t, err)
	l, err := x.Bind([]int64{1}, device.Args{Params: []device.Buffer{b.alloc(floats(1))}, Results: []device.Buffer{b.alloc(floats(0))}})
	must(t, err)
	for i, want := range []string{"step 0 (scale)", "step 0 (scale)", "step 1 (scale)"} {
		f.Fail(2+i, 1) // the first call is CtxSetCurrent
		if err := b.s.Launch(l); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("launch %d fails: %v does not say %q", i, err, want)
		}
	}
}

// TestTargets checks which targets a device takes, and in which form: the cubin of its own target
// and of earlier minor versions, and the PTX of its own target and of all earlier ones. Exceptions are
// GPUs of Tegra chips (8.7, 10.1) and arch-specific targets (a, f).
func TestTargets(t *testing.T) {
	const cubin, ptx = 1, 2
	for _, c := range []struct {
		major, minor int
		target       string
		has          int // the images of the program
		takes        int // one of them; 0: it is refused
	}{
		{8, 6, "cuda:sm_86", cubin | ptx, cubin}, {8, 6, "cuda:sm_80", cubin | ptx, cubin}, {8, 6, "cuda:sm_75", cubin | ptx, ptx},
		{8, 6, "cuda:sm_89", cubin | ptx, 0}, {8, 6, "cuda:sm_90", cubin | ptx, 0}, {8, 6, "cuda:sm_75", cubin, 0},
		{8, 6, "cuda:sm_86", ptx, ptx}, {8, 6, "cuda:sm_80", ptx, ptx}, {8, 6, "cuda:sm_89", ptx, 0},
		{8, 7, "cuda:sm_87", cubin | ptx, cubin}, {8, 7, "cuda:sm_86", cubin | ptx, ptx}, {8, 9, "cuda:sm_87", cubin | ptx, ptx}, {10, 3, "cuda:sm_101", cubin | ptx, ptx},
		{8, 0, "cuda:sm_90", cubin | ptx, 0}, {9, 0, "cuda:sm_90", cubin | ptx, cubin}, {10, 0, "cuda:sm_90", cubin | ptx, ptx},
		{10, 3, "cuda:sm_100", cubin | ptx, cubin}, {12, 0, "cuda:sm_100", cubin | ptx, ptx}, {9, 0, "cuda:sm_100", cubin | ptx, 0},
		{9, 0, "cuda:sm_90a", cubin | ptx, cubin}, {10, 0, "cuda:sm_90a", cubin | ptx, 0},
		{10, 3, "cuda:sm_100a", cubin | ptx, 0}, {10, 3, "cuda:sm_100f", cubin | ptx, cubin}, {12, 0, "cuda:sm_100f", cubin | ptx, 0},
		{9, 0, "cuda:sm_", cubin | ptx, 0}, {9, 0, "cuda:sm_090", cubin | ptx, 0}, {9, 0, "cuda:sm_9", cubin | ptx, 0}, {9, 0, "host", cubin | ptx, 0},
	} {
		d := open(t, newFake(t, fake.Options{Major: c.major, Minor: c.minor}))
		if got, want := d.Info().Target, cuda.Target(c.major, c.minor); got != want {
			t.Errorf("target %s, want %s", got, want)
		}
		r := &rig{target: c.target}
		if c.has&cubin != 0 {
			r.cubin = fake.Image(names...)
		}
		if c.has&ptx != 0 {
			r.ptx = fake.PTX(names...)
		}
		p := r.single(t, "add", 2, launch(t, dimsAttr(cuda.AttrDims, testkit.Dims(t, "N")...)))
		compiles := d.CompilesAtLoad(p)
		x, err := d.Load(p, nil)
		if (err == nil) != (c.takes != 0) || d.PTXCompiled() != int64(c.takes/ptx) || (compiles != "") != (c.takes == ptx) {
			t.Errorf("%s on %s: %v, %d images compiled, CompilesAtLoad returns %q", c.target, d.Info().Target, err, d.PTXCompiled(), compiles)
		}
		if err != nil && (!strings.Contains(err.Error(), strconv.Quote(c.target)) || !strings.Contains(err.Error(), strconv.Quote(d.Info().Target))) {
			t.Errorf("the error does not name both targets: %v", err)
		}
		if c.takes == ptx && compiles != "PTX of "+c.target+" for "+d.Info().Target {
			t.Errorf("CompilesAtLoad returns %q", compiles)
		}
		m, merr := d.LoadModule(r.module(t))
		if (merr == nil) != (c.takes != 0) {
			t.Errorf("a module for %s on %s: %v", c.target, d.Info().Target, merr)
		}
		if err == nil && merr == nil {
			must(t, errors.Join(x.Close(), m.Close()))
		}
		if c.has == cubin|ptx {
			compiles, err := d.Takes(c.target)
			if (err == nil) != (c.takes != 0) || compiles != (c.takes == ptx) {
				t.Errorf("%s takes %s: %v, %v", d.Info().Target, c.target, compiles, err)
			}
		}
	}
}

// TestVariantsForDevices loads a program for sm_90 with a variant for devices of version 9.0, whose kernel
// has no PTX. Other devices load the program without that kernel and take the next variant.
func TestVariantsForDevices(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		compiled     int64 // images by the driver
		want         []byte
	}{{9, 0, 0, floats(7, 14)}, {10, 0, 1, floats(3, 6)}} {
		d := open(t, newFake(t, fake.Options{Major: c.major, Minor: c.minor}))
		all := &rig{cuda.Target(9, 0), fake.Image("scale"), fake.PTX("scale")}
		alone := &rig{cuda.Target(9, 0), fake.Image("scale", "gather"), nil}
		n := testkit.Dims(t, "N")
		by := func(factor string) program.Launch {
			return launch(t, dimsAttr(cuda.AttrDims, append(n, testkit.Dims(t, factor)...)...))
		}
		p := &program.Program{
			Target: all.target, Symbols: []string{"N"},
			Params:  []program.Param{{DType: dtype.F32, Shape: n}},
			Results: []program.Result{{DType: dtype.F32, Shape: n, Alias: -1, Same: -1}},
			Kernels: []program.Kernel{alone.kernel(t, "scale"), all.kernel(t, "scale")},
			Buffers: []program.Buffer{{Kind: program.BufferParam, DType: dtype.F32, Shape: n}, {Kind: program.BufferResult, DType: dtype.F32, Shape: n}},
			Steps: []program.Step{{Kind: program.StepChoice, Variants: []program.Variant{
				{Device: program.Guard{Expr: testkit.Dims(t, "device.major*10 + device.minor")[0], Lo: 90, Hi: 90}, Steps: []program.Step{{Kernel: 0, Args: []int32{0, 1}, Launch: by("7")}}},
				{Steps: []program.Step{{Kernel: 1, Args: []int32{0, 1}, Launch: by("3")}}}}}},
		}
		x, err := d.Load(p, nil)
		must(t, err)
		if d.PTXCompiled() != c.compiled {
			t.Errorf("%d.%d: the driver compiled %d images", c.major, c.minor, d.PTXCompiled())
		}
		s, err := d.NewStream()
		must(t, err)
		m, err := d.Alloc(16)
		must(t, err)
		in, out := device.Buffer{Memory: m, Size: 8}, device.Buffer{Memory: m, Offset: 8, Size: 8}
		l, err := x.Bind([]int64{2}, device.Args{Params: []device.Buffer{in}, Results: []device.Buffer{out}})
		must(t, err)
		got := make([]byte, 8)
		must(t, errors.Join(s.CopyToDevice(in, floats(1, 2)), s.Launch(l), s.CopyToHost(got, out), s.Synchronize()))
		if !bytes.Equal(got, c.want) {
			t.Errorf("%d.%d: %v, want %v", c.major, c.minor, got, c.want)
		}
		must(t, errors.Join(s.Close(), m.Free(), x.Close()))
	}
}

// TestCompilesAtLoadOfVariants: CompilesAtLoad leaves out kernels that only variants for other devices run, as Load does.
func TestCompilesAtLoadOfVariants(t *testing.T) {
	n := testkit.Dims(t, "N")
	r := fakeRig()
	p := r.single(t, "scale", 1, launch(t, dimsAttr(cuda.AttrDims, append(n, dim.Const(2))...)))
	later := p.Steps[0]
	later.Kernel = 1
	p.Kernels = append(p.Kernels, (&rig{target: r.target, ptx: fake.PTX(names...)}).kernel(t, "scale"))
	p.Steps = []program.Step{{Kind: program.StepChoice, Variants: []program.Variant{
		{Device: program.Guard{Expr: testkit.Dims(t, "device.major")[0], Lo: 10, Hi: 10}, Steps: []program.Step{later}}, {Steps: p.Steps}}}}
	d := open(t, newFake(t, fake.Options{}))
	compiles := d.CompilesAtLoad(p)
	x, err := d.Load(p, nil)
	must(t, err)
	if compiles != "" || d.PTXCompiled() != 0 {
		t.Errorf("CompilesAtLoad returns %q, and the driver compiled %d images", compiles, d.PTXCompiled())
	}
	must(t, x.Close())
}

// TestPTXOfANewerCompiler: the error says that the driver is older than the compiler of the PTX.
func TestPTXOfANewerCompiler(t *testing.T) {
	f := newFake(t, fake.Options{Version: 12020})
	d := open(t, f)
	r := &rig{cuda.Target(8, 0), fake.Image(names...), fake.PTX(names...)}
	f.Fail(2, 222) // the call after CtxSetCurrent
	if _, err := d.LoadModule(r.module(t)); err == nil || !strings.Contains(err.Error(), "UNSUPPORTED_PTX_VERSION: a compiler newer than the driver, which runs CUDA 12.2, made the PTX of cuda:sm_80") {
		t.Errorf("%v", err)
	}
	if d.PTXCompiled() != 0 {
		t.Error("the image that did not compile was counted")
	}
}

// TestEarlierCodeDoesNotOverlap: code for targets before sm_90 does not wait for the kernel before, so
// its launches have no programmatic dependency, even on a later GPU and if they ask for one.
func TestEarlierCodeDoesNotOverlap(t *testing.T) {
	for target, want := range map[string]bool{"cuda:sm_80": false, "cuda:sm_89": false, "cuda:sm_90": true} {
		f := newFake(t, fake.Options{})
		r := &rig{target, fake.Image(names...), fake.PTX(names...)}
		b := newBench(t, open(t, f), r)
		x, err := b.dev.Load(r.single(t, "add", 2, launch(t, dimsAttr(cuda.AttrDims, testkit.Dims(t, "N")...), program.Attr{Name: cuda.AttrPDL, Kind: program.AttrBool, Bool: true})), nil)
		must(t, err)
		in := b.alloc(floats(1))
		l, err := x.Bind([]int64{1}, device.Args{Params: []device.Buffer{in, in}, Results: []device.Buffer{b.alloc(floats(0))}})
		must(t, err)
		must(t, b.s.Launch(l))
		m, err := b.dev.LoadModule(r.module(t))
		must(t, err)
		fn, err := m.Function("scale")
		must(t, err)
		c, err := fn.NewCall(4, cuda.LaunchOptions{Programmatic: true})
		must(t, err)
		must(t, errors.Join(c.SetBuffer(0, in), c.SetBuffer(1, in)))
		c.Grid, c.Block = [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}
		must(t, b.s.LaunchKernel(c))
		must(t, b.s.Synchronize())
		if a, s := f.Programmatic("add"), f.Programmatic("scale"); a != want || s != want {
			t.Errorf("%s: launches start early: of a program %t, of an op %t", target, a, s)
		}
	}
}

// TestImagesAreShared: programs with the same image share it, so its PTX is compiled once, and again
// only after the last of these programs was closed.
func TestImagesAreShared(t *testing.T) {
	f := newFake(t, fake.Options{})
	d := open(t, f)
	b := newBench(t, d, &rig{target: cuda.Target(8, 0), ptx: fake.PTX(names...)})
	p := b.rig.single(t, "add", 2, launch(t, dimsAttr(cuda.AttrDims, testkit.Dims(t, "N")...)))
	p.Kernels = append(p.Kernels, b.rig.kernel(t, "scale"))
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

// TestOldDriver loads a program with a driver that does not return a kernel's parameters.
func TestOldDriver(t *testing.T) {
	d := open(t, newFake(t, fake.Options{Version: 12000}))
	if major, minor := d.DriverVersion(); major != 12 || minor != 0 {
		t.Errorf("CUDA %d.%d", major, minor)
	}
	x, err := d.Load(fakeRig().single(t, "add", 2, launch(t, dimsAttr(cuda.AttrDims, testkit.Dims(t, "N")...))), nil)
	must(t, err)
	must(t, x.Close())
}
