// Package host is the device that is always there: the machine's own processor
// and memory. It runs vector programs (package vec) on every platform, without
// flags or cgo.
//
// A stream executes what is enqueued at once, on the goroutine that enqueues
// it, with the rows of a kernel spread over the device's workers. Graphs record
// launches with all addresses bound and replay them, under the rules of a GPU:
// what would be an error there is the same error here, so that everything built
// on devices is tested without one. Launches and replays allocate nothing.
//
// Programs may come from anywhere. Load and Bind prove that no address leaves
// its buffer, whatever the program says; positions that come from tensors are
// checked as they are used (C12).
package host

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"pwc/program"
	"pwc/runtime/device"
)

// Target is the target that programs for this device are compiled for.
const Target = "host"

// WorkersProperty is the device property with the number of workers.
const WorkersProperty = program.PropertyPrefix + "workers"

// Options configure a device.
type Options struct {
	// Workers is how many goroutines run a kernel, the caller included; 0 means
	// GOMAXPROCS. Results do not depend on it.
	Workers int

	// MemoryBytes limits what Alloc and AllocHost give out at a time. 0: fifteen
	// sixteenths of what is [Available] when the device is opened; the rest is for the
	// process itself. Unlimited: no limit, so that a machine without enough memory ends
	// the process.
	MemoryBytes int64

	// Captures are shared with other devices, so that a capture in mode global forbids
	// their work too; nil: the device has its own.
	Captures *device.Captures
}

// Unlimited is no limit of the memory that a device gives out.
const Unlimited = -1

// limit returns the bytes that the device may give out at a time; 0: no limit.
func (o *Options) limit() int64 {
	if o.MemoryBytes != 0 {
		return max(o.MemoryBytes, 0)
	}
	n, known := Available()
	if !known {
		return 0
	}
	return max(n-n/16, 1)
}

// Device is the host as a device.
type Device struct {
	info     device.Info
	limit    int64
	pool     *pool
	shut     atomic.Bool // closed, for readers without mu
	captures *device.Captures
	opened   time.Time
	streams  atomic.Int64 // made so far
	imports  imports

	capturing atomic.Int32 // captures under way that the device's streams began

	mu        sync.Mutex
	closed    bool
	libraries device.OpSet // not written: AddLibrary makes another
	active    int64        // bytes given out
	dead      int64        // bytes given back since the last collection, at most
	loads     int64        // programs loaded so far
	loaded    map[*Executable]struct{}
}

var _ device.Device = (*Device)(nil)

// Open returns a device with its workers running. Close ends them.
func Open(o Options) *Device {
	workers := o.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	limit := o.limit()
	captures := o.Captures
	if captures == nil {
		captures = new(device.Captures)
	}
	d := &Device{
		captures: captures,
		opened:   time.Now(),
		info: device.Info{
			Target:      Target,
			Name:        fmt.Sprintf("host (%s, %d workers)", runtime.GOARCH, workers),
			MemoryBytes: limit,
			Properties:  map[string]int64{WorkersProperty: int64(workers)},
		},
		limit:  limit,
		loaded: map[*Executable]struct{}{},
	}
	d.pool = newPool(workers-1, &d.imports)
	return d
}

// Info describes the device. The map is shared: it must not be written.
func (d *Device) Info() device.Info { return d.info }

// idle returns an error where a capture forbids a change of the device's memory or
// modules. d.mu is held.
func (d *Device) idle(what string) error {
	if d.closed {
		return fmt.Errorf("host: %s: %w", what, device.ErrClosed)
	}
	return named(d.captures.Idle(what))
}

// named is an error with the device's name.
func named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("host: %w", err)
}

// open returns an error once the device is closed.
func (d *Device) open(what string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("host: %s: %w", what, device.ErrClosed)
	}
	return nil
}

// NewStream returns a stream. Streams are independent; each is used by one
// goroutine at a time.
func (d *Device) NewStream() (device.Stream, error) {
	if err := d.open("new stream"); err != nil {
		return nil, err
	}
	s := &Stream{dev: d, name: fmt.Sprintf("stream %d", d.streams.Add(1))}
	s.lane.imports, s.lane.stop = &d.imports, &s.until
	return s, nil
}

// NewEvent returns an event that has recorded nothing, which counts as done.
func (d *Device) NewEvent() (device.Event, error) {
	if err := d.open("new event"); err != nil {
		return nil, err
	}
	return &event{dev: d}, nil
}

// TakeFaults returns the indices out of range that kernels met since the last
// call, each node once, and clears them.
func (d *Device) TakeFaults(s device.Stream, of ...device.Executable) ([]device.IndexError, error) {
	hs, ok := s.(*Stream)
	if !ok || hs.dev != d {
		return nil, fmt.Errorf("host: faults: %w", device.ErrForeignStream)
	}
	if err := hs.notCapturing("faults"); err != nil {
		return nil, err
	}
	if err := d.open("faults"); err != nil {
		return nil, err
	}
	if err := d.own("faults", of); err != nil {
		return nil, err
	}
	var out []device.IndexError
	for _, e := range of {
		out = e.(*Executable).takeFaults(out)
	}
	if len(of) == 0 {
		d.mu.Lock()
		defer d.mu.Unlock()
		for x := range d.loaded {
			out = x.takeFaults(out)
		}
	}
	sortFaults(out)
	return out, nil
}

// Close stops the workers. Everything the device made is unusable after it. It
// is refused while a stream captures.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.capturing.Load() > 0 {
		return fmt.Errorf("host: close: %w", device.ErrCapturing)
	}
	if !d.closed {
		d.closed = true
		d.shut.Store(true)
		d.pool.close()
		clear(d.loaded)
	}
	return nil
}
