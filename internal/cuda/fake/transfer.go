package fake

import (
	"slices"
	"unsafe"

	"pwc/internal/cuda/driver"
)

// memory returns the bytes at an address, or loses the device.
func (f *Driver) memory(p driver.Ptr, n int64) []byte {
	b := f.space.bytes(p, n)
	if b == nil {
		f.sticky = driver.IllegalAddress
	}
	return b
}

func (f *Driver) copy(o *op) {
	var dst, src []byte
	switch {
	case o.staged != nil:
		dst, src = f.memory(o.dst, o.bytes), o.staged
	case o.host == nil:
		dst, src = f.memory(o.dst, o.bytes), f.memory(o.src, o.bytes)
	case !f.space.host(o.host):
		f.wrong("a copy uses pinned memory that was freed")
		f.sticky = driver.IllegalAddress
	case o.toHost:
		dst, src = unsafe.Slice((*byte)(o.host), o.bytes), f.memory(o.src, o.bytes)
	default:
		dst, src = f.memory(o.dst, o.bytes), unsafe.Slice((*byte)(o.host), o.bytes)
	}
	if f.sticky == 0 {
		copy(dst, src)
	}
}

func (f *Driver) fill(o *op) {
	b := f.memory(o.dst, o.bytes)
	for ; int64(len(b)) >= int64(o.width); b = b[o.width:] {
		for j := range o.width {
			b[j] = byte(o.element >> (8 * j))
		}
	}
}

// MemcpyHtoDAsync reads pinned memory when the copy executes, other memory at the call.
func (f *Driver) MemcpyHtoDAsync(dst driver.Ptr, src unsafe.Pointer, bytes int64, s driver.Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemcpyHtoDAsync"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	o := op{kind: opCopy, node: driver.NodeMemcpy, dst: dst, host: src, bytes: bytes}
	if !f.space.host(src) {
		o.staged = slices.Clone(unsafe.Slice((*byte)(src), bytes))
	}
	return f.enqueue(call, s, o)
}

// MemcpyDtoHAsync writes pinned memory when the copy executes, other memory before the call
// returns.
func (f *Driver) MemcpyDtoHAsync(dst unsafe.Pointer, src driver.Ptr, bytes int64, s driver.Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemcpyDtoHAsync"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	if f.space.host(dst) {
		return f.enqueue(call, s, op{kind: opCopy, node: driver.NodeMemcpy, src: src, host: dst, toHost: true, bytes: bytes})
	}
	st := f.byID[s]
	switch {
	case st == nil:
		f.wrong("%s on no stream", call)
		return fail(call, driver.InvalidHandle)
	case st.capture != nil:
		f.wrong("%s to pageable memory on a stream that captures", call)
		return fail(call, driver.InvalidValue)
	}
	f.until(st, st.empty)
	if f.sticky == 0 {
		copy(unsafe.Slice((*byte)(dst), bytes), f.memory(src, bytes))
	}
	return fail(call, f.sticky)
}

// MemcpyDtoDAsync copies within the device.
func (f *Driver) MemcpyDtoDAsync(dst, src driver.Ptr, bytes int64, s driver.Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemcpyDtoDAsync"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	return f.enqueue(call, s, op{kind: opCopy, node: driver.NodeMemcpy, dst: dst, src: src, bytes: bytes})
}

// MemsetAsync fills n elements.
func (f *Driver) MemsetAsync(dst driver.Ptr, element uint32, width int, n int64, s driver.Stream) error {
	return f.memset(driver.MemsetName(width), op{kind: opFill, node: driver.NodeMemset, dst: dst, element: element, width: width, bytes: n * int64(width)}, s)
}

func (f *Driver) memset(call string, o op, s driver.Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	if o.bytes <= 0 || int64(o.dst)%int64(o.width) != 0 {
		f.wrong("%s of %d bytes at %#x", call, o.bytes, o.dst)
		return fail(call, driver.InvalidValue)
	}
	return f.enqueue(call, s, o)
}
