// Package host implements a device on the machine's processor and memory, which is
// always available. It runs vector programs (package vec) on every platform, without
// flags or cgo.
//
// A stream executes each operation immediately, on the goroutine that enqueues it, with
// the rows of a kernel spread over the device's workers. Graphs record launches with all
// addresses bound and replay them, under the rules of a GPU that package devicetest tests:
// misuse gives the same errors as there, so that code that uses devices can be tested without
// a GPU. Repeated launches and replays allocate nothing.
//
// Programs are not trusted. Load and Bind prove for every program that no address is
// outside its buffer; kernels check indices that come from tensors (C12).
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

	// MemoryBytes limits the bytes of Alloc and AllocHost that are in use at any time. 0:
	// fifteen sixteenths of [Available] when the device is opened; the rest is for the
	// process itself. If Available does not know a number, 0 is no limit. Unlimited: no
	// limit. Without a limit the system ends the process if the machine has not enough
	// memory.
	MemoryBytes int64

	// Captures is shared with other devices, so that a capture in mode global forbids
	// their work too; nil: the device has a value of its own.
	Captures *device.Captures
}

// Unlimited as Options.MemoryBytes means that the device's memory has no limit.
const Unlimited = -1

// limit returns the most bytes in use at any time; 0: no limit.
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
	libraries device.OpSet // never changed: AddLibrary stores another set
	active    int64        // bytes in use
	dead      int64        // bytes freed since take last ran the garbage collector
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

// NewEvent returns an event. Before its first record it counts as done.
func (d *Device) NewEvent() (device.Event, error) {
	if err := d.open("new event"); err != nil {
		return nil, err
	}
	return &event{dev: d}, nil
}

// TakeFaults implements [device.Device]. It returns each node once.
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

// Close stops the workers. Objects of the device cannot be used afterwards. Close is refused
// while a stream captures.
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
