package fake

import (
	"slices"

	"pwc/internal/cuda/driver"
)

// Times of operations on the fake's clock, in milliseconds.
const (
	kernelTime = 1
	shortTime  = 0.125 // of a copy or fill
	eventTime  = 0.0078125
)

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

// EventDestroy destroys an event. Waits for the event stay.
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

// EventRecord makes a new record of the event.
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
	return f.enqueue(call, id, op{kind: opRecord, node: driver.NodeRecord, record: ev.last})
}

// EventRecordExternal adds a node that records the event to the stream's capture. The flag
// CU_EVENT_RECORD_EXTERNAL is invalid outside of a capture (cuda.h).
func (f *Driver) EventRecordExternal(e driver.Event, id driver.Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuEventRecordWithFlags"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	ev := f.events[e]
	if ev == nil {
		f.wrong("%s of no event", call)
		return fail(call, driver.InvalidHandle)
	}
	if _, err := f.needCapture(call, id); err != nil {
		return err
	}
	return f.enqueue(call, id, op{kind: opRecord, node: driver.NodeRecord, event: ev})
}

// recordEvents makes new records of the events of a graph's nodes, which a launch of the graph will
// complete.
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

// recorder returns the stream with an operation in its queue that completes the record r, or nil.
func (f *Driver) recorder(r *record) *stream {
	for _, s := range f.streams {
		if slices.ContainsFunc(s.queue[s.head:], func(o op) bool { return o.recordsTo(r) }) {
			return s
		}
	}
	return nil
}

// EventQuery reports whether the event is done. Every fourth query of a record executes work until
// the event is done.
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

// EventElapsedTime returns the time between the events on the fake's clock: 1 ms for each kernel,
// 1/8 ms for each copy or fill and 1/128 ms for each record of an event, on all streams. A copy to pageable
// memory takes no time.
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
