package device

// This file has the optional interfaces: an interface here embeds Device, Stream, Memory or
// Op, and adds methods that only some of them have. docs/devices.md has their table; a test
// compares it with this file and with the types that implement them.

import (
	"context"
	"time"

	"pwc/program"
)

// Reserver is a [Device] that reserves address space without memory, so that graphs
// can be captured with the final addresses before the memory is allocated.
type Reserver interface {
	Device

	// ReserveState reserves address space for bytes > 0, aligned as segments are,
	// without memory.
	ReserveState(bytes int64) (State, error)

	// MapGranularity returns the unit of State.Map in bytes: a state has a multiple of it
	// as memory.
	MapGranularity() (int64, error)
}

// State is a segment of reserved address space. Its first Mapped bytes have memory.
// Its address never changes.
type State interface {
	Memory

	// Map gives memory to at least the first bytes of the state, as many as its argument
	// says. New memory has undefined contents; memory that was mapped before is unchanged.
	// If there is not enough memory, nothing changes and the error is a [MemoryError].
	Map(bytes int64) error

	// Mapped returns the bytes that have memory, at most Size.
	Mapped() int64
}

// LibraryProvider is a Device with library routines for programs.
type LibraryProvider interface {
	Device
	Libraries() OpSet

	// WorkspaceBytes returns the bytes of workspace that routines need in addition to
	// ScratchBytes, the same for all calls and sizes. Each stream that calls routines
	// has a workspace of its own, which [LibraryStream].UseWorkspace sets.
	WorkspaceBytes() int64
}

// LibraryStream is a Stream of a [LibraryProvider].
type LibraryStream interface {
	Stream

	// UseWorkspace sets the workspace of the stream, at least LibraryProvider.WorkspaceBytes.
	// It must stay as long as graphs use it.
	UseWorkspace(b Buffer) error

	// WarmLibraries calls Warm for those library routines and extern ops of a bound program
	// that are a [Warmer], and launches nothing else of the program.
	WarmLibraries(l BoundLaunch) error
}

// Budgeted is a [Device] that knows how much memory it can still give out, so that a plan
// is compared with it before memory is allocated.
type Budgeted interface {
	Device

	// FreeBytes returns how many bytes Alloc can still give out; [math.MaxInt64]: it has no limit.
	FreeBytes() (int64, error)

	// SharesHostMemory reports whether memory of AllocHost comes out of FreeBytes, too.
	SharesHostMemory() bool
}

// HostImporter is a [Device] whose programs read memory of the host in place.
type HostImporter interface {
	Device

	// ImportHost makes a read-only segment of the caller's bytes, without a copy; copies and
	// fills to the segment are refused. The bytes must not change, and must stay valid until
	// the segment is freed and the work that reads it is done. Bind refuses programs that need
	// a larger alignment than the bytes have. If the bytes are of a mapped file that was
	// truncated, work that reads a missing page ends with the error gone.
	ImportHost(bytes []byte, gone error) (Memory, error)
}

// Timer is a [Device] with events that measure its time. Stream.Record of such an event
// may be captured: each launch of the graph then records the event again, so that the
// time of a part of a graph can be measured. Wait for the stream of the launch before
// Elapsed: until the launch reaches the record, the event may have the time of the record
// before. Once the event is closed, launches of the graph fail with [ErrClosed].
type Timer interface {
	Device

	NewTimedEvent() (Event, error)

	// Elapsed returns the device's time between two events of NewTimedEvent that were
	// recorded and are done.
	Elapsed(start, end Event) (time.Duration, error)
}

// LoadCompiler is a [Device] whose Load may have to compile kernels of a program.
type LoadCompiler interface {
	Device

	// CompilesAtLoad describes what Load compiles of a program: "PTX of cuda:sm_80 for
	// cuda:sm_90"; "" if it compiles nothing, or the device does not run the program's kernels.
	CompilesAtLoad(p *program.Program) string
}

// TargetChecker is a [Device] that runs programs of other targets than its own, as a GPU runs
// PTX for earlier ones.
type TargetChecker interface {
	Device

	// Takes returns an error if the device cannot run programs of a target. compiles reports
	// whether Load has to compile their kernels.
	Takes(target string) (compiles bool, err error)
}

// Tracer is a [Stream] that reports the steps of a launch one by one, so that
// each can be timed.
type Tracer interface {
	Stream

	// Trace makes later launches call f on the goroutine that launches: with a nil step
	// when a launch begins, and with each step after it was enqueued. Launches that are
	// captured do not call f. f may record events on the stream. For a choice, f gets
	// the steps of the chosen variant. A nil f ends the trace.
	Trace(f func(p *program.Program, s *program.Step))
}

// Interruptible is a [Stream] whose calls execute the work before they return, as the
// host's do. Without Until, a caller would wait for all of the work after its context has ended.
type Interruptible interface {
	Stream

	// Until makes operations give up once ctx has ended, until the next call of Until;
	// context.Background() never ends. An operation that gives up returns an error that matches
	// the cause of ctx, and so does each operation after it; their destinations are undefined.
	// Until itself allocates nothing.
	Until(ctx context.Context)

	// Ended returns such an error if an operation, or work of an extern op, gave up since Until
	// was called, else nil.
	Ended() error
}

// ThreadPinner is a [Stream] whose calls cost less on one thread: Enter keeps the calling
// goroutine on its thread and sets up there, once, what each call needs (a CUDA context).
// Pairs of Enter and Leave nest. Between them the goroutine uses no other device, and no other
// goroutine uses the stream.
type ThreadPinner interface {
	Stream

	// Enter locks the goroutine to its thread. If it returns an error, do not call Leave.
	Enter() error

	// Leave ends the last Enter.
	Leave()
}

// Preparer is an [Op] with a method that is called before the op's first launch of a run:
// the owner of the step calls Prepare once for each run, on the stream of the op's calls,
// with the Meta, Size and Rows of the later OpCalls. Work that Prepare enqueues on s
// executes before the op's launches, also if graphs replay them.
type Preparer interface {
	Op
	Prepare(s Stream, meta any, size, rows int64) error
}

// Warmer is an [Op] with a method that a warm-up calls for the shapes of the op's operands, so
// that its kernels are loaded and its libraries initialised before the op is
// captured. Warm enqueues what Launch would for a step that has only padded rows and no
// metadata. It must not touch states, which may have no memory yet.
type Warmer interface {
	Op
	Warm(c *OpCall) error
}

// Tunable is a library routine that chooses among algorithms. Tuned reports whether
// the choice for a call was measured.
type Tunable interface {
	Op
	Tuned(args []Tensor, attrs []program.Attr) bool
}

// Initializer is a library routine whose first call of ScratchBytes takes long, with any operands.
// Initialize does that work ahead of time. It may be called concurrently with other work and
// with other methods of the routine. It returns no error: an error occurs again in
// ScratchBytes, which returns it.
type Initializer interface {
	Op
	Initialize()
}
