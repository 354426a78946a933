package piecewise

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"pwc/ir"
	"pwc/pieces"
	"pwc/runtime/device"
)

// Options says how a module is split, compiled, captured and run. To compile and plan, only
// Compile.Compiler is required; to run, Device or Pool too. A module without extern ops needs
// no Ops.
type Options struct {
	// Device is what the backend runs on. nil: New compiles and plans, ops may be missing,
	// and Load is an [ErrNoDevice].
	Device device.Device

	Pool *Pool       // shared with other backends that run in one stream order; nil: one of its own
	Ops  []device.Op // implementations of the module's extern ops

	// Rank is which device this is of those that run the module together, from 0
	// ([ir.Module.GroupRank]): it says which shards of weights are loaded. What is compiled does
	// not depend on it.
	Rank int

	// Frozen refuses to compile and to skip (C8): New fails where an artifact is not in the
	// store, or where a size or a graph that the options ask for has no use; Run fails where
	// rows would run without a graph that the mode asks for.
	Frozen bool

	Compile CompileOptions // what is compiled, and by what
	Capture CaptureOptions // what is captured into graphs
	Memory  MemoryOptions  // how large everything is, and what shares memory
	Debug   DebugOptions   // checks that cost memory and time
	Observe ObserveOptions // progress, log and observer
}

// CompileOptions says what is compiled, by what, and where artifacts are kept.
type CompileOptions struct {
	Compiler pieces.Compiler // compiles artifacts that the store lacks
	Store    pieces.Store    // nil: in memory

	SplitOn   []string // ops to split at; nil: the externs declared split
	Sizes     []int64  // sizes that get an artifact of their own, with a constant size
	Endpoints []int64  // ends of the ranges of sizes that get artifacts of their own
	Jobs      int      // parallel compilations; 0: GOMAXPROCS

	Extras     []pieces.Extra // programs that are built with the pieces and not run: kernels of ops
	Unrecorded bool           // the store keeps artifacts and no record of the module
	PartOf     *pieces.Result // the build of a module that this one is a part of: artifacts are taken from it

	// Tune, if not nil, is given what [Backend.Programs] returns before anything is
	// planned or taken on the device, to measure it there: what it has the device's
	// library routines do is planned, warmed up and captured. tune.Warmup makes one. Its
	// error is New's. Without a device it is not called.
	Tune func(ctx context.Context, programs []Sized) error
}

// CaptureOptions says what is captured into graphs, for which sizes, and what padded rows hold.
type CaptureOptions struct {
	Mode Mode

	// Sizes are captured largest first. nil: [DefaultCaptureSizes]; empty: none, of
	// functions without a size symbol too.
	Sizes []int64

	// DecodeRows is the most rows of a uniform batch: modes full-decode-only and
	// full-and-piecewise capture full graphs up to the size that holds it. 0: at every size.
	DecodeRows int64

	// PaddedSlots names parameters of signed integers, "slots" or "forward.slots", whose
	// padded rows hold -1 in place of 0, so that scatter writes nothing there and rows may
	// be padded over it. It is what "padded -1" says in the text of a module.
	PaddedSlots []string
}

// MemoryOptions says how large the memory of a backend is: the values of symbols that memory is
// planned for, and what shares it.
type MemoryOptions struct {
	Max          map[string]int64 // largest value of a batch or plain symbol; missing: the end of its range
	Symbols      map[string]int64 // values of load symbols (KV blocks)
	Aliases      []Alias          // results that are written where parameters are read
	StagingSlots int              // staging slots of each function; 0: 2

	// CopyWeights has Load copy every weight, so that files of the checkpoint may change
	// afterwards; see [Backend.Load].
	CopyWeights bool
}

// DebugOptions are checks for authors of kernels and ops.
type DebugOptions struct {
	Canary Canary // keeps buffers apart, to find accesses out of bounds
	Poison bool   // fills, before each run, memory that the run must write before it reads it, with 0xff: NaN in every float dtype
}

// ObserveOptions are the observers of a backend.
type ObserveOptions struct {
	Progress func(pieces.Event) // nil, or told of compilation; calls do not overlap
	Logger   *slog.Logger       // nil: silent
	Observer Observer           // nil: costs nothing
}

// Observer observes a backend. Its methods are called on the goroutine that does the work, and
// must return quickly.
type Observer interface {
	// Captured: a function was captured for a size, in so many graphs; in modes
	// that capture pieces and full graphs, twice.
	Captured(fn string, size int64, graphs int, took time.Duration)
	// Ran: a run of rows rows was issued, padded to size.
	Ran(fn string, rows, size int64, mode RunMode)
}

// ProfileRanges is an Observer that is also told of each piece and each call of an extern
// op as it is issued, for profilers. For another Observer a run makes one check and no call.
type ProfileRanges interface {
	Observer
	// Enter begins a range; the same piece always has the same name, as in
	// "@forward 3 model.layers.0.mlp". Ranges nest, and all of a run are on one thread.
	Enter(name string)
	// Leave ends the range that was entered last.
	Leave()
}

func (o *Options) defaults() error {
	if o.Device == nil && o.Pool != nil {
		o.Device = o.Pool.dev
	}
	if o.Pool != nil && o.Pool.dev != o.Device {
		return fmt.Errorf("piecewise: Options.Pool belongs to another device")
	}
	if o.Compile.Store == nil {
		o.Compile.Store = pieces.NewMemoryStore()
	}
	if o.Memory.StagingSlots == 0 {
		o.Memory.StagingSlots = 2
	}
	if o.Memory.StagingSlots < 1 {
		return fmt.Errorf("piecewise: Options.Memory.StagingSlots is %d", o.Memory.StagingSlots)
	}
	if o.Observe.Logger == nil {
		o.Observe.Logger = slog.New(slog.DiscardHandler)
	}
	for _, n := range o.Capture.Sizes {
		if n < 1 {
			return fmt.Errorf("%w: capture size %d in Options.Capture.Sizes; a size is at least 1", ErrSize, n)
		}
	}
	if o.Capture.DecodeRows < 0 {
		return fmt.Errorf("%w: Options.Capture.DecodeRows is %d; 0 is no limit", ErrSize, o.Capture.DecodeRows)
	}
	return nil
}

// limit returns the largest value of a batch or plain symbol.
func (o *Options) limit(s *ir.Symbol) (int64, error) {
	n, ok := o.Memory.Max[s.Name]
	if !ok {
		return s.Hi, nil
	}
	if n < s.Lo || n > s.Hi {
		return 0, fmt.Errorf("%w: Options.Memory.Max[%q] = %d is outside [%d, %d]", ErrSize, s.Name, n, s.Lo, s.Hi)
	}
	return n, nil
}

// sizes returns the capture sizes of a function whose size symbol is in
// [lo, hi], ascending; [Backend.checkSizes] refuses those that no function takes.
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

// decodeSizes returns how many of the sizes, ascending, a uniform batch can be padded to.
func (o *Options) decodeSizes(sizes []int64) int {
	if i := slices.IndexFunc(sizes, func(n int64) bool { return n >= o.Capture.DecodeRows }); i >= 0 && o.Capture.DecodeRows > 0 {
		return i + 1
	}
	return len(sizes)
}
