package cuda

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"pwc/internal/cuda/driver"
	"pwc/ir/dim"
	"pwc/runtime/device"
)

// faults has the words that an executable's kernels set if indices are out of range
// (C12). The words are in pinned memory that the device writes to, so that the host reads
// them without a copy.
type faults struct {
	origins []int32 // node of each word
	chunk   *faultChunk
	first   int        // word of the chunk
	base    driver.Ptr // of the words, for kernels
}

const (
	// wordBytes is the size of a word.
	wordBytes = 4

	// chunkWords is the number of words of a chunk, a page, unless one program has more.
	chunkWords = 4096 / wordBytes
)

// faultChunk is pinned memory with the words of one or more executables. The words of
// programs that are loaded one after another are adjacent if they fit the chunk, so that a
// snapshot of all of them is one copy and one fill. A word is never used again: a kernel of a closed
// program may still write it.
type faultChunk struct {
	host *hostMemory
	base driver.Ptr

	// guarded by Device.mu
	used  int // words
	users int // executables
}

// words reserves a word for each node and returns the index of the first. It returns -1 if
// nodes is empty or has a dim that is not a constant from 0 to the largest int32.
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

// alloc takes memory for the words. The context is current.
func (f *faults) alloc(d *Device) error {
	n := len(f.origins)
	if n == 0 || f.use(d, n) {
		return nil
	}
	c := &faultChunk{}
	var err error
	if c.host, err = d.allocFaults(int64(wordBytes * max(n, chunkWords))); err != nil {
		return err
	}
	f.chunk, c.used, c.users = c, n, 1 // from here on unload frees the chunk
	if c.base, err = d.drv.MemHostGetDevicePointer(unsafe.Pointer(&c.host.data[0])); err != nil {
		return err
	}
	f.base = c.base
	d.mu.Lock()
	d.chunk = c
	d.mu.Unlock()
	return nil
}

// use takes the next n words of the device's chunk and reports whether it has so many
// left.
func (f *faults) use(d *Device, n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.chunk
	if c == nil || c.used+n > len(c.host.data)/wordBytes {
		return false
	}
	f.chunk, f.first, f.base = c, c.used, c.base+driver.Ptr(wordBytes*c.used)
	c.used, c.users = c.used+n, c.users+1
	return true
}

// free ends the use of the chunk, and frees it if no other executable uses it.
func (f *faults) free(d *Device) error {
	c := f.chunk
	if c == nil {
		return nil
	}
	f.chunk = nil
	d.mu.Lock()
	c.users--
	last := c.users == 0
	if last && d.chunk == c {
		d.chunk = nil
	}
	d.mu.Unlock()
	if !last {
		return nil
	}
	return c.host.Free()
}

// allocFaults allocates pinned memory within Load, which has made the checks of allocHost.
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

// word returns word i of pinned memory.
func word(data []byte, i int) *uint32 { return (*uint32)(unsafe.Pointer(&data[wordBytes*i])) }

// take appends the nodes whose words are set, and clears the words.
func (x *Executable) take(out []device.IndexError) []device.IndexError {
	f := &x.faults
	if f.chunk == nil || f.chunk.host.freed.Load() {
		return out
	}
	for i, origin := range f.origins {
		if atomic.SwapUint32(word(f.chunk.host.data, f.first+i), 0) != 0 {
			out = append(out, device.IndexError{Executable: x, Origin: origin})
		}
	}
	return out
}

// own refuses programs of other devices.
func (d *Device) own(what string, of []device.Executable) error {
	for i, e := range of {
		if x, ok := e.(*Executable); !ok || x.dev != d {
			return fmt.Errorf("cuda: %s: program %d: %w", what, i, device.ErrForeignStream)
		}
	}
	return nil
}

// TakeFaults implements [device.Device]. It returns each node of a program once. Faults that kernels of
// other streams set after it read their words remain for the next call.
func (d *Device) TakeFaults(s device.Stream, of ...device.Executable) ([]device.IndexError, error) {
	const what = "faults"
	x, ok := s.(*Stream)
	if !ok || x.dev != d {
		return nil, refuse(what, device.ErrForeignStream)
	}
	if err := d.own(what, of); err != nil {
		return nil, err
	}
	if err := x.notCapturing(what); err != nil {
		return nil, err
	}
	if err := x.Synchronize(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []device.IndexError
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
	return sorted(out), nil
}

// sorted orders faults by program, in the order of loading, and node, each once.
func sorted(list []device.IndexError) []device.IndexError {
	slices.SortFunc(list, func(a, b device.IndexError) int {
		return cmp.Or(cmp.Compare(a.Executable.(*Executable).id, b.Executable.(*Executable).id), cmp.Compare(a.Origin, b.Origin))
	})
	return slices.Compact(list)
}

// faultWatch watches words of programs.
type faultWatch struct {
	dev   *Device
	runs  []wordRun
	words int // of all runs
}

// wordRun is adjacent words of one chunk.
type wordRun struct {
	chunk    *faultChunk
	first, n int
	nodes    []device.IndexError // of each word
}

// WatchFaults implements [device.Device].
func (d *Device) WatchFaults(of ...device.Executable) (device.FaultWatch, error) {
	const what = "watch of faults"
	if err := d.usable(what); err != nil {
		return nil, err
	}
	if err := d.own(what, of); err != nil {
		return nil, err
	}
	w := &faultWatch{dev: d}
	for _, e := range of {
		x := e.(*Executable)
		f := &x.faults
		if f.chunk == nil || x.closed.Load() {
			continue
		}
		if n := len(w.runs) - 1; n < 0 || w.runs[n].chunk != f.chunk || w.runs[n].first+w.runs[n].n != f.first {
			w.runs = append(w.runs, wordRun{chunk: f.chunk, first: f.first})
		}
		r := &w.runs[len(w.runs)-1]
		for _, origin := range f.origins {
			r.nodes = append(r.nodes, device.IndexError{Executable: x, Origin: origin})
		}
		r.n += len(f.origins)
		w.words += len(f.origins)
	}
	return w, nil
}

// Raised reports whether a word is set.
func (w *faultWatch) Raised() bool {
	for i := range w.runs {
		r := &w.runs[i]
		if r.chunk.host.freed.Load() {
			continue
		}
		for j := range r.n {
			if atomic.LoadUint32(word(r.chunk.host.data, r.first+j)) != 0 {
				return true
			}
		}
	}
	return false
}

// Faults returns the nodes whose words are set.
func (w *faultWatch) Faults() []device.IndexError {
	return w.read(func(r *wordRun, _, i int) bool {
		return !r.chunk.host.freed.Load() && atomic.LoadUint32(word(r.chunk.host.data, r.first+i)) != 0
	})
}

// read returns the nodes of the words for which set reports true. It calls set with a run, the
// index of the word among the words of all runs, and the index in the run.
func (w *faultWatch) read(set func(r *wordRun, at, i int) bool) []device.IndexError {
	var out []device.IndexError
	at := 0
	for k := range w.runs {
		r := &w.runs[k]
		for i := range r.n {
			if set(r, at, i) {
				out = append(out, r.nodes[i])
			}
			at++
		}
	}
	return sorted(out)
}

// NewSnapshot implements [device.FaultWatch].
func (w *faultWatch) NewSnapshot() (device.FaultSnapshot, error) {
	h, err := w.dev.allocHost("new snapshot of faults", int64(wordBytes*w.words))
	if err != nil {
		return nil, err
	}
	return &faultSnapshot{w, h}, nil
}

// faultSnapshot is pinned memory with a copy of the words of a watch.
type faultSnapshot struct {
	watch *faultWatch
	host  *hostMemory
}

// Take enqueues a copy and a fill for each run of adjacent words. The words of a backend are
// one run if its programs were loaded one after another and their words are in one chunk.
func (f *faultSnapshot) Take(s device.Stream) error {
	const what = "snapshot of faults"
	x, ok := s.(*Stream)
	if !ok || x.dev != f.watch.dev {
		return refuse(what, device.ErrForeignStream)
	}
	if err := x.notCapturing(what); err != nil {
		return err
	}
	if f.host.freed.Load() {
		return refuse(what, device.ErrClosed)
	}
	if err := x.begin(); err != nil {
		return x.dev.wrap(what, err)
	}
	defer x.end()
	at := 0
	for i := range f.watch.runs {
		r := &f.watch.runs[i]
		if r.chunk.host.freed.Load() {
			return refuse(what, device.ErrClosed)
		}
		base := r.chunk.base + driver.Ptr(wordBytes*r.first)
		err := x.dev.drv.MemcpyDtoHAsync(unsafe.Pointer(word(f.host.data, at)), base, int64(wordBytes*r.n), x.handle)
		if err == nil {
			err = x.dev.drv.MemsetAsync(base, 0, wordBytes, int64(r.n), x.handle)
		}
		if err != nil {
			return x.issued(what, err)
		}
		at += r.n
	}
	return nil
}

// Faults implements [device.FaultSnapshot].
func (f *faultSnapshot) Faults() []device.IndexError {
	data := f.host.Bytes()
	if len(data) == 0 {
		return nil
	}
	return f.watch.read(func(_ *wordRun, at, _ int) bool { return atomic.LoadUint32(word(data, at)) != 0 })
}

// Close frees the memory, once the streams are done with it.
func (f *faultSnapshot) Close() error { return f.host.Free() }

// upload copies bytes to the device and waits for the copy. The context is current, and no
// capture is under way that is not relaxed.
func (d *Device) upload(to driver.Ptr, src []byte) error {
	d.util.Lock()
	defer d.util.Unlock()
	if err := d.drv.MemcpyHtoDAsync(to, unsafe.Pointer(&src[0]), int64(len(src)), d.util.stream); err != nil {
		return err
	}
	return d.drv.StreamSynchronize(d.util.stream)
}
