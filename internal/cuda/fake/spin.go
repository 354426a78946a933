package fake

import (
	"slices"
	"time"

	"pwc/internal/cuda/driver"
	"pwc/internal/cuda/fake/ptx"
)

// Kernels that wait for what kernels of other devices write (ptx.Entry.Spins) cannot be executed
// one after the other. Such an operation executes on a goroutine of its own, which has the driver
// while it has its turn, and gives the turn back when all its warps have had theirs.

// running is an operation that has begun.
type running struct {
	f       *Driver
	turn    chan struct{} // it may go on
	back    chan bool     // it gives the turn back; true: it has ended
	machine *ptx.Machine
	records map[*event]*record // as Driver.records, while it has no turn
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

// begins makes an operation ready for its first turn.
func (f *Driver) begins(o *op, chain *ptx.Chain) *running {
	r := &running{f: f, turn: make(chan struct{}), back: make(chan bool), machine: new(ptx.Machine)}
	go func() {
		<-r.turn
		f.execute(o, chain)
		r.back <- true
	}()
	return r
}

// turn lets an operation go on, and reports whether it has ended.
func (f *Driver) turn(r *running) bool {
	outer, machine, records := f.now, f.machine, f.records
	f.now, f.machine, f.records = r, r.machine, r.records
	r.turn <- struct{}{}
	ended := <-r.back
	r.records = f.records
	f.now, f.machine, f.records = outer, machine, records
	return ended
}

// pause gives the turn back, and returns false if the operation is to end because the device is
// lost.
func (r *running) pause() bool {
	r.back <- false
	<-r.turn
	return r.f.sticky == 0
}

// abandon ends the operations under way of a device that is lost.
func (f *Driver) abandon() {
	for _, s := range f.streams {
		for s.running != nil {
			if f.turn(s.running) {
				s.running = nil
			}
		}
	}
}

// others lets streams of other contexts go on, and where none of them does other threads.
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

// Meeting enqueues what a library's kernel does that waits for kernels of other devices. Each time
// that it executes begin is called, and what that returns again and again until it is true. Both
// may touch memory by [Driver.Bytes], and may not call the driver otherwise.
func (f *Driver) Meeting(s uintptr, begin func() (done func() bool)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuLaunchKernel"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	return f.enqueue(call, driver.Stream(s), op{kind: opMeeting, node: driver.NodeKernel, begin: begin})
}

// Bytes returns n bytes of device memory from an address on, for what executes; nil, and a fault,
// if they are not all there.
func (f *Driver) Bytes(address uint64, n int64) []byte {
	base, data := f.space.Span(address)
	if at := int64(address - base); data != nil && at+n <= int64(len(data)) {
		return data[at:][:n]
	}
	f.wrong("a library touches %d bytes from %#x on, which are not all allocated", n, address)
	return nil
}
