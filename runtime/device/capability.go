package device

// This file has the optional interfaces: an interface here embeds Device, Stream, Memory or
// Op, and adds what not all of them can do. docs/devices.md is their table; a test holds it
// to this file and to the types that implement them.

import (
	"context"
	"time"

	"pwc/program"
)

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

// LibraryProvider is a Device with library routines for programs.
type LibraryProvider interface {
	Device
	Libraries() OpSet

	// WorkspaceBytes is the memory that routines work in, beside what they ask for
	// with ScratchBytes: the same for all calls and sizes. Each stream that calls
	// them has its own, from [LibraryStream].UseWorkspace.
	WorkspaceBytes() int64
}

// LibraryStream is a Stream of a [LibraryProvider]. WarmLibraries does for the library
// routines of a program what Warm does for an op: those that are a [Warmer] run,
// unless their code was loaded before, and the rest of the program does not. What
// they compute means nothing.
type LibraryStream interface {
	Stream
	UseWorkspace(b Buffer) error // of at least LibraryProvider.WorkspaceBytes; it stays while graphs reach it
	WarmLibraries(l BoundLaunch) error
}

// Budgeted is a [Device] that knows how much memory it can still give out, so that a plan
// is held against it before anything is taken.
type Budgeted interface {
	Device

	// FreeBytes returns how many bytes Alloc and AllocHost can still give out together;
	// known is false where there is no limit.
	FreeBytes() (bytes int64, known bool)
}

// HostImporter is a [Device] whose programs read memory of the host where it lies.
type HostImporter interface {
	Device

	// ImportHost makes a segment of bytes that stay the caller's: nothing is copied, and
	// copies and fills to the segment are refused. The bytes must stay valid until it is
	// freed and the work that reads it is done, and must not change. Their alignment is what it is: programs
	// are refused at Bind that need another. Work that meets a page that is gone, of a mapped
	// file that was truncated, ends with gone.
	ImportHost(bytes []byte, gone error) (Memory, error)
}

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

// LoadCompiler is a [Device] whose Load may have to compile: a program holds its
// kernels in a form that the device runs only after that.
type LoadCompiler interface {
	Device

	// CompilesAtLoad returns which form of a program's kernels Load compiles, and
	// for what; "" where it compiles nothing, or takes no such program.
	CompilesAtLoad(p *program.Program) string
}

// TargetChecker is a [Device] that runs programs of other targets than its own, as a GPU runs
// PTX for earlier ones.
type TargetChecker interface {
	Device

	// Takes returns an error if the device cannot run programs of a target; compiles: Load
	// compiles them.
	Takes(target string) (compiles bool, err error)
}

// Tracer is a [Stream] that tells of the steps of a launch one by one, so that
// each can be timed.
type Tracer interface {
	Stream

	// Trace has f called when a launch begins that is not captured, with a nil step,
	// and after each of its steps was enqueued, on the goroutine that launches; f
	// may record events on the stream. Of a choice it is told of the steps that
	// were chosen. A nil f ends it.
	Trace(f func(p *program.Program, s *program.Step))
}

// Interruptible is a [Stream] that works while it is called, as the host's does, so that its
// caller would otherwise wait for all of the work after a context has ended.
type Interruptible interface {
	Stream

	// Until has operations give up once ctx has ended. It holds until it is called again;
	// context.Background() ends it. An operation that gives up returns the cause of ctx, and so
	// does each one after it; what they were to write is undefined. It allocates nothing.
	Until(ctx context.Context)

	// Ended returns the cause of the context if an operation gave up since Until was called,
	// an extern op's own work included.
	Ended() error
}

// ThreadPinner is a [Stream] whose calls cost less on one thread: Enter keeps the calling
// goroutine on its thread and sets up there, once, what each call needs (a CUDA context).
// It nests. One goroutine at a time uses it, and no other device before it leaves.
type ThreadPinner interface {
	Stream

	// Enter begins the stretch. After an error there is nothing to leave.
	Enter() error

	// Leave ends what Enter began.
	Leave()
}

// Preparer is an [Op] that is told of a step before the first of its launches:
// the step's owner calls Prepare once for each run, on the stream of its calls,
// with what OpCall will hold as Meta, Size and Rows. Work that it enqueues there
// comes before that of the run, graphs included.
type Preparer interface {
	Op
	Prepare(s Stream, meta any, size, rows int64) error
}

// Warmer is an [Op] that a warm-up runs once for each shape of its operands, so
// that its kernels are loaded and its libraries initialised before anything is
// captured. Warm enqueues what Launch would for a step of nothing but padding:
// no rows, no metadata. States have no memory yet that it could touch.
type Warmer interface {
	Op
	Warm(c *OpCall) error
}

// Tunable is a library routine that chooses among algorithms. Tuned reports whether
// the choice for a call that it takes was measured.
type Tunable interface {
	Op
	Tuned(args []Tensor, attrs []program.Attr) bool
}

// Initializer is a library routine that takes long when it is asked about a call for the first
// time, whatever the call. Initialize does ahead what takes long; it may be called beside other
// work, and other calls of the routine. What goes wrong in it does so again when a call is
// asked about, which reports it.
type Initializer interface {
	Op
	Initialize()
}
