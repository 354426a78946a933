// Package device has the interfaces of devices: memory, streams, events, graphs and
// loaded programs, and the errors that all devices return. Package devicetest tests
// implementations.
//
// Methods that only some devices or ops have are in optional interfaces, which callers find
// by a type assertion: see capability.go, and docs/devices.md for what pwc does without each.
// Captures, forks, templates and Rebind are not optional.
package device

import (
	"pwc/ir/dtype"
	"pwc/program"
)

// Info describes a device. Properties has the values of the names that dims of programs may
// use besides symbols ("device.workers", "device.sms").
type Info struct {
	Target      string // target of programs for the device: "host", "cuda:sm_90"
	Name        string // for messages
	MemoryBytes int64  // total, or the most that Alloc gives out; 0: not known or not limited
	Properties  map[string]int64
}

// Device is one device. Its methods may be called from any goroutine. Methods of the
// objects that it makes may not be called concurrently unless their comments allow it.
//
// While a stream captures, some calls are refused with an error that matches
// [ErrCapturing]:
//
//   - Close, always;
//   - AllocHost, Load, NewSnapshot of a [FaultWatch], ReserveState of a [Reserver], Map of a
//     [State], freeing device memory and, on a GPU, closing programs: on the goroutine that
//     captures in mode global or thread-local, and in mode global on all goroutines (see
//     [CaptureMode]);
//   - TakeFaults of a stream that captures, and in mode global of every stream.
//
// Alloc is allowed, because the private pool of a capture takes segments. On systems other
// than Linux threads have no ids here, so every goroutine counts as the one that captures.
type Device interface {
	Info() Info

	// Alloc takes a segment of device memory, aligned to 512 bytes or more, as package mem
	// requires. Contents are undefined. It is allowed during a capture; in mode global, only
	// to the goroutine that captures.
	Alloc(bytes int64) (Memory, error)

	// AllocHost takes host memory that copies read and write directly (pinned
	// on a GPU).
	AllocHost(bytes int64) (HostMemory, error)

	NewStream() (Stream, error)
	NewEvent() (Event, error)

	// Load checks a program and makes it ready to bind. ops are the extern ops that its steps
	// may name.
	Load(p *program.Program, ops OpSet) (Executable, error)

	// TakeFaults waits for s, returns the indices out of range that kernels of these
	// programs met since the last call, and clears them (C12). Faults of other programs
	// remain. Without programs it takes the faults of all loaded programs.
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

	// Free gives the memory back. An error that matches ErrCapturing has changed nothing, and the
	// caller still owns the memory. After any other error the device owns it, at the latest until
	// Device.Close: a second Free returns ErrFreed and frees nothing.
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

// Slice returns bytes [off, off+n) of the buffer. It panics if they are outside the buffer.
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

// Stream is a queue of work that runs in order. An operation returns when it is
// enqueued; if it returns an error, it was not enqueued. A Launch, LaunchGraph or LaunchOp that
// fails may have enqueued a part of its work, and a copy that waits may fail after it was enqueued.
// A captured copy from or to the host uses the host's memory at every replay; a GPU refuses to
// capture it unless that memory is of AllocHost.
//
// Between BeginCapture and EndCapture operations are recorded and do not execute. The
// streams that were forked from the one that captures, directly or not, are recorded into
// the same graph. An operation that fails while it is recorded may spoil the capture:
// then EndCapture fails, too. Once EndCapture has ended the capture, with or without an
// error, none of these streams captures.
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
	// c.Capturing. While capturing, use only LaunchOp and Launch for ops: their nodes then have
	// the op's name, c.Origin and c.Loc, and Rebind knows their memory. An op that cannot be
	// captured, or that has results of more than 0 bytes and records nothing, is then refused
	// with [ErrNotCapturable].
	LaunchOp(op Op, c *OpCall) error

	Record(e Event) error // refused while capturing, unless a [Timer] made it: use Fork and Join
	Wait(e Event) error   // later work starts after the work before e's last record; refused while capturing
	Synchronize() error   // refused while capturing; other goroutines may enqueue work meanwhile

	// Fork makes later work of the other stream wait for the work that is enqueued on this
	// one. Join makes later work of this stream wait for the work that is enqueued on the
	// other. While this stream captures, Fork makes the other part of the capture; for Join
	// it must be part already. A dependency between a capture and work outside it is refused with
	// [ErrNotForked].
	Fork(to Stream) error
	Join(from Stream) error

	// Mark returns a mark after the enqueued work. Behind reports, without a call of the
	// driver, whether an event was recorded after the mark, and whether the device is known
	// to have passed it (see [Mark]). [Fence] uses both.
	Mark() Mark
	Behind(m Mark) (recorded, passed bool)

	// BeginCapture starts recording. Unless the mode is relaxed, the goroutine is
	// locked to its thread until the capture ends, and must itself make the captured calls
	// and call EndCapture.
	BeginCapture(mode CaptureMode) error

	// EndCapture ends recording and makes a graph. EndTemplate ends recording and makes a
	// template, from which graphs are made. If work of forked streams was not joined, the error
	// matches [ErrUnjoined] and names the streams. A call on a forked stream is refused with
	// [ErrWrongStream], a call of another goroutine than the capturing one with [ErrCapturing];
	// then the capture goes on. Every other error ends the capture.
	EndCapture() (Graph, error)
	EndTemplate() (Template, error)
	Capturing() bool // other goroutines may enqueue work meanwhile

	// Close ends the stream, and with it a capture that it began. It returns when the stream has no
	// more work, unless another stream captures or the driver's stream is the caller's. A stream that was
	// forked from a capture under way cannot be closed.
	Close() error
}

// Event marks a point in a stream. Before its first record it counts as done.
type Event interface {
	Query() (done bool, err error)
	Synchronize() error
	Close() error
}

// Executable is a loaded program.
type Executable interface {
	Program() *program.Program

	// ScratchBytes returns the bytes that Bind needs as Args.Scratch for these symbol values:
	// the program's own scratch, and that of the op that needs most.
	ScratchBytes(symbols []int64) (int64, error)

	// Bind resolves every address for symbol values, in the order of the
	// program's symbols. It checks guards, sizes and alignment. A device that runs machine code
	// cannot check which memory the code uses.
	Bind(symbols []int64, args Args) (BoundLaunch, error)

	Close() error
}

// Args is the memory that a program is bound to.
type Args struct {
	Params  []Buffer // one for each parameter
	Results []Buffer // one for each result; ignored if the result has Alias or Same (program.Result)
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
	// Raised reports whether a flag is set. It neither waits nor allocates. It sees the flags
	// of work whose event or stream the caller has waited for, and may see those of work that
	// still runs.
	Raised() bool

	// Faults returns the flags that are set, as [Device.TakeFaults] does, and clears none.
	Faults() []IndexError

	// NewSnapshot makes a snapshot. The caller closes it.
	NewSnapshot() (FaultSnapshot, error)
}

// FaultSnapshot separates the faults of the work before a point of a stream from those of
// the work after it, while both are enqueued.
type FaultSnapshot interface {
	// Take enqueues on s: the flags that work before it set are moved to the snapshot, so
	// that those of later work start clear. It is refused while s captures.
	Take(s Stream) error

	// Faults returns the faults that the last Take moved. They are valid once s has passed
	// that Take, until the next Take.
	Faults() []IndexError

	Close() error
}

// Op is an extern op on a device, such as a runner's kernel or attention, or a library routine.
type Op interface {
	// Signature returns the op's declaration.
	Signature() Signature

	// ScratchBytes returns the bytes that a launch with these operands needs in addition to
	// them. They are planned into the step. More rows must not need less: the memory that is
	// planned for the largest size serves steps of all sizes.
	ScratchBytes(args []Tensor, attrs []program.Attr) (int64, error)

	// Launch enqueues the op on c.Stream and returns. It must not wait for the
	// device. While c.Capturing it only enqueues, and reads metadata through
	// memory that stays where it is.
	Launch(c *OpCall) error
}

// Signature is the declaration of an op. A module that declares the op must have the same Mut and
// Results, and the same Version unless it states none.
type Signature struct {
	Name    string // "ns::op"
	Mut     []bool // by operand: the op writes it
	Results int    // their number
	Capture bool   // a graph may record the op
	Version string // of the implementation
}

// OpCall is one call of an op. Runs may pass the same OpCall to Launch; then only Rows
// and Meta change between them. A graph that recorded the op does not call it.
type OpCall struct {
	Stream  Stream
	Args    []Tensor // operands, then results
	Attrs   []program.Attr
	Scratch Buffer
	Meta    any   // the step's metadata, untouched
	Size    int64 // rows of the step with padding
	Rows    int64 // rows of the step without padding; the op must set padded rows of outputs to zero (C11)

	// RowExtents has, for each of Args, how many indices of the first axis are one row of
	// the step; 0: the tensor has no rows of the step. Nil: the caller does not know.
	RowExtents []int64
	Capturing  bool
	Origin     int32 // node of the piece
	Loc        string
	State      any // the op's own, kept from one launch of the call to the next
}

// RealExtent returns how many indices of the first axis of Args[i] are not padding: all
// if the tensor has no rows of the step, or RowExtents is nil. The tensor must have an axis.
func (c *OpCall) RealExtent(i int) int64 {
	n := c.Args[i].Shape[0]
	if i >= len(c.RowExtents) || c.RowExtents[i] == 0 {
		return n
	}
	return min(n, c.Rows*c.RowExtents[i])
}

// OpSet finds extern ops, or library routines, by name.
type OpSet map[string]Op
