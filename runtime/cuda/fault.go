package cuda

import (
	"cmp"
	"slices"
	"sync/atomic"
	"unsafe"

	"pwc/ir/dim"
	"pwc/runtime/cuda/internal/driver"
	"pwc/runtime/device"
)

// faults is the words that an executable's kernels set where positions are out
// of range (C12). They are pinned memory that the device writes to, so that
// looking at them takes no copy.
type faults struct {
	origins []int32 // node of each word
	host    *hostMemory
	base    driver.Ptr // of the words, for kernels
}

// words reserves a word for each node and returns the first, or -1 if nodes is
// no list of nodes.
func (f *faults) words(nodes []dim.Dim) int {
	first := len(f.origins)
	for _, n := range nodes {
		v, ok := n.Const()
		if !ok || v < 0 || v != int64(int32(v)) {
			return -1
		}
		f.origins = append(f.origins, int32(v))
	}
	if len(nodes) == 0 {
		return -1
	}
	return first
}

// wordBytes is the size of a word.
const wordBytes = 4

// alloc takes memory for the words. The context is current.
func (f *faults) alloc(d *Device) error {
	if len(f.origins) == 0 {
		return nil
	}
	h, err := d.allocFaults(int64(wordBytes * len(f.origins)))
	if err != nil {
		return err
	}
	f.host = h
	f.base, err = d.drv.MemHostGetDevicePointer(unsafe.Pointer(&h.data[0]))
	return err
}

// allocFaults is allocHost within Load.
func (d *Device) allocFaults(bytes int64) (*hostMemory, error) {
	p, err := d.drv.MemHostAlloc(bytes)
	if err != nil {
		return nil, err
	}
	h := &hostMemory{dev: d, data: unsafe.Slice((*byte)(p), bytes)}
	clear(h.data)
	d.pinned.add(h)
	d.adopt(h)
	return h, nil
}

// take appends the nodes whose words are set, and clears the words.
func (x *Executable) take(out []device.IndexFault) []device.IndexFault {
	f := &x.faults
	if f.host == nil || f.host.freed.Load() {
		return out
	}
	for i, origin := range f.origins {
		if atomic.SwapUint32((*uint32)(unsafe.Pointer(&f.host.data[wordBytes*i])), 0) != 0 {
			out = append(out, device.IndexFault{Executable: x, Origin: origin})
		}
	}
	return out
}

// TakeFaults waits for s and returns the positions out of range that kernels
// of these programs met since the last call, each node once, and clears them; of all that
// are loaded if none is named. What kernels of other streams meet meanwhile is for the
// next call.
func (d *Device) TakeFaults(s device.Stream, of ...device.Executable) ([]device.IndexFault, error) {
	const what = "faults"
	x, ok := s.(*Stream)
	if !ok || x.dev != d {
		return nil, refuse(what, device.ErrForeignStream)
	}
	for _, e := range of {
		if y, ok := e.(*Executable); !ok || y.dev != d {
			return nil, refuse(what, device.ErrForeignStream)
		}
	}
	if err := x.notCapturing(what); err != nil {
		return nil, err
	}
	if err := x.Synchronize(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []device.IndexFault
	for _, e := range of {
		if y := e.(*Executable); !y.closed.Load() {
			out = y.take(out)
		}
	}
	if len(of) == 0 {
		for e := range d.loaded {
			out = e.take(out)
		}
	}
	slices.SortFunc(out, func(a, b device.IndexFault) int {
		return cmp.Or(cmp.Compare(a.Executable.(*Executable).id, b.Executable.(*Executable).id), cmp.Compare(a.Origin, b.Origin))
	})
	return slices.Compact(out), nil
}

// upload copies bytes to the device and waits for it. The context is current
// and no capture is under way.
func (d *Device) upload(to driver.Ptr, src []byte) error {
	d.util.Lock()
	defer d.util.Unlock()
	if err := d.drv.MemcpyHtoDAsync(to, unsafe.Pointer(&src[0]), int64(len(src)), d.util.stream); err != nil {
		return err
	}
	return d.drv.StreamSynchronize(d.util.stream)
}
