package fake

import (
	"bytes"
	"slices"
	"strings"
	"unsafe"

	"pwc/internal/cuda/driver"
	"pwc/internal/cuda/fake/ptx"
	"pwc/internal/cuda/gpuarch"
)

// Kernel is a kernel: a Go function that computes all of a launch.
type Kernel struct {
	Name         string
	Params       int // parameters, each of 8 bytes
	StaticShared int // bytes
	MaxThreads   int // of a block; default 1024
	Run          func(c *Call)
}

// Call is a launch of a kernel. It is valid until Run returns. An access to memory that the
// device cannot access ends the kernel and loses the device.
type Call struct {
	Grid, Block [3]uint32
	Shared      uint32
	f           *Driver
	args        []uint64
}

// fault is the panic that ends a kernel after an invalid access.
type fault struct{}

// Int returns argument i, a 64-bit integer.
func (c *Call) Int(i int) int64 { return int64(c.args[i]) }

// Bytes returns n bytes at the address in argument i.
func (c *Call) Bytes(i int, n int64) []byte {
	if n == 0 {
		return nil
	}
	b := c.f.memory(driver.Ptr(c.args[i]), n)
	if b == nil {
		panic(fault{})
	}
	return b
}

// F32 returns n floats at the address in argument i.
func (c *Call) F32(i int, n int64) []float32 { return view[float32](c, i, n) }

// I32 returns n integers at the address in argument i.
func (c *Call) I32(i int, n int64) []int32 { return view[int32](c, i, n) }

// U32 returns n words at the address in argument i.
func (c *Call) U32(i int, n int64) []uint32 { return view[uint32](c, i, n) }

func view[T int32 | uint32 | float32](c *Call, i int, n int64) []T {
	b := c.Bytes(i, 4*n)
	if len(b) == 0 {
		return nil
	}
	if c.args[i]%4 != 0 {
		c.f.sticky = driver.MisalignedAddress
		panic(fault{})
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}

// kernel runs a kernel. chain has the launches that a kernel in PTX may overlap.
func (f *Driver) kernel(o *op, chain *ptx.Chain) {
	if o.fn.module.unloaded {
		f.wrong("kernel %s runs after its module was unloaded", o.fn.kernel.Name)
		f.sticky = driver.IllegalInstruction
		return
	}
	if o.fn.entry != nil {
		f.interpret(o, chain)
		return
	}
	f.call = Call{Grid: o.config.Grid, Block: o.config.Block, Shared: o.config.Shared, f: f, args: o.args}
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(fault); !ok {
				panic(r)
			}
		}
	}()
	o.fn.kernel.Run(&f.call)
}

// The starts of images.
const (
	cubinMagic = "\x7fELF fake\n"
	ptxMagic   = "// fake PTX\n"
	textMagic  = "\x7fELF PTX\n"
)

// Image returns a cubin of kernels.
func Image(names ...string) []byte { return []byte(cubinMagic + strings.Join(names, "\n")) }

// PTX returns PTX of kernels.
func PTX(names ...string) []byte { return []byte(ptxMagic + strings.Join(names, "\n")) }

// Cubin returns a cubin that contains PTX; for the driver, it is machine code.
func Cubin(ptx []byte) []byte { return append([]byte(textMagic), ptx...) }

// module is a loaded image.
type module struct {
	names    []string    // of kernels in Go
	text     *ptx.Module // or nil
	data     *region     // of its variables, or nil
	unloaded bool
}

// function is a kernel of a module.
type function struct {
	module  *module
	kernel  Kernel
	entry   *ptx.Entry // or nil: kernel.Run
	sizes   []int64    // of the parameters, in bytes
	dynamic int        // bytes of dynamic shared memory that launches may use
	early   bool       // a launch asked to start before earlier kernels end
}

// Programmatic reports whether a launch of a kernel of that name asked to start
// before earlier kernels end.
func (f *Driver) Programmatic(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.funcs {
		if x.kernel.Name == name && x.early {
			return true
		}
	}
	return false
}

// ModuleLoadData loads an image of Image, PTX or Cubin, or real PTX.
func (f *Driver) ModuleLoadData(image []byte, isPTX bool) (driver.Module, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuModuleLoadDataEx"
	if err := f.begin(call, needContext|needNobody); err != nil {
		return 0, "", err
	}
	magic, bad := cubinMagic, driver.InvalidImage
	text, meant := bytes.CutPrefix(image, []byte(textMagic))
	if isPTX {
		magic, bad = ptxMagic, driver.InvalidPTX
		text, meant = image, !bytes.HasPrefix(image, []byte(ptxMagic))
	}
	if meant {
		x, err := f.load(text)
		if err != nil {
			return 0, "ptxas fatal: " + err.Error(), fail(call, bad)
		}
		m := driver.Module(f.handle())
		f.modules[m] = x
		return m, "", nil
	}
	names, ok := strings.CutPrefix(string(image), magic)
	if !ok {
		return 0, "", fail(call, bad)
	}
	m := driver.Module(f.handle())
	f.modules[m] = &module{names: strings.Split(names, "\n")}
	return m, "", nil
}

// ModuleUnload does not wait for work.
func (f *Driver) ModuleUnload(m driver.Module) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuModuleUnload"
	err := f.begin(call, needContext|needNobody)
	x := f.modules[m]
	if x == nil {
		f.wrong("%s of no module", call)
		return fail(call, driver.InvalidHandle)
	}
	x.unloaded = true
	if x.data != nil {
		f.space.remove(x.data)
	}
	delete(f.modules, m)
	return err
}

// ModuleGetFunction finds a kernel of the image: in its PTX, or in Options.Kernels.
func (f *Driver) ModuleGetFunction(m driver.Module, name string) (driver.Function, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuModuleGetFunction"
	if err := f.begin(call, needContext); err != nil {
		return 0, err
	}
	x := f.modules[m]
	if x == nil {
		f.wrong("%s of no module", call)
		return 0, fail(call, driver.InvalidHandle)
	}
	k, ok := f.kernels[name]
	var fn *function
	switch {
	case x.text != nil:
		fn = x.entry(name)
	case ok && slices.Contains(x.names, name):
		if k.MaxThreads == 0 {
			k.MaxThreads = 1024
		}
		fn = &function{module: x, kernel: k, sizes: slices.Repeat([]int64{8}, k.Params)}
	}
	if fn == nil {
		return 0, fail(call, driver.NotFound)
	}
	fn.dynamic = 48<<10 - fn.kernel.StaticShared
	h := driver.Function(f.handle())
	f.funcs[h] = fn
	return h, nil
}

// function finds a kernel of a module that is loaded.
func (f *Driver) function(call string, fn driver.Function) (*function, error) {
	x := f.funcs[fn]
	switch {
	case x == nil:
		f.wrong("%s of no function", call)
		return nil, fail(call, driver.InvalidHandle)
	case x.module.unloaded:
		f.wrong("%s of kernel %s, whose module was unloaded", call, x.kernel.Name)
		return nil, fail(call, driver.InvalidHandle)
	}
	return x, nil
}

// FuncGetAttribute describes a kernel.
func (f *Driver) FuncGetAttribute(a driver.FuncAttribute, fn driver.Function) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuFuncGetAttribute"
	if err := f.begin(call, needContext); err != nil {
		return 0, err
	}
	x, err := f.function(call, fn)
	if err != nil {
		return 0, err
	}
	switch a {
	case driver.FuncMaxThreads:
		return x.kernel.MaxThreads, nil
	case driver.FuncStaticShared:
		return x.kernel.StaticShared, nil
	case driver.FuncMaxDynamicShared:
		return x.dynamic, nil
	}
	return 0, fail(call, driver.InvalidValue)
}

// FuncSetAttribute sets the dynamic shared memory that launches may use. Together with the static shared
// memory it must not exceed AttrSharedBytesPerBlock.
func (f *Driver) FuncSetAttribute(fn driver.Function, a driver.FuncAttribute, v int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuFuncSetAttribute"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	x, err := f.function(call, fn)
	if err != nil {
		return err
	}
	if a != driver.FuncMaxDynamicShared || v < 0 || v+x.kernel.StaticShared > gpuarch.SharedBytes(10*f.o.Major+f.o.Minor) {
		return fail(call, driver.InvalidValue)
	}
	x.dynamic = v
	return nil
}

// FuncParamSizes returns the sizes of the parameters, if Options.Version is 12.4 or later.
func (f *Driver) FuncParamSizes(fn driver.Function) ([]int64, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuFuncGetParamInfo"
	if err := f.begin(call, needContext); err != nil {
		return nil, false, err
	}
	x, err := f.function(call, fn)
	if err != nil || f.o.Version < 12040 {
		return nil, false, err
	}
	return slices.Clone(x.sizes), true, nil
}

// LaunchKernel copies the arguments and enqueues the kernel.
func (f *Driver) LaunchKernel(fn driver.Function, c *driver.LaunchConfig, params *unsafe.Pointer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuLaunchKernelEx"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	x, err := f.function(call, fn)
	if err != nil {
		return err
	}
	shape := cluster(c)
	threads := c.Block[0] * c.Block[1] * c.Block[2]
	if c.Grid[0] == 0 || c.Grid[1] == 0 || c.Grid[2] == 0 || threads == 0 || int(threads) > x.kernel.MaxThreads || int(c.Shared) > x.dynamic {
		f.wrong("%s with grid %v, block %v, %d bytes of shared memory", call, c.Grid, c.Block, c.Shared)
		return fail(call, driver.InvalidValue)
	}
	for i, n := range shape {
		if n > 0 && c.Grid[i]%n != 0 {
			f.wrong("%s with grid %v in clusters of %v", call, c.Grid, shape)
			return fail(call, driver.InvalidValue)
		}
	}
	early := programmatic(c)
	x.early = x.early || early
	config := *c
	config.Attrs = nil
	return f.enqueue(call, c.Stream, op{kind: opKernel, node: driver.NodeKernel, fn: x, args: arguments(x.sizes, params), config: config, cluster: shape, early: early})
}
