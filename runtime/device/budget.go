package device

// Budgeted is a [Device] that knows how much memory it can still give out, so that a plan
// is held against it before anything is taken.
type Budgeted interface {
	Device

	// FreeBytes returns how many bytes Alloc and AllocHost can still give out together;
	// known is false where there is no limit.
	FreeBytes() (bytes int64, known bool)
}
