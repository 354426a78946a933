package device

// Reserver is a [Device] that gives memory its address before the memory itself,
// so that graphs can be captured that hold the address while little is taken.
type Reserver interface {
	Device

	// ReserveState takes address space for so many bytes > 0, aligned as
	// segments are, without memory.
	ReserveState(bytes int64) (State, error)

	// MapGranularity returns the bytes that states take memory in multiples of.
	MapGranularity() (int64, error)
}

// State is a segment of reserved address space: memory that is there from its
// start up to what was mapped. Its address never changes.
type State interface {
	Memory

	// Map makes at least the first bytes have memory, with undefined contents,
	// and leaves what has memory as it is. Without room for all of it nothing
	// changes and the error is a [MemoryError].
	Map(bytes int64) error

	// Mapped returns the bytes that have memory, at most Size.
	Mapped() int64
}
