package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"pwc/internal/cuda/driver"
	"pwc/program"
	"pwc/runtime/device"
)

// Options choose and configure a device.
type Options struct {
	// Ordinal is the number of the device, from 0, among those that the driver shows.
	Ordinal int

	// LibraryPath is the driver's library; empty: libcuda.so.1 by the loader's
	// rules, then in the folders where drivers are installed.
	LibraryPath string

	// Libraries are the routines that StepLibrary may name. They are called like
	// extern ops, and may be captured if their signatures allow it.
	Libraries device.OpSet

	// Captures is shared with other devices, so that a capture in mode global forbids
	// their work too; nil: the device has a value of its own.
	Captures *device.Captures

	// Driver replaces libcuda in tests: see package internal/cuda/fake.
	Driver driver.Driver
}

// Device implements [device.Device] on a GPU. It uses the primary context, which it shares
// with other users of CUDA in the process.
type Device struct {
	drv       driver.Driver
	ordinal   driver.Device
	ctx       driver.Context
	info      device.Info
	major     int // compute capability
	minor     int
	version   int // 1000·major + 10·minor of the driver's CUDA
	libraries device.OpSet
	workspace int64 // of a stream, for routines; bytes
	gate      gate
	captures  *device.Captures
	named     atomic.Int64 // streams that got a number as name so far
	lost      atomic.Pointer[device.LostError]
	shut      atomic.Bool // closed; read without life, too
	pinned    pinned
	checks    checks

	life sync.RWMutex // the device's methods that make objects, and State.Map, hold it for reading, Close for writing

	mu      sync.Mutex
	live    map[resource]int64 // resources that Close has to destroy, with their numbers in the order of creation
	born    int64
	active  int64 // bytes of segments
	loaded  map[*Executable]struct{}
	loads   int64
	modules map[imageKey]*module
	late    error            // errors of destructions after a capture, for Close
	chunk   *faultChunk      // the newest chunk, which programs take words from; nil: the next program makes one
	peers   map[string]peers // by group

	streams sync.RWMutex // guards queues; held for writing while a stream is destroyed
	queues  map[*Stream]struct{}

	util util
	ptx  atomic.Int64 // PTX images that the driver compiled
}

var (
	_ device.LibraryProvider = (*Device)(nil)
	_ device.LoadCompiler    = (*Device)(nil)
	_ device.Timer           = (*Device)(nil)
)

// resource is an object that release or Close of the device destroys, with the context current.
type resource interface{ destroy() error }

// util is a stream for the device's own copies, and for uploads of graphs.
type util struct {
	sync.Mutex
	drv    driver.Driver
	stream driver.Stream
}

func (u *util) destroy() error { return u.drv.StreamDestroy(u.stream) }

// Target returns the target of programs for a compute capability: 9, 0 is
// "cuda:sm_90".
func Target(major, minor int) string { return fmt.Sprintf("cuda:sm_%d%d", major, minor) }

// Open opens a GPU. Without a driver the error lists the paths that were tried. A driver
// older than CUDA 12.0 is refused; the error has its path and version.
func Open(o Options) (*Device, error) {
	drv, err := o.driver()
	if err != nil {
		return nil, err
	}
	d := &Device{
		drv: drv, ordinal: driver.Device(o.Ordinal), libraries: o.Libraries,
		live: map[resource]int64{}, loaded: map[*Executable]struct{}{}, modules: map[imageKey]*module{}, queues: map[*Stream]struct{}{},
	}
	if d.captures = o.Captures; d.captures == nil {
		d.captures = new(device.Captures)
	}
	d.gate.init()
	if err := d.open(o.Ordinal); err != nil {
		return nil, fmt.Errorf("cuda: opening device %d: %w", o.Ordinal, err)
	}
	return d, nil
}

func (d *Device) open(ordinal int) error {
	n, err := d.drv.DeviceGetCount()
	switch {
	case err != nil:
		return err
	case ordinal < 0 || ordinal >= n:
		return fmt.Errorf("the driver shows %d devices, counted from 0", n)
	}
	if d.version, err = d.drv.DriverGetVersion(); err != nil {
		return err
	}
	if d.info, err = describe(d.drv, d.ordinal); err != nil {
		return err
	}
	d.major, d.minor = int(d.info.Properties[program.PropertyPrefix+"major"]), int(d.info.Properties[program.PropertyPrefix+"minor"])
	if d.ctx, err = d.drv.DevicePrimaryCtxRetain(d.ordinal); err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return errors.Join(err, d.drv.DevicePrimaryCtxRelease(d.ordinal))
	}
	defer d.leave()
	d.util.drv = d.drv
	if d.util.stream, err = d.drv.StreamCreate(); err != nil {
		return errors.Join(err, d.drv.DevicePrimaryCtxRelease(d.ordinal))
	}
	d.adopt(&d.util)
	return nil
}

// Info describes the device. The map is shared: it must not be written.
func (d *Device) Info() device.Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info
}

// DriverVersion returns the newest CUDA that the driver supports.
func (d *Device) DriverVersion() (major, minor int) { return d.version / 1000, d.version % 1000 / 10 }

// PTXCompiled returns how many images the driver compiled from PTX in Load and LoadModule.
func (d *Device) PTXCompiled() int64 { return d.ptx.Load() }

// FreeBytes implements [device.Budgeted]: it returns the driver's free memory (cuMemGetInfo), which other processes
// may take, too. It is allowed during a capture.
func (d *Device) FreeBytes() (int64, error) {
	if err := d.usable("free bytes"); err != nil {
		return 0, err
	}
	if err := d.enter(); err != nil {
		return 0, d.wrap("free bytes", err)
	}
	defer d.leave()
	free, _, err := d.drv.MemGetInfo()
	return free, d.wrap("free bytes", err)
}

// SharesHostMemory implements [device.Budgeted].
func (d *Device) SharesHostMemory() bool { return false }

// enter locks the goroutine to its thread and makes the context current there.
// leave must follow, unless there was an error.
func (d *Device) enter() error {
	runtime.LockOSThread()
	if err := d.drv.CtxSetCurrent(d.ctx); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	return nil
}

func (d *Device) leave() { runtime.UnlockOSThread() }

// adopt remembers a resource until it is released.
func (d *Device) adopt(r resource) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.born++
	d.live[r] = d.born
}

// release destroys a resource, now or when the captures under way have ended. Close returns the
// errors of a later destruction, unless the device is lost.
func (d *Device) release(what string, r resource) error {
	d.mu.Lock()
	delete(d.live, r)
	d.mu.Unlock()
	if l := d.lost.Load(); l != nil {
		return refuse(what, l) // it is gone with the context
	}
	if !d.gate.enterOr(func() { d.destroyLate(what, r) }) {
		return nil
	}
	defer d.gate.leave()
	return d.wrap(what, d.destroy(r))
}

func (d *Device) destroyLate(what string, r resource) {
	if err := d.destroy(r); err != nil {
		err = fmt.Errorf("%s, after a capture: %w", what, d.check(err))
		d.mu.Lock()
		defer d.mu.Unlock()
		d.late = errors.Join(d.late, err)
	}
}

// destroy gives a resource back to the driver. If the context cannot be made current, the
// resource stays, and Close tries again.
func (d *Device) destroy(r resource) error {
	if err := d.enter(); err != nil {
		d.adopt(r)
		return err
	}
	defer d.leave()
	return r.destroy()
}

// drain waits for all work of the device's streams. No capture is under way.
func (d *Device) drain() error {
	d.streams.RLock()
	defer d.streams.RUnlock()
	for s := range d.queues {
		if err := d.drv.StreamSynchronize(s.handle); err != nil {
			return err
		}
	}
	return nil
}

// Close waits for the streams and destroys all objects that the device made. It is refused
// while a stream captures or waits in BeginCapture. A second Close does nothing. Of a lost device, whose objects are gone
// with the context, Close only releases the context, and returns nil.
func (d *Device) Close() error {
	if !d.gate.close() {
		return refuse("close", device.ErrCapturing)
	}
	d.life.Lock()
	defer d.life.Unlock()
	if d.shut.Swap(true) {
		return nil
	}
	d.mu.Lock()
	clear(d.loaded)
	clear(d.modules)
	errs := []error{d.late}
	d.mu.Unlock()
	lost := d.lost.Load() != nil
	if !lost {
		errs = append(errs, d.closeAll(), d.closeAll()) // again, for resources that destroy kept
	}
	errs = append(errs, d.drv.DevicePrimaryCtxRelease(d.ordinal))
	if lost {
		return nil // earlier calls returned the LostError
	}
	return d.wrap("close", errors.Join(errs...))
}

// closeAll destroys all resources, the newest first.
func (d *Device) closeAll() error {
	d.mu.Lock()
	all := make([]resource, 0, len(d.live))
	for r := range d.live {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b resource) int { return cmp.Compare(d.live[b], d.live[a]) })
	clear(d.live)
	d.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	var errs []error
	if err := d.enter(); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, d.drain())
		d.leave()
	}
	for _, r := range all {
		errs = append(errs, d.destroy(r))
	}
	return errors.Join(errs...)
}
