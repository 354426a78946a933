package fake

import (
	"slices"
	"time"

	"pwc/internal/cuda/driver"
	"pwc/internal/cuda/fake/ptx"
)

// Kernels that poll memory which kernels of other devices write (ptx.Entry.Spins) cannot be executed
// one after the other. Such an operation executes on a goroutine of its own, in turns. It holds the
// driver during its turn, and ends the turn when all its warps have had theirs.

// running is an operation that has begun.
type running struct {
	f       *Driver
	turn    chan struct{} // begins a turn of the operation
	back    chan bool     // ends the turn; true: the operation has ended
	machine *ptx.Machine
	records map[*event]*record // its Driver.records between turns
}

// spins reports whether an operation may wait for other devices.
func (o *op) spins() bool {
	switch o.kind {
	case opMeeting:
		return true
	case opKernel:
		return o.fn.entry != nil && o.fn.entry.Spins()
	case opGraph:
		for i := range o.graph.nodes {
			if o.graph.nodes[i].spins() {
				return true
			}
		}
	}
	return false
}

// begins starts the goroutine of an operation, which waits for its first turn.
func (f *Driver) begins(o *op, chain *ptx.Chain) *running {
	r := &running{f: f, turn: make(chan struct{}), back: make(chan bool), machine: new(ptx.Machine)}
	go func() {
		<-r.turn
		f.execute(o, chain)
		r.back <- true
	}()
	return r
}

// turn gives an operation a turn, and reports whether the operation has ended.
func (f *Driver) turn(r *running) bool {
	outer, machine, records := f.now, f.machine, f.records
	f.now, f.machine, f.records = r, r.machine, r.records
	r.turn <- struct{}{}
	ended := <-r.back
	r.records = f.records
	f.now, f.machine, f.records = outer, machine, records
	return ended
}

// pause ends the turn and waits for the next one. It returns false if the operation must end
// because the device is lost.
func (r *running) pause() bool {
	r.back <- false
	<-r.turn
	return r.f.sticky == 0
}

// abandon ends the operations under way after the device was lost.
func (f *Driver) abandon() {
	for _, s := range f.streams {
		for s.running != nil {
			if f.turn(s.running) {
				s.running = nil
			}
		}
	}
}

// others executes operations of streams of other contexts. If no operation ends, it lets other
// threads call the driver.
func (f *Driver) others(ctx driver.Context) {
	moved := false
	for _, s := range slices.Clone(f.streams) {
		if f.sticky == 0 && s.ctx != ctx && s.may() && !f.executeNext(s) {
			moved = true
		}
	}
	if moved {
		return
	}
	f.mu.Unlock()
	time.Sleep(20 * time.Microsecond)
	f.mu.Lock()
}

// Meeting enqueues an operation like a library's kernel that waits for kernels of other devices. Each
// execution calls begin once, and then done until it returns true or the device is lost. Both may access memory by
// [Driver.Bytes], and must not call other methods of the driver.
func (f *Driver) Meeting(s uintptr, begin func() (done func() bool)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuLaunchKernel"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	return f.enqueue(call, driver.Stream(s), op{kind: opMeeting, node: driver.NodeKernel, begin: begin})
}

// Bytes returns n bytes of device memory from an address on, for functions of [Driver.Meeting]. If
// they are not all allocated, it returns nil, and Misuse lists the access.
func (f *Driver) Bytes(address uint64, n int64) []byte {
	base, data := f.space.Span(address)
	if at := int64(address - base); data != nil && at+n <= int64(len(data)) {
		return data[at:][:n]
	}
	f.wrong("a library touches %d bytes from %#x on, which are not all allocated", n, address)
	return nil
}
