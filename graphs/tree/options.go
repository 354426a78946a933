package tree

import (
	"log/slog"

	"pwc/graphs"
)

// Mode is the role of a function in training.
type Mode uint8

const (
	Inference Mode = iota // does not change whether a backward is pending
	Forward               // its backward is pending: until that runs, only MarkStep starts a generation
	Backward
)

var modeNames = [...]string{"inference", "forward", "backward"}

// String returns the mode in one word.
func (m Mode) String() string { return modeNames[m] }

// Generations selects when a generation starts.
type Generations uint8

const (
	ByMark Generations = iota // at MarkStep
	ByCall                    // at each call; from the first MarkStep on, at MarkStep
)

// Options configure a manager.
type Options struct {
	// Stream is the stream of replays and eager runs. Nil: the session's default stream.
	Stream *graphs.Stream

	// SkipWarmup records a function at its first call.
	SkipWarmup bool

	// RerecordLimit is the number of times that a function is recorded again after one node
	// because an address moved. Above the limit the function runs eagerly there. 0: 128.
	// Negative: the function is never recorded again.
	RerecordLimit int

	// FixedStatics makes a static input at a new address an error. Without it the function is
	// recorded again.
	FixedStatics bool

	// CaptureSizes are the values of the first integer input for which functions are graphed.
	// With other values they run eagerly. Nil: all values.
	CaptureSizes []int64

	// DynamicLimit is the number of different integer inputs of a function above which the
	// manager warns. 0: 8. Negative: no warning.
	DynamicLimit int

	// NoMutation runs a function eagerly if it writes an input that is not static.
	NoMutation bool

	// OrError makes every call that would be skipped an error. Each skip is counted and reported once, as
	// without OrError. Calls that run eagerly because of CaptureSizes or Manager.Seal(Eager) are no errors.
	OrError bool

	// Generations selects when a generation starts.
	Generations Generations

	// Check compares the pool's live blocks after each call, except those outside of CaptureSizes
	// (C17). If the last node of the path was replayed, they must be the live blocks before the call, or
	// no blocks if the call ended a warmed-up or recorded path. Otherwise they must be those of the path's
	// live outputs. It is for debugging and tests, because each check visits every block.
	Check bool

	// Log, if not nil, gets one line for each transition, and warnings.
	Log *slog.Logger

	// Warn, if not nil, gets each warning.
	Warn func(Warning)
}

// WarningKind is the subject of a warning.
type WarningKind uint8

const (
	Skipped      WarningKind = iota // a function is skipped: it runs eagerly, or its calls are errors
	PendingSteps                    // pending backwards keep generations from starting
	ManySizes                       // a function is called with many integer inputs
	EmptyGraph                      // a recording has no operations
)

// Warning is a warning of a manager: see [WarningKind].
type Warning struct {
	Kind WarningKind
	Text string
}

// RerecordDefault and DynamicDefault are PyTorch's defaults
// (cudagraph_unexpected_rerecord_limit, cudagraph_dynamic_shape_warn_limit).
const (
	RerecordDefault = 128
	DynamicDefault  = 8
)

func (o *Options) defaults() {
	switch {
	case o.RerecordLimit == 0:
		o.RerecordLimit = RerecordDefault
	case o.RerecordLimit < 0:
		o.RerecordLimit = 0
	}
	switch {
	case o.DynamicLimit == 0:
		o.DynamicLimit = DynamicDefault
	case o.DynamicLimit < 0:
		o.DynamicLimit = 0
	}
}
