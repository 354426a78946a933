package cuda

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync/atomic"

	"pwc/internal/cuda/driver"
	"pwc/ir/dim"
	"pwc/program"
	"pwc/runtime/device"
)

// Launch attributes of programs, with the kind of their values; see the package documentation.
const (
	AttrDims        = program.LaunchDims  // list of dims: 64-bit parameters after the addresses
	AttrFree        = program.LaunchFree  // list of constants: rising indices of dims that buffers need not bound
	AttrFaults      = "faults"            // list of constants: the nodes whose indices the kernel checks
	AttrPeers       = program.LaunchPeers // string: the group whose parameters (Device.AddPeers) the kernel takes
	AttrPDL         = "pdl"               // bool: LaunchOptions.Programmatic
	AttrCluster     = "cluster"           // list of 3 constants: blocks of a cluster
	AttrCooperative = "cooperative"       // bool: all blocks are resident at the same time
)

// Executable is a loaded program: its modules in the driver, its constants on
// the device, and its extern ops.
type Executable struct {
	dev      *Device
	id       int64
	program  *program.Program
	arch     arch // that the program is for
	ops      device.OpSet
	launches map[*program.Step]*launchSpec // of kernels
	consts   *memory                       // all constants, at constAt
	constAt  []int64                       // by constant
	modules  []*module
	faults   faults
	closed   atomic.Bool
}

// launchSpec is a launch configuration of a program, checked.
type launchSpec struct {
	name   string
	f      *Function
	launch *program.Launch
	dims   []dim.Dim
	free   []bool // by dim: buffers need not bound it; nil: Bind checks every dim
	faults int    // index of the first fault word in the executable's; -1: the kernel takes no fault words
	peers  peers  // the zero value: no parameters
	attrs  []driver.LaunchAttr
}

// Load checks a program and makes it ready to bind. Errors of a step or kernel name it. While
// another goroutine captures in mode thread-local, Load waits for the end of the capture.
func (d *Device) Load(p *program.Program, ops device.OpSet) (device.Executable, error) {
	const what = "load"
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.idle(what); err != nil {
		return nil, err
	}
	x := &Executable{dev: d, program: p, ops: ops, launches: map[*program.Step]*launchSpec{}}
	if err := x.check(); err != nil {
		return nil, refuse(what, err)
	}
	d.gate.enter()
	defer d.gate.leave()
	if err := d.wrap(what, x.load()); err != nil {
		return nil, errors.Join(err, x.unload())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.loads++
	x.id = d.loads
	d.loaded[x] = struct{}{}
	return x, nil
}

// check makes the checks of Load that need no driver.
func (x *Executable) check() error {
	p, d := x.program, x.dev
	if err := p.Validate(); err != nil {
		return err
	}
	var err error
	if x.arch, err = d.archOf(p.Target); err != nil {
		return err
	}
	for i := range x.kernels() {
		if _, err := d.imageOf(x.arch, &p.Kernels[i]); err != nil {
			return fmt.Errorf("kernel %d (%s): %w", i, p.Kernels[i].Name, err)
		}
	}
	for i, step := range p.Required() {
		if err := x.has(step); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// has returns an error if the op or routine that a step calls is missing.
func (x *Executable) has(s *program.Step) error {
	switch {
	case s.Kind == program.StepExtern && x.ops[s.Extern] == nil:
		return fmt.Errorf("no extern op %q was given", s.Extern)
	case s.Kind == program.StepLibrary && x.dev.Libraries()[s.Extern] == nil:
		return fmt.Errorf("the device has no library routine %q", s.Extern)
	}
	return nil
}

// load loads the modules, constants and fault words of the program. No capture is under way
// that is not relaxed. After an error the caller calls unload.
func (x *Executable) load() error {
	d, p := x.dev, x.program
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	functions := make([]*Function, len(p.Kernels))
	for i := range x.kernels() {
		k := &p.Kernels[i]
		m, err := d.useModule(x.arch, k)
		if m != nil {
			x.modules = append(x.modules, m)
		}
		if err == nil {
			functions[i], err = d.function(m, k.Name)
		}
		if err == nil && !functions[i].paramsKnown {
			functions[i].params, functions[i].paramsKnown, err = d.readParams(x.arch, k)
		}
		if err != nil {
			return fmt.Errorf("kernel %d (%s): %w", i, k.Name, err)
		}
	}
	err := x.eachStep(func(s *program.Step) error {
		if s.Kind != program.StepKernel {
			return nil
		}
		return x.loadStep(s, functions[s.Kernel])
	})
	if err != nil {
		return err
	}
	if err := x.faults.alloc(d); err != nil {
		return err
	}
	return x.loadConsts()
}

// eachStep calls f with every step that the program may run on the device, including the steps of
// variants.
func (x *Executable) eachStep(f func(s *program.Step) error) error {
	all := x.dev.Info().Properties
	properties := func(name string) (int64, bool) {
		v, ok := all[name]
		return v, ok
	}
	for i := range x.program.Steps {
		s := &x.program.Steps[i]
		var err error
		if s.Kind != program.StepChoice {
			err = f(s)
		}
		for v := range s.Variants {
			if !device.ForDevice(&s.Variants[v], properties) {
				continue
			}
			for n := range s.Variants[v].Steps {
				err = errors.Join(err, f(&s.Variants[v].Steps[n]))
			}
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// kernels yields the numbers of the program's kernels, except those that only variants for other
// devices run.
func (x *Executable) kernels() iter.Seq[int] {
	others := make([]bool, len(x.program.Kernels))
	for i := range x.program.Steps {
		for _, v := range x.program.Steps[i].Variants {
			for _, s := range v.Steps {
				if s.Kind == program.StepKernel {
					others[s.Kernel] = true
				}
			}
		}
	}
	x.eachStep(func(s *program.Step) error {
		if s.Kind == program.StepKernel {
			others[s.Kernel] = false
		}
		return nil
	})
	return func(yield func(int) bool) {
		for i, other := range others {
			if !other && !yield(i) {
				return
			}
		}
	}
}

// ScratchBytes implements [device.Executable].
func (x *Executable) ScratchBytes(symbols []int64) (int64, error) {
	n, err := device.ScratchBytes(x.program, symbols, x.dev.Info().Properties, x.ops, x.dev.Libraries())
	if err != nil {
		return 0, refuse("scratch", err)
	}
	return n, nil
}

// loadStep makes the launchSpec of a step of kernel f, and checks it against the kernel and the device.
func (x *Executable) loadStep(s *program.Step, f *Function) error {
	l := &s.Launch
	out := &launchSpec{name: x.program.Kernels[s.Kernel].Name, f: f, launch: l, faults: -1}
	x.launches[s] = out
	fail := func(format string, args ...any) error {
		return fmt.Errorf("kernel %s: %s", out.name, fmt.Sprintf(format, args...))
	}
	var o LaunchOptions
	for _, a := range l.Attrs {
		want := program.AttrDims
		switch a.Name {
		case AttrDims:
			out.dims = a.Dims
		case AttrFree:
			var err error
			if out.free, err = freeDims(a.Dims, l.Attrs); err != nil {
				return fail("attribute %s: %v", a, err)
			}
		case AttrFaults:
			if out.faults = x.faults.words(a.Dims); out.faults < 0 {
				return fail("attribute %s is no list of nodes", a)
			}
		case AttrCluster:
			if len(a.Dims) != 3 {
				return fail("attribute %s has %d values, want 3 extents", a, len(a.Dims))
			}
			for j, e := range a.Dims {
				n, ok := e.Const()
				if !ok || n < 1 || n > maxGridX {
					return fail("attribute %s: want constants from 1 to %d", a, maxGridX)
				}
				o.Cluster[j] = uint32(n)
			}
		case AttrPeers:
			want = program.AttrString
			var ok bool
			if out.peers, ok = x.dev.peersOf(a.Str); !ok {
				return fail("the device reaches no ranks of group %q: the ranks join it before programs are loaded", a.Str)
			}
		case AttrPDL:
			want, o.Programmatic = program.AttrBool, a.Bool
		case AttrCooperative:
			want, o.Cooperative = program.AttrBool, a.Bool
		default:
			return fail("unknown launch attribute %s", a)
		}
		if a.Kind != want {
			return fail("attribute %s is of another kind", a)
		}
	}
	out.attrs = x.dev.attrs(o, x.arch)
	args := out.args(len(s.Args))
	if f.paramsKnown {
		if len(f.params) != args {
			return fail("%d parameters, launched with %d", len(f.params), args)
		}
		for j, n := range f.params {
			if n != argBytes {
				return fail("parameter %d has %d bytes, not %d", j, n, argBytes)
			}
		}
	}
	threads := int64(1)
	for _, b := range l.Block {
		threads *= max(int64(b), 0)
	}
	if threads < 1 || threads > int64(f.maxThreads) {
		return fail("blocks of %v threads, it takes 1 to %d", l.Block, f.maxThreads)
	}
	if n, ok := l.Shared.Const(); !ok || n > optIn-int64(f.staticShared) {
		if n > x.dev.maxShared(f) {
			hint := ""
			if own := x.dev.info.Target; x.program.Target != own {
				hint = "; compile for " + own + " instead"
			}
			return fail("%d bytes of dynamic shared memory, the device has %d%s", n, x.dev.maxShared(f), hint)
		}
		return x.dev.allowShared(f)
	}
	return nil
}

// freeDims returns which of a launch's dims are listed.
func freeDims(list []dim.Dim, attrs []program.Attr) ([]bool, error) {
	n := 0
	for _, a := range attrs {
		if a.Name == AttrDims {
			n = len(a.Dims)
		}
	}
	out := make([]bool, n)
	last := int64(-1)
	for _, d := range list {
		i, ok := d.Const()
		if !ok || i <= last || i >= int64(n) {
			return nil, fmt.Errorf("%s is not an index of the %d dims, or not above the index before it", d, n)
		}
		out[i], last = true, i
	}
	return out, nil
}

// argBytes is the size of every parameter.
const argBytes = 8

// args returns the number of parameters of a kernel with this number of buffers.
func (l *launchSpec) args(buffers int) int {
	n := buffers + len(l.dims) + len(l.peers.params)
	if l.faults >= 0 {
		n++
	}
	return n
}

// loadConsts puts the constants on the device.
func (x *Executable) loadConsts() error {
	d := x.dev
	x.constAt = make([]int64, len(x.program.Consts))
	total := int64(0)
	for i, c := range x.program.Consts {
		x.constAt[i] = total
		if int64(len(c)) > math.MaxInt64-program.MaxAlign-total {
			return program.ErrTooLarge
		}
		total += (int64(len(c)) + program.MaxAlign - 1) &^ (program.MaxAlign - 1)
	}
	if total == 0 {
		return nil
	}
	p, err := d.drv.MemAlloc(total)
	if err != nil {
		return err
	}
	x.consts = &memory{dev: d, ptr: p, size: total, owned: true}
	x.consts.mapped.Store(total)
	d.mu.Lock()
	d.active += total
	d.mu.Unlock()
	d.adopt(x.consts)
	for i, c := range x.program.Consts {
		if len(c) > 0 {
			if err := d.upload(p+driver.Ptr(x.constAt[i]), c); err != nil {
				return err
			}
		}
	}
	return nil
}

// Program returns the program that was loaded.
func (x *Executable) Program() *program.Program { return x.program }

// Close unloads the program, once the streams are done with it. Launches that are bound to it
// fail with ErrClosed from then on.
func (x *Executable) Close() error {
	const what = "close of a program"
	d := x.dev
	if err := d.changeable(what); err != nil {
		return err
	}
	if d.shut.Load() || x.closed.Swap(true) {
		return refuse(what, device.ErrClosed)
	}
	d.mu.Lock()
	delete(d.loaded, x)
	d.mu.Unlock()
	return x.unload()
}

// unload frees everything that load made.
func (x *Executable) unload() error {
	const what = "close of a program"
	if l := x.dev.lost.Load(); l != nil {
		return refuse(what, l)
	}
	var errs []error
	for _, m := range slices.Backward(x.modules) { // the end of a module's last use waits for the streams
		errs = append(errs, x.dev.dropModule(what, m))
	}
	x.modules = nil
	if x.consts != nil {
		errs = append(errs, x.consts.free(what))
	}
	return errors.Join(append(errs, x.faults.free(x.dev))...)
}
