package device

import "time"

// Timer is a [Device] with events that measure its time. Stream.Record of such an event
// may be captured: the graph then records it anew whenever it is launched, so that the
// time of a part of a graph can be measured. Wait for the stream of the launch before
// Elapsed: until the graph comes to the record, the event may tell of the one before. The
// graph does not keep the event: once it is closed, launches fail with [ErrClosed].
type Timer interface {
	Device

	NewTimedEvent() (Event, error)

	// Elapsed returns the device's time between two events of NewTimedEvent that were
	// recorded and are done.
	Elapsed(start, end Event) (time.Duration, error)
}
