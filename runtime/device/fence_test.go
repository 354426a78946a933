package device_test

import (
	"errors"
	"testing"

	"pwc/runtime/device"
)

// queue is a stream with a count of its points: each mark and each recorded event takes the
// next one. A test sets done, the last point that the device has passed. passed is the last
// point that a query or a wait has shown to be passed.
type queue struct {
	device.Stream
	points, events, done, passed device.Mark

	recorded, asked int
	broken          error
}

func (q *queue) Mark() device.Mark { q.points++; return q.points }

func (q *queue) Behind(m device.Mark) (recorded, passed bool) { return q.events > m, q.passed >= m }

func (q *queue) Record(e device.Event) error {
	if q.broken != nil {
		return q.broken
	}
	q.points++
	q.recorded++
	q.events, e.(*point).at = q.points, q.points
	return nil
}

type point struct {
	device.Event
	q      *queue
	at     device.Mark
	closed int
}

func (p *point) Query() (bool, error) {
	p.q.asked++
	if p.q.done >= p.at {
		p.q.passed = max(p.q.passed, p.at)
	}
	return p.q.done >= p.at, p.q.broken
}

func (p *point) Synchronize() error {
	p.q.done = max(p.q.done, p.at)
	_, err := p.Query()
	return err
}

func (p *point) Close() error { p.closed++; return nil }

type maker struct {
	device.Device
	q    *queue
	last *point
}

func (m *maker) NewEvent() (device.Event, error) {
	m.last = &point{q: m.q}
	return m.last, nil
}

// TestFence checks when a fence is passed, and how many events it records and queries itself.
func TestFence(t *testing.T) {
	q := &queue{}
	m := &maker{q: q}
	fences := make([]device.Fence, 2)
	for i := range fences {
		var err error
		if fences[i], err = device.NewFence(m); err != nil {
			t.Fatal(err)
		}
	}
	set := func(i int) {
		t.Helper()
		if err := fences[i].Set(q, &fences[1-i]); err != nil {
			t.Fatal(err)
		}
	}
	is := func(i int, want bool) {
		t.Helper()
		if got, err := fences[i].Passed(); err != nil || got != want {
			t.Errorf("fence %d is passed: %v, %v, want %v", i, got, err, want)
		}
	}
	calls := func(recorded, asked int) {
		t.Helper()
		if q.recorded != recorded || q.asked != asked {
			t.Errorf("%d events recorded and %d asked for, want %d and %d", q.recorded, q.asked, recorded, asked)
		}
		q.recorded, q.asked = 0, 0
	}
	is(0, true)
	calls(0, 0)

	// No other code records events: Set records the fence's own.
	for range 2 {
		set(0)
		first := q.points
		set(1)
		calls(2, 0)
		is(0, false)
		q.done = first
		is(0, true)
		is(1, false)
		calls(0, 3)
		is(0, true)
		calls(0, 0)
		if err := fences[1].Wait(); err != nil {
			t.Fatal(err)
		}
		is(1, true)
		calls(0, 1)
	}

	// Other code records an event after each step and waits for it.
	step := &point{q: q}
	end := func() {
		if err := q.Record(step); err != nil {
			t.Fatal(err)
		}
		if err := step.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}
	set(0)
	end()
	calls(2, 1)
	for i := range 6 {
		set(1 - i%2)
		calls(0, 0)
		end()
		calls(1, 1)
		is(0, true)
		is(1, true)
		calls(0, 0)
	}

	// Then other code records no more events, so the fence records and queries its own.
	set(1)
	calls(0, 0)
	is(1, false)
	calls(1, 1)
	is(1, false)
	calls(0, 1)
	q.done = q.points
	is(1, true)
	set(0)
	calls(1, 1)
	set(1)
	calls(1, 0)
	if err := fences[0].Wait(); err != nil {
		t.Fatal(err)
	}
	calls(0, 1)

	q.broken = errors.New("lost")
	if err := fences[0].Set(q, &fences[1]); !errors.Is(err, q.broken) {
		t.Errorf("set on a lost device: %v", err)
	}
	if _, err := fences[1].Passed(); !errors.Is(err, q.broken) {
		t.Errorf("asked on a lost device: %v", err)
	}
	if err := fences[1].Wait(); !errors.Is(err, q.broken) {
		t.Errorf("waited on a lost device: %v", err)
	}
	if err := fences[1].Close(); err != nil || m.last.closed != 1 {
		t.Errorf("close: %v, the event was closed %d times", err, m.last.closed)
	}
	var none device.Fence
	if err := none.Close(); err != nil {
		t.Error(err)
	}
}
