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

// Options says how a module is split, compiled, captured and run. Only Target
// is required to compile and plan, and Device (or Pool) to run; a module without
// extern ops needs no Ops.
type Options struct {
	// Device is what the backend runs on. nil: there is none at hand. New then
	// compiles and plans; ops may be missing, and Load is an [ErrNoDevice].
	Device device.Device

	Pool   *Pool           // shared with other backends that run in one stream order; nil: one of its own
	Target pieces.Compiler // compiles what the store lacks
	Store  pieces.Store    // nil: in memory
	Ops    []device.Op     // implementations of the module's extern ops

	SplitOn      []string         // ops to split at; nil: the externs declared split
	Mode         Mode             //
	CompileSizes []int64          // sizes that get static artifacts
	Ranges       []int64          // endpoints of the ranges that get artifacts of their own
	CaptureSizes []int64          // nil: DefaultCaptureSizes; empty: none, of functions without a size symbol too
	DecodeRows   int64            // most rows of a uniform batch: modes full-decode-only and full-and-piecewise capture whole functions up to the size that holds it; 0: at every size
	Max          map[string]int64 // largest value of a batch or plain symbol; missing: the end of its range
	Symbols      map[string]int64 // values of load symbols (KV blocks)
	Feeds        []Feed           // results that lie where parameters are read

	// PaddedSlots names parameters of signed integers, "slots" or "forward.slots", whose
	// padded rows hold -1 in place of 0, so that scatter writes nothing there and rows may
	// be padded over it. It is what "padded -1" says in the text of a module.
	PaddedSlots []string

	Jobs       int            // parallel compilations; 0: GOMAXPROCS
	Extras     []pieces.Extra // programs that are built with the pieces and not run: kernels of ops
	Unrecorded bool           // the store keeps artifacts and no record of the module
	PartOf     *pieces.Result // of a backend of a module that this one is a part of: artifacts are taken from it
	Frozen     bool           // refuse what would be compiled or skipped instead of doing it (C8)
	Slots      int            // staging slots of each function; 0: 2

	Guard  Guard // keeps buffers apart, to debug kernels and ops
	Poison bool  // before each run fills what it must not read before it has written it, with 0xff: NaN in every float dtype

	// Tune, if not nil, is given what [Backend.Programs] returns before anything is
	// planned or taken on the device, to measure it there: what it has the device's
	// library routines do is planned, warmed up and captured. tune.Warmup makes one. Its
	// error is New's. Without a device it is not called.
	Tune func(ctx context.Context, programs []Sized) error

	Progress func(pieces.Event) // nil, or told of compilation, one call at a time
	Logger   *slog.Logger       // nil: silent
	Observer Observer           // nil: costs nothing
}

// Observer is told of what a backend does. Methods are called on the goroutine
// that does it and must return quickly.
type Observer interface {
	// Captured: a function was captured for a size, in so many graphs; in modes
	// that capture pieces and whole functions, twice.
	Captured(fn string, size int64, graphs int, took time.Duration)
	// Ran: a run of rows rows was issued, padded to size, as the mode says.
	Ran(fn string, rows, size int64, how How)
}

// Ranges is an Observer that is also told of each piece and each call of an extern
// op as it is issued, for profilers. Where the Observer is none, nothing is asked
// beyond whether it is.
type Ranges interface {
	Observer
	// Enter: what follows is issued for this; the same piece always has the same
	// name, as in "@forward 3 model.layers.0.mlp". Ranges nest, and all of a run
	// are on one thread.
	Enter(name string)
	// Leave: the range that was entered last is issued.
	Leave()
}

// How is the way a run was issued.
type How uint8

const (
	Eager    How = iota // general or exact artifacts, launched one by one
	Replayed            // the graphs of the pieces, splitting ops eagerly between them
	Whole               // one graph of the whole function
)

// String returns "eager", "piecewise" or "full".
func (h How) String() string {
	names := [...]string{"eager", "piecewise", "full"}
	if int(h) >= len(names) {
		return fmt.Sprintf("How(%d)", uint8(h))
	}
	return names[h]
}

func (o *Options) defaults() error {
	if o.Device == nil && o.Pool != nil {
		o.Device = o.Pool.dev
	}
	if o.Pool != nil && o.Pool.dev != o.Device {
		return fmt.Errorf("piecewise: Options.Pool belongs to another device")
	}
	if o.Store == nil {
		o.Store = pieces.NewMemoryStore()
	}
	if o.Slots == 0 {
		o.Slots = 2
	}
	if o.Slots < 1 {
		return fmt.Errorf("piecewise: Options.Slots is %d", o.Slots)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, n := range o.CaptureSizes {
		if n < 1 {
			return fmt.Errorf("%w: capture size %d in Options.CaptureSizes; a size is at least 1", ErrSize, n)
		}
	}
	if o.DecodeRows < 0 {
		return fmt.Errorf("%w: Options.DecodeRows is %d; 0 is no limit", ErrSize, o.DecodeRows)
	}
	return nil
}

// limit returns the largest value of a batch or plain symbol.
func (o *Options) limit(s *ir.Symbol) (int64, error) {
	n, ok := o.Max[s.Name]
	if !ok {
		return s.Hi, nil
	}
	if n < s.Lo || n > s.Hi {
		return 0, fmt.Errorf("%w: Options.Max[%q] = %d is outside [%d, %d]", ErrSize, s.Name, n, s.Lo, s.Hi)
	}
	return n, nil
}

// sizes returns the capture sizes of a function whose size symbol is in
// [lo, hi], ascending; [Backend.checkSizes] refuses those that no function takes.
func (o *Options) sizes(lo, hi int64) []int64 {
	if o.Mode == None {
		return nil
	}
	list := o.CaptureSizes
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
	if o.Mode == FullDecodeOnly {
		out = out[:o.decodeSizes(out)]
	}
	return out
}

// decodeSizes returns how many of the sizes, ascending, a uniform batch can be padded to.
func (o *Options) decodeSizes(sizes []int64) int {
	if i := slices.IndexFunc(sizes, func(n int64) bool { return n >= o.DecodeRows }); i >= 0 && o.DecodeRows > 0 {
		return i + 1
	}
	return len(sizes)
}
