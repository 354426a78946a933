// Package fake is a CUDA driver without a GPU, for tests of code that uses package cuda.
// Memory has real contents. Kernels are those of modules in PTX, which package ptx
// executes, or Go functions of the test.
//
// The test's [Schedule] decides when work executes, in any order that streams and events
// allow; a call that must wait for work executes that work. Copies read device memory and
// pinned memory when they execute, pageable memory when they are enqueued. Contexts and captures belong to
// threads, as in the driver. The fake detects the use of freed memory and of unloaded code,
// and calls that a capture forbids. Any call can be made to fail.
package fake

import (
	"fmt"
	"slices"
	"sync"

	"pwc/internal/cuda/driver"
	"pwc/internal/cuda/fake/ptx"
	"pwc/internal/cuda/gpuarch"
	"pwc/internal/thread"
)

// Options describe the driver and its devices.
type Options struct {
	Devices     int      // default 1
	NoPeers     bool     // devices do not reach each other's memory
	PCIePeers   bool     // devices reach each other's memory, but not by NVLink
	Major       int      // of the compute capability; default 9
	Minor       int      // of the compute capability
	MemoryBytes int64    // reported for each device; all devices together may allocate so much; default 1 GiB
	Version     int      // 1000·major + 10·minor of the CUDA that the driver supports; default 12.4
	Schedule    Schedule // default Lazy
	Kernels     []Kernel
}

// Granularity is the unit in bytes of mappings into reserved address space.
const Granularity = 4096

// Driver is a driver, for cuda.Options.Driver.
type Driver struct {
	o Options

	mu      sync.Mutex
	calls   int
	made    map[string]int // calls by name
	failAt  int            // number of the call that fails, as counted by calls; 0: no call fails
	failBy  driver.Result
	failed  string        // the call that was made to fail
	sticky  driver.Result // the result of every call, unless Success
	clock   float64       // time of the operations that executed, in milliseconds
	next    uintptr       // the next handle
	kernels map[string]Kernel
	threads map[int]*threadState
	ctx     []context // by device
	space   space
	streams []*stream // also destroyed ones that have work left
	byID    map[driver.Stream]*stream
	events  map[driver.Event]*event
	modules map[driver.Module]*module
	texts   map[string]*ptx.Module // parsed PTX, by text
	funcs   map[driver.Function]*function
	graphs  map[driver.Graph]*graph
	execs   map[driver.GraphExec]*graph
	ready   []int              // scratch of the scheduler
	records map[*event]*record // of the launch that executes
	call    Call
	machine *ptx.Machine
	now     *running                   // the operation that executes on its own goroutine; nil: there is none
	on      driver.Context             // of the stream whose operation executes
	peers   map[[2]driver.Context]bool // the first may reach memory of the second
	opened  map[driver.Ptr]int         // uses of memory of other processes, by address
	leaks   []string
	misuse  []string
	faults  []string
}

var _ driver.Driver = (*Driver)(nil)

// context is a device's primary context.
type context struct {
	id   driver.Context
	uses int
}

// threadState is the driver's state of a thread.
type threadState struct {
	ctx       driver.Context
	mode      driver.CaptureMode // exchanged; at first global
	capturing []*stream
}

// New returns a driver.
func New(o Options) *Driver {
	if o.Devices == 0 {
		o.Devices = 1
	}
	if o.Major == 0 {
		o.Major = 9
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = 1 << 30
	}
	if o.Version == 0 {
		o.Version = 12040
	}
	if o.Schedule == nil {
		o.Schedule = Lazy
	}
	f := &Driver{
		o: o, next: 0x1000, made: map[string]int{}, kernels: map[string]Kernel{}, threads: map[int]*threadState{}, ctx: make([]context, o.Devices),
		byID: map[driver.Stream]*stream{}, events: map[driver.Event]*event{}, modules: map[driver.Module]*module{}, texts: map[string]*ptx.Module{},
		machine: new(ptx.Machine), peers: map[[2]driver.Context]bool{}, opened: map[driver.Ptr]int{},
		funcs: map[driver.Function]*function{}, graphs: map[driver.Graph]*graph{}, execs: map[driver.GraphExec]*graph{},
	}
	f.space.init()
	for _, k := range o.Kernels {
		f.kernels[k.Name] = k
	}
	return f
}

// Fail makes the n-th call from now on, n ≥ 1, fail with a CUresult. A call that frees or
// destroys an object does so before it fails, since the driver's calls may report an error
// of earlier work. After a sticky result all calls fail.
func (f *Driver) Fail(n int, result int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failAt, f.failBy, f.failed = f.calls+n, driver.Result(result), ""
}

// Failed returns the call that Fail made to fail, or "".
func (f *Driver) Failed() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// Calls returns the number of calls so far.
func (f *Driver) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// Made returns the number of calls so far of a function of the driver, such as
// "cuGraphLaunch".
func (f *Driver) Made(call string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made[call]
}

// Leaks lists the objects that were left when the last context was released, the uses of
// contexts that were not released, and the captures under way.
func (f *Driver) Leaks() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.Clone(f.leaks)
	for i, c := range f.ctx {
		if c.uses > 0 {
			out = append(out, fmt.Sprintf("%d uses of the context of device %d", c.uses, i))
		}
	}
	for id, t := range f.threads {
		if len(t.capturing) > 0 {
			out = append(out, fmt.Sprintf("a capture on thread %d", id))
		}
	}
	return out
}

// Misuse lists calls that the driver's documentation forbids, operations that use freed pinned memory or unloaded
// code, and accesses of libraries outside of allocations.
func (f *Driver) Misuse() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.misuse)
}

// Faults lists the errors that ended kernels in PTX: [*ptx.Error] as text.
func (f *Driver) Faults() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.faults)
}

func (f *Driver) wrong(format string, args ...any) {
	f.misuse = append(f.misuse, fmt.Sprintf(format, args...))
}

func fail(call string, r driver.Result) error {
	if r == driver.Success {
		return nil
	}
	return &driver.Error{Call: call, Result: r}
}

// thread returns the calling thread's state.
func (f *Driver) thread() *threadState {
	id := thread.ID()
	t := f.threads[id]
	if t == nil {
		t = &threadState{}
		f.threads[id] = t
	}
	return t
}

// need has the requirements of a call.
type need uint8

const (
	needContext   need = 1 << iota // a current context
	needNoCapture                  // no capture that forbids unsafe calls on the thread (forbidding)
	needNobody                     // also no capture of any thread that is not relaxed: the call invalidates it
)

// begin counts a call, executes work as the schedule decides, and checks the requirements of
// the call. f.mu is held.
func (f *Driver) begin(call string, n need) error {
	f.calls++
	f.made[call]++
	if f.calls == f.failAt {
		f.failed = call
		if fatal, _ := f.failBy.Fatal(); fatal {
			f.sticky = f.failBy
		}
		return fail(call, f.failBy)
	}
	if f.sticky != 0 {
		return fail(call, f.sticky)
	}
	f.progress()
	if f.sticky != 0 {
		return fail(call, f.sticky)
	}
	t := f.thread()
	if n&needContext != 0 && t.ctx == 0 {
		f.wrong("%s without a current context", call)
		return fail(call, driver.InvalidContext)
	}
	if n&(needNoCapture|needNobody) != 0 && t.mode != driver.CaptureRelaxed {
		if hit := f.forbidding(t); len(hit) > 0 {
			for _, c := range hit {
				c.invalid = true
			}
			f.wrong("%s on a thread that captures, or during a global capture", call)
			return fail(call, driver.CaptureUnsupported)
		}
	}
	if n&needNobody != 0 {
		for _, other := range f.threads {
			for _, s := range other.capturing {
				if s.capture.mode != driver.CaptureRelaxed {
					s.capture.invalid = true
					f.wrong("%s during a capture that is not relaxed", call)
				}
			}
		}
	}
	return nil
}

// forbidding returns the captures that forbid unsafe calls on a thread: the thread's own captures
// that are not relaxed, and, if the thread's mode is global, the global captures of other threads.
func (f *Driver) forbidding(t *threadState) []*recording {
	var out []*recording
	for _, other := range f.threads {
		for _, s := range other.capturing {
			m := s.capture.mode
			if other == t && m != driver.CaptureRelaxed || other != t && m == driver.CaptureGlobal && t.mode == driver.CaptureGlobal {
				out = append(out, s.capture)
			}
		}
	}
	return out
}

// handle returns a new handle, which was never used before.
func (f *Driver) handle() uintptr {
	f.next += 16
	return f.next
}

// Library returns "fake".
func (f *Driver) Library() string { return "fake" }

// DriverGetVersion returns Options.Version.
func (f *Driver) DriverGetVersion() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.o.Version, f.begin("cuDriverGetVersion", 0)
}

// DeviceGetCount returns Options.Devices.
func (f *Driver) DeviceGetCount() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.o.Devices, f.begin("cuDeviceGetCount", 0)
}

// DeviceGetName names the fake.
func (f *Driver) DeviceGetName(d driver.Device) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprintf("fake GPU %d", d), f.begin("cuDeviceGetName", 0)
}

// DeviceGetAttribute describes a small GPU, on a PCI bus of its own.
func (f *Driver) DeviceGetAttribute(a driver.Attribute, dev driver.Device) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := map[driver.Attribute]int{
		driver.AttrWarpSize: 32, driver.AttrMultiprocessors: 4, driver.AttrL2Bytes: 1 << 20, driver.AttrThreadsPerSM: 2048,
		driver.AttrComputeMajor: f.o.Major, driver.AttrComputeMinor: f.o.Minor, driver.AttrSharedBytesPerSM: 228 << 10,
		driver.AttrRegistersPerSM: 64 << 10, driver.AttrSharedBytesPerBlock: gpuarch.SharedBytes(10*f.o.Major + f.o.Minor), driver.AttrVirtualMemory: 1, driver.AttrBlocksPerSM: 32,
		driver.AttrPCIBus: 0x10 + int(dev),
	}[a]
	return v, f.begin("cuDeviceGetAttribute", 0)
}

// DeviceTotalMem returns Options.MemoryBytes.
func (f *Driver) DeviceTotalMem(driver.Device) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.o.MemoryBytes, f.begin("cuDeviceTotalMem", 0)
}

// DevicePrimaryCtxRetain counts a use.
func (f *Driver) DevicePrimaryCtxRetain(d driver.Device) (driver.Context, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin("cuDevicePrimaryCtxRetain", 0); err != nil {
		return 0, err
	}
	c := &f.ctx[d]
	if c.uses == 0 {
		c.id = driver.Context(f.handle())
	}
	c.uses++
	return c.id, nil
}

// DevicePrimaryCtxRelease ends a use. At the end of the last use of all devices, objects that are
// left are leaks, unless a GPU was lost.
func (f *Driver) DevicePrimaryCtxRelease(d driver.Device) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.begin("cuDevicePrimaryCtxRelease", 0)
	c := &f.ctx[d]
	if c.uses--; c.uses < 0 {
		f.wrong("cuDevicePrimaryCtxRelease without a use")
		c.uses = 0
	}
	used := slices.ContainsFunc(f.ctx, func(c context) bool { return c.uses > 0 })
	if !used && f.sticky == 0 {
		f.collect()
	}
	return err
}

// Left lists the objects that were made and are not destroyed or freed.
func (f *Driver) Left() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.left()
}

// collect adds the objects that are left to the leaks.
func (f *Driver) collect() { f.leaks = append(f.leaks, f.left()...) }

func (f *Driver) left() []string {
	out := f.space.left()
	note := func(n int, what string) {
		if n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, what))
		}
	}
	note(len(f.byID), "streams")
	note(len(f.events), "events")
	note(len(f.modules), "modules")
	note(len(f.graphs), "graphs")
	note(len(f.execs), "executable graphs")
	note(len(f.opened), "mappings of memory of other processes")
	return out
}

// CtxSetCurrent sets the calling thread's context.
func (f *Driver) CtxSetCurrent(c driver.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin("cuCtxSetCurrent", 0); err != nil {
		return err
	}
	f.thread().ctx = c
	return nil
}
