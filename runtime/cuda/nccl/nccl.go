// Package nccl calls NCCL, NVIDIA's library of collectives, which is opened at run time, without
// cgo. Opening it and asking for its version needs no GPU.
package nccl

import (
	"fmt"
	"unsafe"

	"pwc/ir/dtype"
	"pwc/runtime/cuda/dl"
)

// Options say where the library is.
type Options struct {
	// Path is the library's file; empty: Names by the loader's own rules, then in Dirs.
	Path string

	// Dirs are searched after the loader's own rules; nil: below $CUDA_HOME and
	// $CUDA_PATH, in /usr/local/cuda, /opt/cuda and the distribution's own folders.
	Dirs []string
}

// Names returns the file names that are known to work.
func Names() []string { return []string{"libnccl.so.2"} }

// MinVersion is the earliest version that is used, 2.23: the first with
// ncclCommInitRankScalable, which takes the id of a communicator by its address.
const MinVersion = 22300

// FormatVersion returns the usual form of a version: "2.28.9" for 22809.
func FormatVersion(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }

// NotFoundError says that the library could not be opened, and lists every place where it was
// looked for.
type NotFoundError = dl.NotFoundError

// ID names a communicator that is about to be made (ncclUniqueId): the addresses at which its ranks
// meet.
type ID [128]byte

// Comm is a rank of a communicator (ncclComm_t).
type Comm uintptr

// Op is the operation of a call.
type Op uint8

const (
	AllReduce     Op = iota // the sum of the sources of all ranks
	AllGather               // the sources of all ranks, in rank order
	ReduceScatter           // of the sum of the sources of all ranks, the part of this rank
	Broadcast               // the source of one rank
)

// String returns the name in NCCL's functions: "AllReduce".
func (o Op) String() string {
	return [...]string{"AllReduce", "AllGather", "ReduceScatter", "Broadcast"}[o]
}

// Call is a call of a collective. It completes after the earlier work of its stream, and not before
// all ranks whose sources it needs have made the call.
type Call struct {
	Op       Op
	Comm     Comm
	Dst, Src uint64      // addresses of device memory
	Count    int64       // elements of one rank's part: the smaller of destination and source
	DType    dtype.DType // F32, F16 or BF16, or I8 for bytes that are copied
	Root     int         // of a broadcast
	Stream   uintptr     // CUstream
}

// API is the part of NCCL that collectives use; tests replace it. The context of the rank's device
// is current in UniqueID, Init, Enqueue and Destroy. Init waits for all ranks of the communicator, and
// the first Enqueue may wait for them, so each rank needs a thread of its own.
type API interface {
	// Version returns the library's version, 22809 for 2.28.9.
	Version() int

	// UniqueID returns the id of a new communicator, which one rank asks for.
	UniqueID() (ID, error)

	// Init makes this rank's communicator for the current device.
	Init(ranks, rank int, id ID) (Comm, error)

	// Enqueue enqueues a call, or records it if the stream captures.
	Enqueue(c Call) error

	// AsyncError returns the error of calls that were enqueued, or nil. It may be called from any
	// thread.
	AsyncError(c Comm) error

	// Abort ends the kernels of a communicator, also those that wait for other ranks, and destroys it
	// once no graph has calls of it. It may be called from any thread.
	Abort(c Comm) error

	// Destroy destroys a communicator whose calls are done, once no graph has calls of it.
	Destroy(c Comm) error
}

// Library is NCCL. Its methods may be called from any goroutine.
type Library struct {
	path    string
	version int

	getVersion, uniqueID, init, asyncError, abort, destroy uintptr
	collectives                                            [Broadcast + 1]uintptr
}

var _ API = (*Library)(nil)

// Open opens the library and checks its version. If there is no library the error wraps a
// *NotFoundError.
func Open(o Options) (*Library, error) {
	lib, err := dl.Open("NCCL (libnccl)", "NVIDIA has it as libnccl2, pip as nvidia-nccl-cu13",
		dl.Toolkit{Path: o.Path, Names: Names(), Dirs: o.Dirs}.Paths())
	if err != nil {
		return nil, fmt.Errorf("nccl: %w", err)
	}
	l := &Library{path: lib.Path}
	if l.getVersion, err = lib.Symbol("ncclGetVersion"); err != nil {
		return nil, fmt.Errorf("nccl: %w", err)
	}
	var version int32
	if err := failed("GetVersion", dl.Call(l.getVersion, uintptr(unsafe.Pointer(&version)))); err != nil {
		return nil, err
	}
	if l.version = int(version); l.version < MinVersion {
		return nil, fmt.Errorf("nccl: %s is version %s; %s or later is needed", lib.Path, FormatVersion(l.version), FormatVersion(MinVersion))
	}
	for _, f := range []struct {
		to   *uintptr
		name string
	}{
		{&l.uniqueID, "GetUniqueId"}, {&l.init, "CommInitRankScalable"}, {&l.asyncError, "CommGetAsyncError"}, {&l.abort, "CommAbort"},
		{&l.destroy, "CommDestroy"}, {&l.collectives[AllReduce], "AllReduce"}, {&l.collectives[AllGather], "AllGather"},
		{&l.collectives[ReduceScatter], "ReduceScatter"}, {&l.collectives[Broadcast], "Broadcast"},
	} {
		if *f.to, err = lib.Symbol("nccl" + f.name); err != nil {
			return nil, fmt.Errorf("nccl: %w", err)
		}
	}
	return l, nil
}

// Path returns the path that was opened; a bare name was found by the loader's own rules.
func (l *Library) Path() string { return l.path }

// Version implements [API].
func (l *Library) Version() int { return l.version }

// UniqueID implements [API] (ncclGetUniqueId).
func (l *Library) UniqueID() (ID, error) {
	id := new(ID)
	err := failed("GetUniqueId", dl.Call(l.uniqueID, uintptr(unsafe.Pointer(id))))
	return *id, err
}

// Init implements [API] (ncclCommInitRankScalable, with one id and the default configuration).
func (l *Library) Init(ranks, rank int, id ID) (Comm, error) {
	comm := new(Comm)
	err := failed("CommInitRankScalable", dl.Call(l.init, uintptr(unsafe.Pointer(comm)), uintptr(ranks), uintptr(rank), 1, uintptr(unsafe.Pointer(&id)), 0))
	return *comm, err
}

// AsyncError implements [API] (ncclCommGetAsyncError).
func (l *Library) AsyncError(c Comm) error {
	state := new(int32)
	if err := failed("CommGetAsyncError", dl.Call(l.asyncError, uintptr(c), uintptr(unsafe.Pointer(state)))); err != nil {
		return err
	}
	if *state == inProgress {
		return nil
	}
	return failed("call that was enqueued", uintptr(*state))
}

// Abort implements [API] (ncclCommAbort).
func (l *Library) Abort(c Comm) error {
	return failed("CommAbort", dl.Call(l.abort, uintptr(c)))
}

// Destroy implements [API] (ncclCommDestroy).
func (l *Library) Destroy(c Comm) error {
	return failed("CommDestroy", dl.Call(l.destroy, uintptr(c)))
}

// Enqueue implements [API].
func (l *Library) Enqueue(c Call) error {
	t, ok := types[c.DType]
	if !ok {
		return fmt.Errorf("nccl: %s of %s; want f32, f16, bf16 or i8", c.Op, c.DType)
	}
	const sum = 0 // ncclSum
	fn := l.collectives[c.Op]
	args := []uintptr{uintptr(c.Src), uintptr(c.Dst), uintptr(c.Count), t}
	switch c.Op {
	case AllReduce, ReduceScatter:
		args = append(args, sum)
	case Broadcast:
		args = append(args, uintptr(c.Root))
	}
	return failed(c.Op.String(), dl.CallWith(fn, append(args, uintptr(c.Comm), c.Stream)))
}

// types has the ncclDataType_t of each dtype.
var types = map[dtype.DType]uintptr{dtype.I8: 0, dtype.F16: 6, dtype.F32: 7, dtype.BF16: 9}

// inProgress is ncclInProgress.
const inProgress = 7

// StatusError is a call of the library that failed.
type StatusError struct {
	Call   string
	Status int // ncclResult_t
}

// Error names the call and its status.
func (e *StatusError) Error() string {
	names := map[int]string{1: "an error of CUDA", 2: "an error of the system", 3: "an internal error", 4: "an invalid argument", 5: "invalid usage",
		6: "an error of another rank, or of the network", 8: "a time limit"}
	name, ok := names[e.Status]
	if !ok {
		name = "an unknown error"
	}
	return fmt.Sprintf("nccl: %s: %s (ncclResult_t %d); NCCL_DEBUG=WARN in the environment has NCCL print why", e.Call, name, e.Status)
}

func failed(call string, status uintptr) error {
	if s := int(int32(status)); s != 0 {
		return &StatusError{call, s}
	}
	return nil
}
