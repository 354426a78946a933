package fake

import (
	"slices"
	"unsafe"

	"pwc/internal/cuda/driver"
	"pwc/internal/cuda/fake/ptx"
	"pwc/internal/thread"
)

// opKind is the kind of an operation.
type opKind uint8

const (
	opCopy opKind = iota
	opFill
	opKernel
	opGraph
	opRecord
	opWait
	opHost
	opMeeting
)

// op is an operation in a stream or a graph. kind decides which other fields are used.
type op struct {
	kind    opKind
	node    driver.NodeType
	handle  driver.GraphNode // of a node
	dst     driver.Ptr
	src     driver.Ptr
	host    unsafe.Pointer // the other side of a copy; nil: device memory
	staged  []byte         // contents of pageable memory at the call
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
	records map[*event]*record // of a launch: the records that its nodes complete
	begin   func() func() bool // of a meeting
}

// recordsTo reports whether the operation completes a record.
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

	// Of a captured record: the capture, the stream, and the nodes on which a wait for the event
	// depends.
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
	running *running // the operation at head, if it spins and has begun
	queue   []op
	head    int
	gone    bool // destroyed
	capture *recording
	tail    []int     // the nodes of the capture on which the stream's next node depends
	joined  bool      // since its last node or wait, the stream that began the capture waited for all its nodes
	chain   ptx.Chain // the kernels that the next operation may overlap
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

// progress executes operations as the schedule decides.
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

// until executes operations until done returns true or the device is lost. s is the stream that done
// waits for. If an operation waits for another device, operations of other contexts get turns, and
// other threads may call the driver.
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

// blocker returns the stream whose next operation must execute for s to continue.
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

// executeNext executes the next operation of a stream. It returns true if the operation waits for
// another device: then the operation continues in the stream's next turn.
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

// execute executes an operation. Errors that lose a GPU set f.sticky. chain has the kernels that the
// operation may overlap; only kernels launched with programmatic dependent launch overlap.
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
	case opMeeting:
		f.clock += kernelTime
		for done := o.begin(); !done() && f.now.pause(); {
		}
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

// enqueue appends an operation to a stream, or to its capture.
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

// StreamDestroy destroys a stream. Enqueued work still executes.
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

// StreamWaitEvent makes later work of the stream wait for the last record of the event.
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
	case s == nil:
		f.wrong("%s on no stream", call)
		return fail(call, driver.InvalidHandle)
	case ev.last == nil:
		return nil
	case ev.last.capture != nil:
		return f.waitCaptured(call, s, ev.last)
	case s.capture != nil:
		s.capture.invalid = true
		f.wrong("%s of a stream that captures for work outside the capture", call)
		return fail(call, driver.CaptureIsolation)
	}
	return f.enqueue(call, id, op{kind: opWait, node: driver.NodeWait, record: ev.last})
}

// waitCaptured makes a stream part of the record's capture, if it is not yet, and makes its next node
// depend on the nodes before the record.
func (f *Driver) waitCaptured(call string, s *stream, r *record) error {
	c := r.capture
	switch {
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
	if s == c.streams[0] && slices.Equal(r.tail, r.stream.tail) {
		r.stream.joined = true
	}
	s.tail = append(slices.DeleteFunc(slices.Clone(s.tail), func(i int) bool { return slices.Contains(r.tail, i) }), r.tail...)
	return nil
}

// HostFunc enqueues a host function that does nothing, as a library may without its caller's
// knowledge.
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

// capturing returns the thread that began a stream's capture, and its id.
func (f *Driver) capturing(s *stream) (id int, t *threadState) {
	for id, t := range f.threads {
		if slices.Contains(t.capturing, s) {
			return id, t
		}
	}
	return thread.ID(), nil
}
