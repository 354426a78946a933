package tree

import (
	"log/slog"

	"pwc/graphs"
)

// Mode says what a function is part of.
type Mode uint8

const (
	Inference Mode = iota // leaves pending backwards as they are
	Forward               // a backward follows: until it ran, only MarkStep starts a generation
	Backward
)

var modeNames = [...]string{"inference", "forward", "backward"}

// String returns the mode in one word.
func (m Mode) String() string { return modeNames[m] }

// Generations says when a generation starts.
type Generations uint8

const (
	ByMark Generations = iota // when MarkStep is called
	ByCall                    // with each call, until MarkStep is called once
)

// Options configure a manager.
type Options struct {
	// Stream is where replays and eager runs go. Nil: the session's default stream.
	Stream *graphs.Stream

	// SkipWarmup records a function at its first call.
	SkipWarmup bool

	// RerecordLimit is how often a function is recorded again behind one node because
	// an address moved; above it the function runs eagerly there. 0: 128. Negative:
	// never again.
	RerecordLimit int

	// FixedStatics makes a static input that moved an error, instead of a reason to
	// record again.
	FixedStatics bool

	// CaptureSizes are the integer inputs that functions are graphed for; with others
	// they run eagerly. Nil: all.
	CaptureSizes []int64

	// DynamicLimit is how many different integer inputs a function may have before a
	// warning. 0: 8. Negative: no warning.
	DynamicLimit int

	// NoMutation runs functions that write an input eagerly, unless the input is
	// static.
	NoMutation bool

	// OrError makes every skip an error.
	OrError bool

	// Generations says when a generation starts.
	Generations Generations

	// Check holds the pool's live blocks against the live outputs after every call, and
	// after a replay against what they were before it (C17). It is for debugging and
	// tests: each check looks at every block.
	Check bool

	// Log, if not nil, gets one line for each transition, and warnings.
	Log *slog.Logger

	// Warn, if not nil, is told of each warning and of each skip that is counted.
	Warn func(Warning)
}

// WarningKind says what a warning is about.
type WarningKind uint8

const (
	Skipped      WarningKind = iota // a function runs eagerly: counted once for each reason
	PendingSteps                    // forwards whose backward never ran keep generations from starting
	ManySizes                       // a function is called with many integer inputs
	EmptyGraph                      // a recording has no operations
)

// Warning is something that makes runs slower than they could be.
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
