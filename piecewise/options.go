package piecewise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"pwc/ir"
	"pwc/pieces"
	"pwc/runtime/device"
)

// Options says how a module is split, compiled, captured and run. To compile and plan,
// Compile.Compiler is required, and Memory.Symbols for load symbols that are not ranks; to run, Device or
// Pool too, and for a module that calls extern ops Ops.
type Options struct {
	// Device is what the backend runs on; nil: the device of Pool. Without both, New compiles and
	// plans, ops may be missing, and Load is an [ErrNoDevice].
	Device device.Device

	Pool *Pool       // shared with other backends that run in one stream order; nil: one of its own
	Ops  []device.Op // implementations of the module's extern ops

	// Rank is the index of the device among those that run the module together, from 0
	// ([ir.Module.GroupRank]). It selects the shards that Load takes. Compilation does not depend on it.
	Rank int

	// Frozen refuses to compile and to skip (C8). New fails if the store lacks an artifact, if a
	// size of the options has no effect, if in a mode that captures no graph can serve a function,
	// if the device would compile a program when it loads it, or if a library call at a capture size
	// has no measured algorithm. Run fails for a batch that the mode would replay, if its rows must not be
	// padded to a captured size, or are more than the largest one.
	Frozen bool

	Compile CompileOptions // the compiler, the store, and sizes that get their own artifacts
	Capture CaptureOptions // the mode and the sizes of graphs
	Memory  MemoryOptions  // largest sizes, values of load symbols, and memory that tensors share
	Debug   DebugOptions   // checks that cost memory and time
	Observe ObserveOptions // progress, log and observer
}

// CompileOptions selects the compiler and the store, where functions are split, and which sizes get
// artifacts of their own.
type CompileOptions struct {
	Compiler pieces.Compiler // compiles artifacts that the store lacks
	Store    pieces.Store    // nil: in memory

	SplitOn   []string // ops to split at; nil: the externs declared split
	Sizes     []int64  // sizes that get an artifact of their own, with a constant size
	Endpoints []int64  // ends of the ranges of sizes that get artifacts of their own
	Jobs      int      // parallel compilations; 0: GOMAXPROCS

	Extras     []pieces.Extra // kernels of extern ops, built with the pieces
	Unrecorded bool           // the store keeps the artifacts but no record of the module
	PartOf     *pieces.Result // the build of a module that this one is a part of: artifacts are taken from it

	// Tune, if not nil, measures the programs that [Backend.Programs] returns, before New plans
	// memory. The plan, Warmup and Capture use the algorithms that it selects for the device's
	// library routines. tune.Warmup returns such a function. New returns its error. Without a
	// device it is not called.
	Tune func(ctx context.Context, programs []Sized) error
}

// CaptureOptions selects what is captured into graphs, for which sizes, and the padded rows that hold
// -1.
type CaptureOptions struct {
	Mode Mode

	// Sizes are captured largest first. nil: [DefaultCaptureSizes]. If the list is empty but not
	// nil, nothing is captured, including functions without a size symbol.
	Sizes []int64

	// DecodeRows is the largest number of rows of a uniform batch: modes full-decode-only and
	// full-and-piecewise capture full graphs for the sizes up to the smallest one that is at least
	// DecodeRows. 0: for every size.
	DecodeRows int64

	// PaddedSlots names parameters of signed integers, "slots" or "forward.slots", whose
	// padded rows hold -1 instead of 0: scatter writes nothing for them, so functions that scatter
	// by these indices may be padded. "padded -1" in the text of a module has the same effect.
	PaddedSlots []string
}

// MemoryOptions determines the memory of a backend: the values of symbols that it is planned for,
// and which tensors share it.
type MemoryOptions struct {
	Max          map[string]int64 // largest value of a batch or plain symbol; missing: the end of its range
	Symbols      map[string]int64 // values of load symbols (KV blocks)
	Aliases      []Alias          // results that share the memory of parameters
	StagingSlots int              // staging slots of each function; 0: 2

	// CopyWeights makes Load copy every weight, so that files of the checkpoint may change
	// afterwards; see [Backend.Load].
	CopyWeights bool
}

// DebugOptions are checks for authors of kernels and ops.
type DebugOptions struct {
	Canary Canary // gives each buffer an allocation of its own, to find accesses out of bounds
	Poison bool   // fills the arena and the results before each run with 0xff: NaN in the float dtypes that have NaNs
}

// ObserveOptions are the observers of a backend.
type ObserveOptions struct {
	Progress func(pieces.Event) // called for each event of compilation, if not nil; calls do not overlap
	Logger   *slog.Logger       // nil: nothing is logged
	Observer Observer           // nil: no calls
}

// Observer observes a backend. Its methods are called on the goroutine that does the work, and
// must return quickly.
type Observer interface {
	// Captured is called after a function was captured for a size, with the number of graphs and
	// the time that it took. Where mode full-and-piecewise captures the pieces and then a full
	// graph for the same size, it is called for each of the two.
	Captured(fn string, size int64, graphs int, took time.Duration)
	// Ran is called after a run of so many rows, padded to size, was issued.
	Ran(fn string, rows, size int64, mode RunMode)
}

// ProfileRanges is an Observer for profilers: it gets a range for each run and, within it, a range
// for each piece and each call between pieces. A run of a full graph has only the outer range.
type ProfileRanges interface {
	Observer
	// Enter begins a range; the same piece always has the same name, as in
	// "@forward 3 model.layers.0.mlp". Ranges nest. All ranges of a run begin and end on one
	// goroutine, and on a GPU also on one thread (see [Pool.Enter]).
	Enter(name string)
	// Leave ends the innermost range.
	Leave()
}

// defaults sets the options that are not given. The error lists all options that no module can run
// with.
func (o *Options) defaults() error {
	var errs []error
	if o.Device == nil && o.Pool != nil {
		o.Device = o.Pool.dev
	}
	if o.Pool != nil && o.Pool.dev != o.Device {
		errs = append(errs, fmt.Errorf("piecewise: Options.Pool is of another device than Options.Device: set one of them only"))
	}
	if o.Compile.Store == nil {
		o.Compile.Store = pieces.NewMemoryStore()
	}
	if o.Memory.StagingSlots == 0 {
		o.Memory.StagingSlots = 2
	}
	if o.Memory.StagingSlots < 1 {
		errs = append(errs, fmt.Errorf("piecewise: Options.Memory.StagingSlots is %d; it is at least 1, or 0 for 2 slots", o.Memory.StagingSlots))
	}
	if o.Observe.Logger == nil {
		o.Observe.Logger = slog.New(slog.DiscardHandler)
	}
	for _, n := range o.Capture.Sizes {
		if n < 1 {
			errs = append(errs, fmt.Errorf("%w: capture size %d in Options.Capture.Sizes; a size is at least 1", ErrSize, n))
		}
	}
	if o.Capture.DecodeRows < 0 {
		errs = append(errs, fmt.Errorf("%w: Options.Capture.DecodeRows is %d; 0 is no limit", ErrSize, o.Capture.DecodeRows))
	}
	return errors.Join(errs...)
}

// limit returns the largest value of a batch or plain symbol. checkSymbols refuses values outside of
// the symbol's range.
func (o *Options) limit(s *ir.Symbol) int64 {
	if n, ok := o.Memory.Max[s.Name]; ok {
		return n
	}
	return s.Hi
}

// sizes returns the capture sizes of a function whose size symbol is in
// [lo, hi], ascending; checkSizes refuses sizes outside the range of every function.
func (o *Options) sizes(lo, hi int64) []int64 {
	if o.Capture.Mode == None {
		return nil
	}
	list := o.Capture.Sizes
	if list == nil {
		list = DefaultCaptureSizes(hi)
	}
	var out []int64
	for _, n := range list {
		if n >= lo && n <= hi {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if o.Capture.Mode == FullDecodeOnly {
		out = out[:o.decodeSizes(out)]
	}
	return out
}

// decodeSizes returns how many sizes, from the smallest, a uniform batch can be padded to.
func (o *Options) decodeSizes(sizes []int64) int {
	if i := slices.IndexFunc(sizes, func(n int64) bool { return n >= o.Capture.DecodeRows }); i >= 0 && o.Capture.DecodeRows > 0 {
		return i + 1
	}
	return len(sizes)
}
