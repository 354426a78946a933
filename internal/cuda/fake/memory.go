package fake

import (
	"fmt"
	"slices"
	"unsafe"

	"pwc/internal/cuda/driver"
)

// poison is the value of bytes that were not written.
const poison = 0xa5

// regionKind is the kind of a region.
type regionKind uint8

const (
	regionDevice   regionKind = iota // cuMemAlloc
	regionHost                       // cuMemHostAlloc, at its device address
	regionReserved                   // cuMemAddressReserve
	regionModule                     // variables of a module
)

// region is a range of the address space.
type region struct {
	kind   regionKind
	ctx    driver.Context // of the device that has the memory
	base   driver.Ptr
	data   []byte
	parts  map[driver.Ptr]driver.Allocation // mapped, by address
	mapped []bool                           // by page of Granularity
	access []bool
}

// space is the address space that all devices share.
type space struct {
	next    driver.Ptr
	regions []*region // by base
	used    int64     // bytes of device memory and physical memory, of all devices
	backing map[driver.Allocation]*allocation
	hosts   map[unsafe.Pointer]*region
}

// allocation is physical memory.
type allocation struct {
	bytes    int64
	mapped   int
	released bool
}

func (s *space) init() {
	s.next = 0x7f00_0000_0000
	s.backing = map[driver.Allocation]*allocation{}
	s.hosts = map[unsafe.Pointer]*region{}
}

// add makes a region, with unused addresses between it and its neighbours.
func (s *space) add(ctx driver.Context, kind regionKind, data []byte) *region {
	const page = 1 << 16
	r := &region{kind: kind, ctx: ctx, base: s.next, data: data}
	s.next += driver.Ptr((int64(len(data))+page-1)/page*page + page)
	s.regions = append(s.regions, r)
	return r
}

func (s *space) index(p driver.Ptr) int {
	i, ok := slices.BinarySearchFunc(s.regions, p, func(r *region, p driver.Ptr) int {
		switch {
		case p < r.base:
			return 1
		case p-r.base >= driver.Ptr(max(len(r.data), 1)):
			return -1
		}
		return 0
	})
	if !ok {
		return -1
	}
	return i
}

// at returns the region of a kind that starts at p, or nil.
func (s *space) at(p driver.Ptr, kind regionKind) *region {
	if i := s.index(p); i >= 0 && s.regions[i].base == p && s.regions[i].kind == kind {
		return s.regions[i]
	}
	return nil
}

func (s *space) remove(r *region) {
	s.regions = slices.DeleteFunc(s.regions, func(x *region) bool { return x == r })
}

// bytes returns the bytes at p, or nil if the device cannot access all of them.
func (s *space) bytes(p driver.Ptr, n int64) []byte {
	i := s.index(p)
	if i < 0 {
		return nil
	}
	r := s.regions[i]
	off := int64(p - r.base)
	if n < 0 || n > int64(len(r.data))-off {
		return nil
	}
	if r.kind == regionReserved {
		for page := off / Granularity; page*Granularity < off+n; page++ {
			if !r.mapped[page] || !r.access[page] {
				return nil
			}
		}
	}
	return r.data[off : off+n]
}

// host reports whether p is in pinned memory.
func (s *space) host(p unsafe.Pointer) bool {
	for base, r := range s.hosts {
		if uintptr(p) >= uintptr(base) && uintptr(p) < uintptr(base)+uintptr(len(r.data)) {
			return true
		}
	}
	return false
}

func (s *space) left() []string {
	var out []string
	for _, r := range s.regions {
		out = append(out, fmt.Sprintf("%d bytes of %s", len(r.data), [...]string{"device memory", "pinned memory", "reserved address space", "variables of modules"}[r.kind]))
	}
	for _, a := range s.backing {
		if !a.released || a.mapped > 0 {
			out = append(out, fmt.Sprintf("%d bytes of physical memory", a.bytes))
		}
	}
	return out
}

func poisoned(n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = poison
	}
	return b
}

// MemGetInfo returns how many bytes of Options.MemoryBytes are free, and Options.MemoryBytes.
func (f *Driver) MemGetInfo() (free, total int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.o.MemoryBytes - f.space.used, f.o.MemoryBytes, f.begin("cuMemGetInfo", needContext)
}

// MemAlloc returns memory with poison as contents.
func (f *Driver) MemAlloc(bytes int64) (driver.Ptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemAlloc"
	if err := f.begin(call, needContext|needNoCapture); err != nil {
		return 0, err
	}
	switch {
	case bytes <= 0:
		return 0, fail(call, driver.InvalidValue)
	case bytes > f.o.MemoryBytes-f.space.used:
		return 0, fail(call, driver.OutOfMemory)
	}
	f.space.used += bytes
	return f.space.add(f.thread().ctx, regionDevice, poisoned(bytes)).base, nil
}

// MemFree does not wait for work: work that still uses the memory loses the device. A driver may wait,
// and does not promise it (CUDA Runtime API, cudaFree).
func (f *Driver) MemFree(p driver.Ptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemFree"
	err := f.begin(call, needContext|needNobody)
	r := f.space.at(p, regionDevice)
	if r == nil {
		f.wrong("%s of an address that cuMemAlloc did not give", call)
		return fail(call, driver.InvalidValue)
	}
	f.space.used -= int64(len(r.data))
	f.space.remove(r)
	return err
}

// MemHostAlloc returns pinned memory. Its device address is another one.
func (f *Driver) MemHostAlloc(bytes int64) (unsafe.Pointer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemHostAlloc"
	if err := f.begin(call, needContext|needNoCapture); err != nil {
		return nil, err
	}
	if bytes <= 0 {
		return nil, fail(call, driver.InvalidValue)
	}
	words := make([]uint64, (bytes+7)/8)
	p := unsafe.Pointer(&words[0])
	data := unsafe.Slice((*byte)(p), bytes)
	for i := range data {
		data[i] = poison
	}
	f.space.hosts[p] = f.space.add(f.thread().ctx, regionHost, data)
	return p, nil
}

// MemFreeHost does not wait for work: work that still uses the memory loses the device.
func (f *Driver) MemFreeHost(p unsafe.Pointer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemFreeHost"
	err := f.begin(call, needContext|needNobody)
	r := f.space.hosts[p]
	if r == nil {
		f.wrong("%s of an address that cuMemHostAlloc did not give", call)
		return fail(call, driver.InvalidValue)
	}
	delete(f.space.hosts, p)
	f.space.remove(r)
	return err
}

// MemHostGetDevicePointer returns the device address of pinned memory.
func (f *Driver) MemHostGetDevicePointer(p unsafe.Pointer) (driver.Ptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemHostGetDevicePointer"
	if err := f.begin(call, needContext); err != nil {
		return 0, err
	}
	r := f.space.hosts[p]
	if r == nil {
		return 0, fail(call, driver.InvalidValue)
	}
	return r.base, nil
}

// MemGranularity returns Granularity.
func (f *Driver) MemGranularity(driver.Device) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Granularity, f.begin("cuMemGetAllocationGranularity", 0)
}

// MemAddressReserve reserves address space without memory.
func (f *Driver) MemAddressReserve(bytes int64) (driver.Ptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemAddressReserve"
	if err := f.begin(call, needContext|needNoCapture); err != nil {
		return 0, err
	}
	if bytes <= 0 || bytes%Granularity != 0 {
		return 0, fail(call, driver.InvalidValue)
	}
	r := f.space.add(f.thread().ctx, regionReserved, make([]byte, bytes))
	r.parts = map[driver.Ptr]driver.Allocation{}
	r.mapped, r.access = make([]bool, bytes/Granularity), make([]bool, bytes/Granularity)
	return r.base, nil
}

// MemAddressFree frees address space without mappings.
func (f *Driver) MemAddressFree(p driver.Ptr, bytes int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemAddressFree"
	err := f.begin(call, needContext|needNobody)
	r := f.space.at(p, regionReserved)
	switch {
	case r == nil:
		f.wrong("%s of an address that cuMemAddressReserve did not give", call)
		return fail(call, driver.InvalidValue)
	case int64(len(r.data)) != bytes:
		f.wrong("%s of %d of %d reserved bytes", call, bytes, len(r.data))
		return fail(call, driver.InvalidValue)
	case len(r.parts) > 0:
		f.wrong("%s of addresses that are mapped", call)
		return fail(call, driver.InvalidValue)
	}
	f.space.remove(r)
	return err
}

// MemCreate allocates physical memory.
func (f *Driver) MemCreate(bytes int64, _ driver.Device) (driver.Allocation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemCreate"
	if err := f.begin(call, needContext|needNoCapture); err != nil {
		return 0, err
	}
	switch {
	case bytes <= 0 || bytes%Granularity != 0:
		return 0, fail(call, driver.InvalidValue)
	case bytes > f.o.MemoryBytes-f.space.used:
		return 0, fail(call, driver.OutOfMemory)
	}
	f.space.used += bytes
	a := driver.Allocation(f.handle())
	f.space.backing[a] = &allocation{bytes: bytes}
	return a, nil
}

// MemRelease frees physical memory, once it is not mapped anywhere.
func (f *Driver) MemRelease(a driver.Allocation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemRelease"
	err := f.begin(call, needContext)
	b := f.space.backing[a]
	switch {
	case b == nil:
		f.wrong("%s of no allocation", call)
		return fail(call, driver.InvalidValue)
	case b.released:
		f.wrong("%s of an allocation that was released", call)
		return fail(call, driver.InvalidValue)
	}
	b.released = true
	f.space.drop(a)
	return err
}

func (s *space) drop(a driver.Allocation) {
	if b := s.backing[a]; b.released && b.mapped == 0 {
		s.used -= b.bytes
		delete(s.backing, a)
	}
}

// within returns the reserved region of a range and its first page.
func (s *space) within(p driver.Ptr, bytes int64) (*region, int64) {
	i := s.index(p)
	if i < 0 || s.regions[i].kind != regionReserved || bytes <= 0 || bytes%Granularity != 0 {
		return nil, 0
	}
	r := s.regions[i]
	off := int64(p - r.base)
	if off%Granularity != 0 || bytes > int64(len(r.data))-off {
		return nil, 0
	}
	return r, off / Granularity
}

// MemMap maps all of an allocation.
func (f *Driver) MemMap(p driver.Ptr, bytes int64, a driver.Allocation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemMap"
	if err := f.begin(call, needContext|needNoCapture); err != nil {
		return err
	}
	r, page := f.space.within(p, bytes)
	b := f.space.backing[a]
	switch {
	case r == nil:
		f.wrong("%s of %d bytes at %#x, which are not whole reserved pages", call, bytes, p)
		return fail(call, driver.InvalidValue)
	case b == nil:
		f.wrong("%s of no allocation", call)
		return fail(call, driver.InvalidValue)
	case b.bytes != bytes:
		f.wrong("%s of %d of an allocation's %d bytes", call, bytes, b.bytes)
		return fail(call, driver.InvalidValue)
	}
	for i := range bytes / Granularity {
		if r.mapped[page+i] {
			f.wrong("%s over a mapping", call)
			return fail(call, driver.InvalidValue)
		}
		r.mapped[page+i] = true
	}
	b.mapped++
	r.parts[p] = a
	copy(r.data[page*Granularity:], poisoned(bytes))
	return nil
}

// MemUnmap does not wait for work.
func (f *Driver) MemUnmap(p driver.Ptr, bytes int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemUnmap"
	err := f.begin(call, needContext|needNobody)
	r, page := f.space.within(p, bytes)
	if r == nil || f.space.backing[r.parts[p]] == nil || f.space.backing[r.parts[p]].bytes != bytes {
		f.wrong("%s of %d bytes that are no mapping", call, bytes)
		return fail(call, driver.InvalidValue)
	}
	for i := range bytes / Granularity {
		r.mapped[page+i], r.access[page+i] = false, false
	}
	a := r.parts[p]
	delete(r.parts, p)
	f.space.backing[a].mapped--
	f.space.drop(a)
	return err
}

// MemSetAccess lets devices access mappings.
func (f *Driver) MemSetAccess(p driver.Ptr, bytes int64, _ driver.Device) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuMemSetAccess"
	if err := f.begin(call, needContext|needNoCapture); err != nil {
		return err
	}
	r, page := f.space.within(p, bytes)
	if r == nil || slices.Contains(r.mapped[page:page+bytes/Granularity], false) {
		f.wrong("%s of %d bytes at %#x, which are not all mapped", call, bytes, p)
		return fail(call, driver.InvalidValue)
	}
	for i := range bytes / Granularity {
		r.access[page+i] = true
	}
	return nil
}
