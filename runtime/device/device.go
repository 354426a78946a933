// Package device is what a device offers to the rest of pwc: memory, streams,
// events, graphs and loaded programs, as interfaces, with the errors that every
// device gives alike. Package devicetest holds every implementation to it.
//
// What not every device or op can do is an optional interface, which callers assert: see
// capability.go, and docs/devices.md for what pwc does without each.
// Captures, forks, templates and Rebind are not optional.
package device

import (
	"pwc/ir/dtype"
	"pwc/program"
)

// Info describes a device. Properties are the names that launch dims may use
// ("device.workers", "device.sms").
type Info struct {
	Target      string // what programs must be compiled for: "host", "cuda:sm_90"
	Name        string // for people
	MemoryBytes int64  // total; 0: not known
	Properties  map[string]int64
}

// Device is one device. Its methods may be called from any goroutine; those of
// what it makes may not be called concurrently unless they say so.
//
// While a stream captures, calls that change the device's memory or modules are refused
// with a [CaptureError] that matches [ErrCapturing]: AllocHost, Load, freeing device
// memory, and TakeFaults of the stream that captures, for the goroutine that captures in mode
// global or thread-local; for all goroutines in mode global, see [CaptureMode]; Close
// always. Alloc stays allowed: the private pool of a capture takes segments. Where a
// goroutine is not bound to a thread that can be told (other systems than Linux), all
// goroutines count as the one that captures.
type Device interface {
	Info() Info

	// Alloc takes a segment of device memory, aligned to [program.MaxAlign] or
	// more. Contents are undefined. It is allowed during a capture; in mode global, to
	// the goroutine that captures.
	Alloc(bytes int64) (Memory, error)

	// AllocHost takes host memory that copies read and write directly (pinned
	// on a GPU).
	AllocHost(bytes int64) (HostMemory, error)

	NewStream() (Stream, error)
	NewEvent() (Event, error)

	// Load checks a program's meaning (offsets, registers, bounds) and makes it
	// ready to launch. ops are the extern ops that its steps may name.
	Load(p *program.Program, ops OpSet) (Executable, error)

	// TakeFaults returns the indices out of range that kernels of these programs
	// met since the last call, and clears them (C12); of all that are loaded if none
	// is named. Those of other programs are left to who loaded them. It orders itself
	// after s.
	TakeFaults(s Stream, of ...Executable) ([]IndexError, error)

	// WatchFaults watches the fault flags of these programs without waiting for a
	// stream. The programs must stay open while the watch is used.
	WatchFaults(of ...Executable) (FaultWatch, error)

	// Close releases everything; streams must be idle.
	Close() error
}

// Memory is a segment of device memory.
type Memory interface {
	Size() int64
	Free() error
}

// HostMemory is host memory that the device can copy from and to.
type HostMemory interface {
	Bytes() []byte
	Free() error
}

// Buffer is a range of device memory. It is a plain value; the zero Buffer is
// no memory.
type Buffer struct {
	Memory Memory
	Offset int64
	Size   int64
}

// Present returns the buffers of a list that have memory and are not empty.
func Present(list []Buffer) []Buffer {
	var out []Buffer
	for _, b := range list {
		if b.Memory != nil && b.Size > 0 {
			out = append(out, b)
		}
	}
	return out
}

// Slice returns bytes [off, off+n) of the buffer; it panics when they are not in it,
// as slicing does.
func (b Buffer) Slice(off, n int64) Buffer {
	if off < 0 || n < 0 || off > b.Size-n {
		panic("device: slice out of range of the buffer")
	}
	return Buffer{b.Memory, b.Offset + off, n}
}

// Tensor is a buffer with a type, as extern ops get it.
type Tensor struct {
	Buffer
	DType dtype.DType
	Shape []int64
}

// Stream is a queue of work that runs in order. Operations return when they
// are enqueued; an error says that they were not.
//
// Between BeginCapture and EndCapture operations are recorded and do not execute. The
// streams that were forked from the one that captures, directly or not, are recorded into
// the same graph. An operation that fails while it is recorded may spoil the capture:
// then EndCapture fails, too. After EndCapture, successful or not, none of these streams
// captures.
type Stream interface {
	Device() Device

	// Name returns the name of the stream in messages and descriptions of graphs, which SetName
	// sets; at first it is unique for the device.
	Name() string
	SetName(name string)

	CopyToDevice(dst Buffer, src []byte) error // src must not change until the copy is done
	CopyToHost(dst []byte, src Buffer) error   // dst is valid once the copy is done
	Copy(dst, src Buffer) error                // equal sizes; overlapping ranges are refused
	Fill(dst Buffer, value byte) error

	Launch(l BoundLaunch) error
	LaunchGraph(g Graph) error

	// LaunchOp launches an extern op that is not part of a program, and sets c.Stream and
	// c.Capturing for it. Ops are captured by this or by Launch: an op that cannot be captured,
	// or that has results and records nothing, is refused with [ErrNotCapturable], the
	// nodes carry its name, c.Origin and c.Loc, and Rebind knows its memory.
	LaunchOp(op Op, c *OpCall) error

	Record(e Event) error // refused while capturing, unless a [Timer] made it: use Fork and Join
	Wait(e Event) error   // work enqueued later starts after what e recorded; refused while capturing
	Synchronize() error   // refused while capturing

	// Fork lets later work of to wait for what was enqueued on the stream; Join lets
	// later work of the stream wait for what was enqueued on from. While the stream
	// captures, Fork makes to part of the capture, and Join wants a stream that is part
	// of it. A connection between a capture and work outside it is refused with
	// [ErrNotForked].
	Fork(to Stream) error
	Join(from Stream) error

	// Mark returns a mark behind what was enqueued, and Behind what is known of one
	// without asking a driver. A [Fence] is made of them.
	Mark() Mark
	Behind(m Mark) (recorded, passed bool)

	// BeginCapture starts recording. Unless the mode is relaxed, the goroutine is
	// locked to its thread until the end, and what is captured between, and EndCapture,
	// are calls of the same goroutine.
	BeginCapture(mode CaptureMode) error

	// EndCapture ends recording and makes a graph, EndTemplate a template of which graphs
	// are made. Work of forked streams that was not joined is an error that matches
	// [ErrUnjoined] and names them. On a forked stream it is refused with
	// [ErrWrongStream], and the capture goes on; every other error ends it.
	EndCapture() (Graph, error)
	EndTemplate() (Template, error)
	Capturing() bool

	// Close ends the stream, and with it a capture that it began. A stream that was
	// forked from a capture under way cannot be closed.
	Close() error
}

// Event marks a point in a stream.
type Event interface {
	Query() (done bool, err error)
	Synchronize() error
	Close() error
}

// Executable is a loaded program.
type Executable interface {
	Program() *program.Program

	// ScratchBytes is what Bind wants as Args.Scratch for these symbol values:
	// the program's own, and room for the extern op that asks for most.
	ScratchBytes(symbols []int64) (int64, error)

	// Bind resolves every address for symbol values, in the order of the
	// program's symbols. It checks guards, sizes, alignment and bounds.
	Bind(symbols []int64, args Args) (BoundLaunch, error)

	Close() error
}

// Args is the memory that a program is bound to.
type Args struct {
	Params  []Buffer // one for each parameter
	Results []Buffer // one for each result; ignored for aliases
	Scratch Buffer   // at least ScratchBytes, aligned to program.MaxAlign
}

// BoundLaunch is a program with all addresses resolved, ready to be launched
// any number of times by Stream.Launch.
type BoundLaunch interface {
	Executable() Executable

	// Calls returns the calls of extern ops, in the order of the program's
	// steps. Their owner sets Meta, Size, Rows and Loc before a launch.
	Calls() []*OpCall
}

// FaultWatch reads the fault flags of some programs (C12) while work goes on. One
// goroutine at a time uses it.
type FaultWatch interface {
	// Raised reports whether a flag is set. It neither waits nor allocates. The flags of
	// work that an event or a stream was waited for are seen; those of work that still
	// runs may be.
	Raised() bool

	// Faults returns the flags that are set, as [Device.TakeFaults] does, and clears none.
	Faults() []IndexError

	// NewSnapshot makes a snapshot, which Close gives back.
	NewSnapshot() (FaultSnapshot, error)
}

// FaultSnapshot separates the faults of the work before a point of a stream from those of
// the work after it, while both are enqueued.
type FaultSnapshot interface {
	// Take enqueues on s: the flags that work before it set are moved to the snapshot, so
	// that those of later work start clear. It is refused while s captures.
	Take(s Stream) error

	// Faults returns what the last Take moved. It is valid once s has passed that Take,
	// and until the next.
	Faults() []IndexError

	Close() error
}

// Op is an extern op on a device: a runner's kernel, or attention.
type Op interface {
	// Signature returns the op's declaration, held against the module's.
	Signature() Signature

	// ScratchBytes is the memory that a launch with these operands needs beside
	// them; it is planned into the step. For more rows it is never less: what is
	// planned for the largest size serves steps of any other.
	ScratchBytes(args []Tensor, attrs []program.Attr) (int64, error)

	// Launch enqueues the op on c.Stream and returns. It must not wait for the
	// device. While c.Capturing it only enqueues, and reads metadata through
	// memory that stays where it is.
	Launch(c *OpCall) error
}

// Signature is the part of an extern op's declaration that a module states.
type Signature struct {
	Name    string // "ns::op"
	Mut     []bool
	Results int
	Capture bool
	Version string
}

// OpCall is one call of an extern op. The same OpCall is passed at every
// replay; only Rows, and what Meta points to, change between calls.
type OpCall struct {
	Stream  Stream
	Args    []Tensor // operands, then results
	Attrs   []program.Attr
	Scratch Buffer
	Meta    any   // the step's metadata, untouched
	Size    int64 // rows of the step with padding
	Rows    int64 // rows of the step without; padded rows of outputs must become zero (C11)

	// RowExtents says where in Args the rows of the step are: that many positions of the
	// first axis are one row; 0: the tensor has no rows, whatever its extents are. Nil
	// where the caller does not know.
	RowExtents []int64
	Capturing  bool
	Origin     int32 // node of the piece
	Loc        string
	State      any // the op's own, kept from one launch of the call to the next
}

// RealExtent returns how many positions of the first axis of Args[i] are not padding: all
// of a tensor that has no rows. The tensor must have an axis.
func (c *OpCall) RealExtent(i int) int64 {
	n := c.Args[i].Shape[0]
	if i >= len(c.RowExtents) || c.RowExtents[i] == 0 {
		return n
	}
	return min(n, c.Rows*c.RowExtents[i])
}

// OpSet finds extern ops by name.
type OpSet map[string]Op
