package cuda

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"pwc/internal/cuda/driver"
	"pwc/program"
	"pwc/runtime/cuda/internal/params"
	"pwc/runtime/device"
)

// imageKey is the SHA-256 of an image.
type imageKey [sha256.Size]byte

// module is an image in the driver, shared by all executables and Modules that use it.
type module struct {
	dev    *Device
	key    imageKey
	handle driver.Module
	users  int // guarded by dev.mu; at 0 it is unloaded
}

// useModule loads the image (cubin or PTX) that the device takes of a kernel, which was made for
// architecture a. If the image is loaded already, useModule only adds a use. If the module is not nil, the
// caller has a use of it, also after an error. No capture is under way that is not relaxed; the context
// is current.
func (d *Device) useModule(a arch, k *program.Kernel) (*module, error) {
	form, err := d.imageOf(a, k)
	if err != nil {
		return nil, err
	}
	code := k.Code
	if form == imagePTX {
		code = k.PTX
	}
	key := sha256.Sum256(code)
	d.mu.Lock()
	if m := d.modules[key]; m != nil {
		m.users++
		d.mu.Unlock()
		return m, nil
	}
	d.mu.Unlock()
	if form == imagePTX {
		if code, err = k.PTXText(); err != nil {
			return nil, err
		}
	}
	h, log, err := d.drv.ModuleLoadData(code, form == imagePTX)
	if err != nil {
		var e *driver.Error
		if errors.As(err, &e) && e.Result == driver.UnsupportedPTX {
			major, minor := d.DriverVersion()
			err = fmt.Errorf("%w: a compiler newer than the driver, which runs CUDA %d.%d, made the PTX of %s", err, major, minor, a.target)
		}
		if err = d.check(err); log != "" {
			err = fmt.Errorf("%w\n%s", err, log)
		}
		return nil, err
	}
	if form == imagePTX {
		d.ptx.Add(1)
	}
	d.mu.Lock()
	if m := d.modules[key]; m != nil { // loaded meanwhile by another goroutine
		m.users++
		d.mu.Unlock()
		return m, d.drv.ModuleUnload(h)
	}
	m := &module{dev: d, key: key, handle: h, users: 1}
	d.modules[key] = m
	d.mu.Unlock()
	d.adopt(m)
	return m, nil
}

// dropModule ends a use.
func (d *Device) dropModule(what string, m *module) error {
	if l := d.lost.Load(); l != nil {
		return refuse(what, l)
	}
	d.mu.Lock()
	m.users--
	last := m.users == 0
	if last {
		delete(d.modules, m.key)
	}
	d.mu.Unlock()
	if !last {
		return nil
	}
	return d.release(what, m)
}

func (m *module) destroy() error {
	// Kernels of the module may be under way.
	return errors.Join(m.dev.drain(), m.dev.drv.ModuleUnload(m.handle))
}

// Module is the loaded code of an op.
type Module struct {
	dev    *Device
	arch   arch
	shared *module
	closed atomic.Bool
}

// LoadModule loads the kernel of a program that has nothing else ([program.Alone]):
// its cubin if that runs on the device, else its PTX, which the driver compiles. An
// image that is already loaded is shared.
func (d *Device) LoadModule(p *program.Program) (*Module, error) {
	const what = "load of a module"
	if err := p.Validate(); err != nil {
		return nil, refuse(what, err)
	}
	if len(p.Kernels) != 1 || len(p.Steps) > 0 {
		return nil, refuse(what, fmt.Errorf("%d kernels and %d steps, want one kernel", len(p.Kernels), len(p.Steps)))
	}
	a, err := d.archOf(p.Target)
	if err != nil {
		return nil, refuse(what, err)
	}
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.idle(what); err != nil {
		return nil, err
	}
	d.gate.enter()
	defer d.gate.leave()
	if err := d.enter(); err != nil {
		return nil, d.wrap(what, err)
	}
	defer d.leave()
	m, err := d.useModule(a, &p.Kernels[0])
	if err != nil {
		if err = d.wrap(what, err); m != nil {
			err = errors.Join(err, d.dropModule(what, m))
		}
		return nil, err
	}
	return &Module{dev: d, arch: a, shared: m}, nil
}

// Close ends the use of the module; calls of its functions fail from then on.
func (m *Module) Close() error {
	const what = "close of a module"
	if err := m.dev.changeable(what); err != nil {
		return err
	}
	if m.dev.shut.Load() || m.closed.Swap(true) {
		return refuse(what, device.ErrClosed)
	}
	return m.dev.dropModule(what, m.shared)
}

// Function is a kernel.
type Function struct {
	module       *Module
	name         string
	handle       driver.Function
	maxThreads   int // of a block
	staticShared int // bytes
	params       []int64
	paramsKnown  bool
}

// function finds a kernel and the limits of its launches. The context is current.
func (d *Device) function(m *module, name string) (*Function, error) {
	f := &Function{name: name}
	var err error
	if f.handle, err = d.drv.ModuleGetFunction(m.handle, name); err != nil {
		return nil, err
	}
	if f.maxThreads, err = d.drv.FuncGetAttribute(driver.FuncMaxThreads, f.handle); err != nil {
		return nil, err
	}
	if f.staticShared, err = d.drv.FuncGetAttribute(driver.FuncStaticShared, f.handle); err != nil {
		return nil, err
	}
	f.params, f.paramsKnown, err = d.drv.FuncParamSizes(f.handle)
	return f, err
}

// readParams returns the sizes of a kernel's parameters from its code, for drivers that do
// not return them; known is false if the code does not contain them either.
func (d *Device) readParams(a arch, k *program.Kernel) (sizes []int64, known bool, err error) {
	form, err := d.imageOf(a, k)
	if err != nil {
		return nil, false, err
	}
	if form != imagePTX {
		sizes, known = params.OfCubin(k.Code, k.Name)
		return sizes, known, nil
	}
	text, err := k.PTXText()
	if err != nil {
		return nil, false, err
	}
	sizes, known = params.OfPTX(text, k.Name)
	return sizes, known, nil
}

// optIn is the most shared memory, static and dynamic together, that a kernel can use without
// a higher limit (allowShared).
const optIn = 48 << 10

// allowShared lets launches of f use up to maxShared bytes of dynamic shared memory.
func (d *Device) allowShared(f *Function) error {
	return d.drv.FuncSetAttribute(f.handle, driver.FuncMaxDynamicShared, int(d.maxShared(f)))
}

// maxShared returns the most dynamic shared memory of a launch of f, in bytes.
func (d *Device) maxShared(f *Function) int64 {
	return d.Info().Properties[program.PropertyPrefix+"shared_bytes"] - int64(f.staticShared)
}

// Function finds a kernel by name. Its launches may use all the shared memory
// that the device has for a block.
func (m *Module) Function(name string) (*Function, error) {
	what := "function " + name
	d := m.dev
	if err := d.idle(what); err != nil {
		return nil, err
	}
	if m.closed.Load() {
		return nil, refuse(what, device.ErrClosed)
	}
	d.gate.enter() // the driver may load the kernel only now
	defer d.gate.leave()
	if err := d.enter(); err != nil {
		return nil, d.wrap(what, err)
	}
	defer d.leave()
	f, err := d.function(m.shared, name)
	if err == nil {
		err = d.allowShared(f)
	}
	if err != nil {
		return nil, d.wrap(what, err)
	}
	f.module = m
	return f, nil
}

// LaunchOptions are the launch attributes of a call.
type LaunchOptions struct {
	// Programmatic is programmatic dependent launch: the kernel may start before earlier kernels
	// end, and waits for them itself. It is ignored if GPU or target are below sm_90, or the
	// driver's CUDA is below 12.3.
	Programmatic bool

	Cooperative bool      // all blocks are resident at the same time
	Cluster     [3]uint32 // blocks of a cluster; the zero value: the launch has no clusters
}

// programmaticVersion is the first CUDA that captures programmatic dependent
// launches.
const programmaticVersion = 12030

// attrs returns the attributes as the driver takes them, for a kernel made for architecture a.
func (d *Device) attrs(o LaunchOptions, a arch) []driver.LaunchAttr {
	var out []driver.LaunchAttr
	if o.Programmatic && a.programmatic() && d.major >= 9 && d.version >= programmaticVersion {
		a := driver.LaunchAttr{ID: driver.LaunchProgrammatic}
		a.Value[0] = 1
		out = append(out, a)
	}
	if o.Cooperative {
		a := driver.LaunchAttr{ID: driver.LaunchCooperative}
		a.Value[0] = 1
		out = append(out, a)
	}
	if o.Cluster != [3]uint32{} {
		a := driver.LaunchAttr{ID: driver.LaunchCluster}
		copy(a.Value[:], o.Cluster[:])
		out = append(out, a)
	}
	return out
}

// prepared is a launch with all its arguments, so that launching allocates nothing.
type prepared struct {
	function driver.Function
	config   driver.LaunchConfig
	values   []uint64
	params   []unsafe.Pointer // to values; the driver reads as many bytes as the kernel declares
}

func (p *prepared) arguments(n int) {
	p.values = make([]uint64, n)
	p.params = make([]unsafe.Pointer, n+1) // one more, so that &params[0] exists for n = 0
	for i := range p.values {
		p.params[i] = unsafe.Pointer(&p.values[i])
	}
}

func (p *prepared) attributes(list []driver.LaunchAttr) {
	if len(list) > 0 {
		p.config.Attrs, p.config.NumAttrs = &list[0], uint32(len(list))
	}
}

// launch enqueues the kernel on s, whose context is current.
func (p *prepared) launch(s *Stream) error {
	p.config.Stream = s.handle
	return s.dev.drv.LaunchKernel(p.function, &p.config, &p.params[0])
}

// KernelCall is a prepared launch of an op's kernel. Grid, Block and Shared
// (dynamic shared memory, bytes) may change between launches.
type KernelCall struct {
	Grid, Block [3]uint32
	Shared      uint32

	f    *Function
	run  prepared
	args []device.Buffer // by argument; the zero Buffer for a value
}

// NewCall prepares a launch with args arguments of at most 8 bytes each. args must be the number
// of the kernel's parameters, which is checked if the driver returns it (CUDA 12.4).
func (f *Function) NewCall(args int, o LaunchOptions) (*KernelCall, error) {
	if f.paramsKnown && len(f.params) != args {
		return nil, fmt.Errorf("cuda: kernel %s has %d parameters, not %d", f.name, len(f.params), args)
	}
	c := &KernelCall{f: f, run: prepared{function: f.handle}, args: make([]device.Buffer, args)}
	c.run.arguments(args)
	c.run.attributes(f.module.dev.attrs(o, f.module.arch))
	return c, nil
}

// SetArg sets argument i to a value: an integer, an address, or the bits of a
// float. A parameter of fewer than 8 bytes gets the low bytes.
func (c *KernelCall) SetArg(i int, v uint64) { c.run.values[i], c.args[i] = v, device.Buffer{} }

// SetBuffer sets argument i to the address of a buffer. Launches fail once its
// segment is freed.
func (c *KernelCall) SetBuffer(i int, b device.Buffer) error {
	p, _, err := c.f.module.dev.memory(b)
	if err != nil {
		return fmt.Errorf("cuda: argument %d of kernel %s: %w", i, c.f.name, err)
	}
	c.run.values[i], c.args[i] = uint64(p), b
	return nil
}

// LaunchKernel enqueues a kernel, or records it. It copies the arguments. If it does not
// record, it allocates nothing.
func (s *Stream) LaunchKernel(c *KernelCall) error {
	const what = "kernel launch"
	if err := s.usable(what); err != nil {
		return err
	}
	m := c.f.module
	switch {
	case m.dev != s.dev:
		return refuse(what, device.ErrForeignStream)
	case m.closed.Load():
		return refuse(what, device.ErrClosed)
	}
	for i := range c.args {
		if m := segment(c.args[i]); m != nil && m.freed.Load() {
			return refuse(what, device.ErrFreed)
		}
	}
	if err := s.begin(); err != nil {
		return s.dev.wrap(what, err)
	}
	defer s.end()
	c.run.config.Grid, c.run.config.Block, c.run.config.Shared = c.Grid, c.Block, c.Shared
	if err := c.run.launch(s); err != nil {
		return s.issued(what, fmt.Errorf("%s: %w", c.f.name, err))
	}
	on := s.recording()
	if on == nil {
		return nil
	}
	if on.reach.first(m) {
		on.reach.modules = append(on.reach.modules, m)
	}
	return s.issued(what, s.record(on, operation{kind: device.NodeKernel, name: c.f.name, args: slices.Clone(c.args)}, driver.NodeKernel, 1))
}
