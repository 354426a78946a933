package fake

import (
	"math/rand/v2"
	"slices"
	"unsafe"

	"pwc/internal/cuda/driver"
	"pwc/internal/cuda/fake/ptx"
	"pwc/internal/thread"
)

// Schedule decides what executes next, in any order that streams and events
// allow. It is called with the driver locked.
type Schedule interface {
	// Pick returns which of n streams executes its next operation, or -1: none
	// for now. needed is -1, or one that a call waits for: then one of them must
	// be picked.
	Pick(n, needed int) int
}

// ScheduleFunc is a function as a Schedule.
type ScheduleFunc func(n, needed int) int

// Pick calls the function.
func (f ScheduleFunc) Pick(n, needed int) int { return f(n, needed) }

// Lazy executes only what a call waits for. It keeps nothing.
const Lazy = lazy(0)

// Eager executes everything as soon as it may. It keeps nothing.
const Eager = eager(0)

type (
	lazy  int
	eager int
)

// Pick returns needed.
func (lazy) Pick(_, needed int) int { return needed }

// Pick returns the first.
func (eager) Pick(int, int) int { return 0 }

// Random executes at random, the same for the same seed.
func Random(seed uint64) Schedule {
	r := rand.New(rand.NewPCG(seed, 0))
	return ScheduleFunc(func(n, needed int) int {
		if needed < 0 {
			return r.IntN(n+1) - 1
		}
		return r.IntN(n)
	})
}

// opKind is what an operation does.
type opKind uint8

const (
	opCopy opKind = iota
	opFill
	opKernel
	opGraph
	opRecord
	opWait
	opHost
)

// op is an operation in a stream or a graph. Which fields count goes by kind.
type op struct {
	kind    opKind
	node    driver.NodeType
	handle  driver.GraphNode // of a node
	dst     driver.Ptr
	src     driver.Ptr
	host    unsafe.Pointer // the other side of a copy; nil: device memory
	staged  []byte         // what pageable memory held
	toHost  bool
	bytes   int64
	element uint32
	width   int
	fn      *function
	args    []uint64
	config  driver.LaunchConfig
	cluster [3]uint32
	early   bool // may start before earlier kernels end
	graph   *graph
	record  *record
	event   *event             // of a record that is a node of a graph: each launch makes a record
	records map[*event]*record // of a launch: what its nodes record
}

// recordsTo reports whether the operation makes a record done.
func (o *op) recordsTo(r *record) bool {
	if o.kind == opRecord && o.record == r {
		return true
	}
	for _, x := range o.records {
		if x == r {
			return true
		}
	}
	return false
}

// record is one recording of an event.
type record struct {
	done bool
	at   float64 // on the clock

	// While capturing: the capture, the stream, and what waits for the event waits for.
	capture *recording
	stream  *stream
	tail    []int
}

// event is an event.
type event struct {
	last    *record
	flags   driver.EventFlags
	queries int
}

// stream is a queue.
type stream struct {
	id      driver.Stream
	ctx     driver.Context
	running *running // the operation at head, which waits for what other devices do; nil: it has not begun
	queue   []op
	head    int
	gone    bool // destroyed
	capture *recording
	tail    []int     // of the capture's nodes, those that the next one waits for
	joined  bool      // the stream that began the capture waited for it since it recorded or waited
	chain   ptx.Chain // of the kernels that the next operation may overlap
}

func (s *stream) empty() bool { return s.head == len(s.queue) }

// may reports whether the next operation may execute.
func (s *stream) may() bool {
	return !s.empty() && (s.queue[s.head].kind != opWait || s.queue[s.head].record.done)
}

// runnable fills f.ready with the streams whose next operation may execute.
func (f *Driver) runnable() {
	f.ready = f.ready[:0]
	for i, s := range f.streams {
		if s.may() {
			f.ready = append(f.ready, i)
		}
	}
}

// progress executes what the schedule wants.
func (f *Driver) progress() {
	for f.sticky == 0 {
		f.runnable()
		if len(f.ready) == 0 {
			return
		}
		i := f.o.Schedule.Pick(len(f.ready), -1)
		if i < 0 || f.executeNext(f.streams[f.ready[i]]) {
			return
		}
	}
}

// until executes until done, and first what s needs to come to its end. Where that waits for
// another device, streams of others have their turns, and other threads may call the driver.
func (f *Driver) until(s *stream, done func() bool) {
	for f.sticky == 0 && !done() {
		f.runnable()
		needed := slices.Index(f.ready, slices.Index(f.streams, f.blocker(s)))
		if needed < 0 {
			panic("fake: a wait for work that nothing executes")
		}
		if f.executeNext(f.streams[f.ready[f.o.Schedule.Pick(len(f.ready), needed)]]) {
			f.others(s.ctx)
		}
	}
	if f.sticky != 0 {
		f.abandon()
	}
}

// blocker returns the stream whose next operation s waits for.
func (f *Driver) blocker(s *stream) *stream {
	for !s.may() {
		r := s.queue[s.head].record
		i := slices.IndexFunc(f.streams, func(t *stream) bool {
			return slices.ContainsFunc(t.queue[t.head:], func(o op) bool { return o.recordsTo(r) })
		})
		s = f.streams[i]
	}
	return s
}

// drain executes everything of a context.
func (f *Driver) drain(ctx driver.Context) {
	for i := 0; i < len(f.streams); i++ {
		if s := f.streams[i]; s.ctx == ctx && !s.empty() {
			f.until(s, s.empty)
			i = -1
		}
	}
}

// executeNext executes the next operation of a stream. It returns true if that waits for another
// device: then it goes on when the stream has its next turn.
func (f *Driver) executeNext(s *stream) (waits bool) {
	outer := f.on
	f.on = s.ctx
	defer func() { f.on = outer }()
	o := &s.queue[s.head]
	switch {
	case s.running == nil && !o.spins():
		s.head++
		f.execute(o, &s.chain)
	default:
		if s.running == nil {
			s.running = f.begins(o, &s.chain)
		}
		if !f.turn(s.running) {
			return true
		}
		s.running = nil
		s.head++
	}
	if s.empty() {
		s.queue, s.head = s.queue[:0], 0
		if s.gone {
			f.streams = slices.DeleteFunc(f.streams, func(x *stream) bool { return x == s })
		}
	}
	return false
}

// execute does an operation; what a GPU would not survive is sticky. chain are the
// kernels that it need not wait for: only kernels in PTX that say so do not.
func (f *Driver) execute(o *op, chain *ptx.Chain) {
	if !o.early {
		chain.Clear()
	}
	switch o.kind {
	case opCopy:
		f.clock += shortTime
		f.copy(o)
	case opFill:
		f.clock += shortTime
		f.fill(o)
	case opKernel:
		f.clock += kernelTime
		f.kernel(o, chain)
	case opGraph:
		if o.records != nil {
			outer := f.records
			f.records = o.records
			defer func() { f.records = outer }()
		}
		f.executeGraph(o.graph, chain)
		chain.Clear()
	case opRecord:
		f.clock += eventTime
		r := o.record
		if o.event != nil {
			r = f.records[o.event]
		}
		r.done, r.at = true, f.clock
	}
}

// executeGraph executes a graph's nodes in any order that their dependencies allow.
func (f *Driver) executeGraph(g *graph, chain *ptx.Chain) {
	if g.chain {
		for i := range g.nodes {
			if f.sticky != 0 {
				return
			}
			f.execute(&g.nodes[i], chain)
		}
		return
	}
	done := make([]bool, len(g.nodes))
	var ready []int
	for range g.nodes {
		ready = ready[:0]
		for i := range g.nodes {
			if !done[i] && !slices.ContainsFunc(g.deps[i], func(d int) bool { return !done[d] }) {
				ready = append(ready, i)
			}
		}
		i := ready[0]
		if len(ready) > 1 {
			i = ready[f.o.Schedule.Pick(len(ready), 0)]
		}
		if f.sticky != 0 {
			return
		}
		f.execute(&g.nodes[i], chain)
		done[i] = true
	}
}

// What operations take on the fake's clock, milliseconds.
const (
	kernelTime = 1
	shortTime  = 0.125 // of a copy or fill
	eventTime  = 0.0078125
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

// enqueue appends an operation to a stream, or to what it captures.
func (f *Driver) enqueue(call string, id driver.Stream, o op) error {
	s := f.byID[id]
	switch {
	case s == nil:
		f.wrong("%s on no stream", call)
		return fail(call, driver.InvalidHandle)
	case s.capture == nil:
		s.queue = append(s.queue, o)
		f.progress()
		return nil
	case s.capture.invalid:
		return fail(call, driver.CaptureInvalidated)
	}
	c := s.capture
	o.handle = driver.GraphNode(f.handle())
	c.nodes, c.deps = append(c.nodes, o), append(c.deps, s.tail)
	s.tail, s.joined = []int{len(c.nodes) - 1}, false
	return nil
}

// StreamCreate makes a stream.
func (f *Driver) StreamCreate() (driver.Stream, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin("cuStreamCreate", needContext); err != nil {
		return 0, err
	}
	s := &stream{id: driver.Stream(f.handle()), ctx: f.thread().ctx}
	f.byID[s.id] = s
	f.streams = append(f.streams, s)
	return s.id, nil
}

// StreamDestroy leaves what was enqueued to be executed.
func (f *Driver) StreamDestroy(id driver.Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuStreamDestroy"
	err := f.begin(call, needContext)
	s := f.byID[id]
	if s == nil {
		f.wrong("%s of no stream", call)
		return fail(call, driver.InvalidHandle)
	}
	if s.capture != nil {
		f.wrong("%s of a stream that captures", call)
	}
	delete(f.byID, id)
	s.gone = true
	if s.empty() {
		f.streams = slices.DeleteFunc(f.streams, func(x *stream) bool { return x == s })
	}
	return err
}

// StreamSynchronize executes until the stream is empty.
func (f *Driver) StreamSynchronize(id driver.Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuStreamSynchronize"
	if err := f.begin(call, needContext|needNoCapture); err != nil {
		return err
	}
	s := f.byID[id]
	switch {
	case s == nil:
		f.wrong("%s of no stream", call)
		return fail(call, driver.InvalidHandle)
	case s.capture != nil:
		s.capture.invalid = true
		f.wrong("%s of a stream that captures", call)
		return fail(call, driver.CaptureUnsupported)
	}
	f.until(s, s.empty)
	return fail(call, f.sticky)
}

// StreamWaitEvent orders the stream's later work after what the event recorded
// last.
func (f *Driver) StreamWaitEvent(id driver.Stream, e driver.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuStreamWaitEvent"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	ev := f.events[e]
	if ev == nil {
		f.wrong("%s of no event", call)
		return fail(call, driver.InvalidHandle)
	}
	switch s := f.byID[id]; {
	case ev.last == nil:
		return nil
	case ev.last.capture != nil:
		return f.waitCaptured(call, s, ev.last)
	case s != nil && s.capture != nil:
		s.capture.invalid = true
		f.wrong("%s of a stream that captures for work outside the capture", call)
		return fail(call, driver.CaptureIsolation)
	}
	return f.enqueue(call, id, op{kind: opWait, node: 6, record: ev.last})
}

// waitCaptured makes a stream part of a capture, or joins it to another stream of it.
func (f *Driver) waitCaptured(call string, s *stream, r *record) error {
	c := r.capture
	switch {
	case s == nil:
		f.wrong("%s on no stream", call)
		return fail(call, driver.InvalidHandle)
	case c.ended:
		f.wrong("%s for an event of a capture that has ended", call)
		return fail(call, driver.InvalidValue)
	case s.capture != nil && s.capture != c:
		c.invalid, s.capture.invalid = true, true
		f.wrong("%s merges two captures", call)
		return fail(call, driver.CaptureMerge)
	case c.invalid:
		return fail(call, driver.CaptureInvalidated)
	case s.capture == nil:
		s.capture = c
		c.streams = append(c.streams, s)
	}
	s.joined = false
	r.stream.joined = s == c.streams[0]
	s.tail = append(slices.DeleteFunc(slices.Clone(s.tail), func(i int) bool { return slices.Contains(r.tail, i) }), r.tail...)
	return nil
}

// EventCreate makes an event.
func (f *Driver) EventCreate(flags driver.EventFlags) (driver.Event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin("cuEventCreate", needContext); err != nil {
		return 0, err
	}
	e := driver.Event(f.handle())
	f.events[e] = &event{flags: flags}
	return e, nil
}

// EventDestroy leaves waits for the event as they are.
func (f *Driver) EventDestroy(e driver.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuEventDestroy"
	err := f.begin(call, needContext)
	if f.events[e] == nil {
		f.wrong("%s of no event", call)
		return fail(call, driver.InvalidHandle)
	}
	delete(f.events, e)
	return err
}

// EventRecord records anew.
func (f *Driver) EventRecord(e driver.Event, id driver.Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuEventRecord"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	ev := f.events[e]
	if ev == nil {
		f.wrong("%s of no event", call)
		return fail(call, driver.InvalidHandle)
	}
	ev.last, ev.queries = &record{}, 0
	if s := f.byID[id]; s != nil && s.capture != nil {
		if s.capture.invalid {
			return fail(call, driver.CaptureInvalidated)
		}
		ev.last.capture, ev.last.stream, ev.last.tail = s.capture, s, s.tail
		return nil
	}
	return f.enqueue(call, id, op{kind: opRecord, node: 7, record: ev.last})
}

// EventRecordExternal records anew, or makes the record a node of what the stream captures.
func (f *Driver) EventRecordExternal(e driver.Event, id driver.Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuEventRecordWithFlags"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	ev, s := f.events[e], f.byID[id]
	if ev == nil || s == nil {
		f.wrong("%s of no event, or on no stream", call)
		return fail(call, driver.InvalidHandle)
	}
	if s.capture == nil {
		ev.last, ev.queries = &record{}, 0
		return f.enqueue(call, id, op{kind: opRecord, node: driver.NodeRecord, record: ev.last})
	}
	return f.enqueue(call, id, op{kind: opRecord, node: driver.NodeRecord, event: ev})
}

// recordEvents gives the events of a graph's nodes records that its launch will make.
func recordEvents(g *graph, into map[*event]*record) map[*event]*record {
	for i := range g.nodes {
		switch o := &g.nodes[i]; {
		case o.kind == opGraph:
			into = recordEvents(o.graph, into)
		case o.event != nil:
			if into == nil {
				into = map[*event]*record{}
			}
			o.event.last, o.event.queries = &record{}, 0
			into[o.event] = o.event.last
		}
	}
	return into
}

// recorder is the stream that has yet to record r.
func (f *Driver) recorder(r *record) *stream {
	for _, s := range f.streams {
		if slices.ContainsFunc(s.queue[s.head:], func(o op) bool { return o.recordsTo(r) }) {
			return s
		}
	}
	return nil
}

// EventQuery says whether the event is done. Asking often enough makes it so.
func (f *Driver) EventQuery(e driver.Event) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuEventQuery"
	if err := f.begin(call, needContext|needNoCapture); err != nil {
		return false, err
	}
	ev := f.events[e]
	if ev == nil {
		f.wrong("%s of no event", call)
		return false, fail(call, driver.InvalidHandle)
	}
	if ev.last != nil && ev.last.capture != nil {
		f.wrong("%s of a captured event", call)
		return false, fail(call, driver.CapturedEvent)
	}
	if ev.last != nil && !ev.last.done {
		if ev.queries++; ev.queries%4 == 0 {
			f.until(f.recorder(ev.last), func() bool { return ev.last.done })
		}
	}
	return ev.last == nil || ev.last.done, fail(call, f.sticky)
}

// EventSynchronize executes until the event is done.
func (f *Driver) EventSynchronize(e driver.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuEventSynchronize"
	if err := f.begin(call, needContext|needNoCapture); err != nil {
		return err
	}
	ev := f.events[e]
	if ev == nil {
		f.wrong("%s of no event", call)
		return fail(call, driver.InvalidHandle)
	}
	if ev.last != nil && ev.last.capture != nil {
		f.wrong("%s of a captured event", call)
		return fail(call, driver.CapturedEvent)
	}
	if r := ev.last; r != nil && !r.done {
		f.until(f.recorder(r), func() bool { return r.done })
	}
	return fail(call, f.sticky)
}

// EventElapsedTime counts what executed between the events: a millisecond for a kernel,
// an eighth for a copy or a fill.
func (f *Driver) EventElapsedTime(start, end driver.Event) (float32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuEventElapsedTime"
	if err := f.begin(call, needContext); err != nil {
		return 0, err
	}
	var at [2]float64
	for i, e := range []driver.Event{start, end} {
		ev := f.events[e]
		switch {
		case ev == nil || ev.flags != driver.EventTimed || ev.last == nil:
			return 0, fail(call, driver.InvalidHandle)
		case !ev.last.done:
			return 0, fail(call, driver.NotReady)
		}
		at[i] = ev.last.at
	}
	return float32(at[1] - at[0]), nil
}

// MemcpyHtoDAsync reads pinned memory when it executes, other memory now.
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

// MemcpyDtoHAsync writes pinned memory when it executes; other memory has it
// when the call returns.
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
	if st == nil || st.capture != nil {
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
	return f.memset("cuMemsetAsync", op{kind: opFill, node: driver.NodeMemset, dst: dst, element: element, width: width, bytes: n * int64(width)}, s)
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

// HostFunc enqueues a host function that does nothing, as a library may behind
// the back of who calls it.
func (f *Driver) HostFunc(s uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuLaunchHostFunc"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	return f.enqueue(call, driver.Stream(s), op{kind: opHost, node: driver.NodeHost})
}

// ThreadExchangeStreamCaptureMode sets the calling thread's mode.
func (f *Driver) ThreadExchangeStreamCaptureMode(m driver.CaptureMode) (driver.CaptureMode, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin("cuThreadExchangeStreamCaptureMode", 0); err != nil {
		return 0, err
	}
	t := f.thread()
	old := t.mode
	t.mode = m
	return old, nil
}

// capturing finds the thread of a stream's capture.
func (f *Driver) capturing(s *stream) (id int, t *threadState) {
	for id, t := range f.threads {
		if slices.Contains(t.capturing, s) {
			return id, t
		}
	}
	return thread.ID(), nil
}
