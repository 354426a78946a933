// Package driver has the part of the CUDA driver API that pwc uses, as an interface. Open
// returns an implementation that calls libcuda; package fake has one for tests. Names and
// meanings are those of the driver, without the prefix "cu".
package driver

import "unsafe"

// Handles of the driver. Device is an index from 0; for the others 0 is no handle. A zero Stream
// would be the legacy default stream, which is never used.
type (
	Device     int32
	Context    uintptr
	Stream     uintptr
	Event      uintptr
	Module     uintptr
	Function   uintptr
	Graph      uintptr
	GraphExec  uintptr
	GraphNode  uintptr
	Ptr        uint64 // device address
	Allocation uint64 // physical memory, CUmemGenericAllocationHandle
)

// CaptureMode says which calls a capture forbids (CUstreamCaptureMode).
type CaptureMode int32

const (
	CaptureGlobal      CaptureMode = 0 // unsafe calls fail on the capturing thread and on all threads of mode global
	CaptureThreadLocal CaptureMode = 1 // unsafe calls fail on the capturing thread
	CaptureRelaxed     CaptureMode = 2 // no calls fail
)

// NodeType is the type of a graph's node (CUgraphNodeType).
type NodeType int32

const (
	NodeKernel NodeType = 0
	NodeMemcpy NodeType = 1
	NodeMemset NodeType = 2
	NodeHost   NodeType = 3
	NodeGraph  NodeType = 4
	NodeEmpty  NodeType = 5
	NodeWait   NodeType = 6
	NodeRecord NodeType = 7
	NodeAlloc  NodeType = 10
	NodeFree   NodeType = 11
)

// String returns the type's name in the driver's documentation.
func (t NodeType) String() string {
	names := [...]string{"kernel", "memcpy", "memset", "host", "graph", "empty", "wait event", "event record",
		"semaphore signal", "semaphore wait", "memory allocation", "memory free", "batch memory operation", "conditional"}
	if t >= 0 && int(t) < len(names) {
		return names[t]
	}
	return "unknown"
}

// Attribute is a property of a device (CUdevice_attribute).
type Attribute int32

// P2PAttribute is a CUdevice_P2PAttribute (cuda.h).
type P2PAttribute int32

// P2PNativeAtomics is CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: 1 if atomic operations cross the link, as
// they do over NVLink and not over PCIe.
const P2PNativeAtomics P2PAttribute = 3

const (
	AttrWarpSize            Attribute = 10
	AttrMultiprocessors     Attribute = 16
	AttrPCIBus              Attribute = 33
	AttrPCIDevice           Attribute = 34
	AttrL2Bytes             Attribute = 38
	AttrThreadsPerSM        Attribute = 39
	AttrPCIDomain           Attribute = 50
	AttrComputeMajor        Attribute = 75
	AttrComputeMinor        Attribute = 76
	AttrSharedBytesPerSM    Attribute = 81
	AttrRegistersPerSM      Attribute = 82
	AttrSharedBytesPerBlock Attribute = 97 // with the opt-in
	AttrVirtualMemory       Attribute = 102
	AttrBlocksPerSM         Attribute = 106
)

// FuncAttribute is a property of a kernel (CUfunction_attribute).
type FuncAttribute int32

const (
	FuncMaxThreads       FuncAttribute = 0 // per block
	FuncStaticShared     FuncAttribute = 1 // bytes
	FuncMaxDynamicShared FuncAttribute = 8 // bytes; may be set
)

// Launch attributes (CUlaunchAttributeID).
const (
	LaunchCooperative  int32 = 2
	LaunchCluster      int32 = 4
	LaunchProgrammatic int32 = 6 // programmatic stream serialization
)

// MemHandle identifies memory for other processes of the host, in the layout of CUipcMemHandle.
type MemHandle [64]byte

// LaunchConfig is how a kernel is launched, in the layout of CUlaunchConfig.
type LaunchConfig struct {
	Grid, Block [3]uint32
	Shared      uint32 // dynamic, bytes
	Stream      Stream
	Attrs       *LaunchAttr
	NumAttrs    uint32
}

// LaunchAttr is a launch attribute, in the layout of CUlaunchAttribute.
type LaunchAttr struct {
	ID    int32
	_     int32
	Value [16]uint32 // the attribute uses the first words
}

// EventFlags are those of cuEventCreate.
type EventFlags uint32

const (
	EventTimed   EventFlags = 0
	EventUntimed EventFlags = 2 // CU_EVENT_DISABLE_TIMING
)

// Driver is the part of the CUDA driver API that pwc uses. Calls with objects of a context need
// the context to be current on the calling thread. Errors are *Error, or nil. A method without a
// comment of its own calls the function of cuda.h with the prefix "cu". It has the function's
// parameters, except those that pwc never varies, and returns the values that the function writes.
type Driver interface {
	// Library returns the driver's library: a path, or a bare name that the
	// loader resolved by its own rules.
	Library() string

	// DriverGetVersion returns 1000·major + 10·minor of the newest CUDA that the
	// driver supports.
	DriverGetVersion() (int, error)
	DeviceGetCount() (int, error)
	DeviceGetName(Device) (string, error)
	DeviceGetAttribute(Attribute, Device) (int, error)
	DeviceTotalMem(Device) (int64, error)
	DevicePrimaryCtxRetain(Device) (Context, error)
	DevicePrimaryCtxRelease(Device) error
	CtxSetCurrent(Context) error

	// DeviceCanAccessPeer reports whether kernels of d can reach memory of peer.
	DeviceCanAccessPeer(d, peer Device) (bool, error)

	// DeviceGetP2PAttribute returns an attribute of the link from d to peer.
	DeviceGetP2PAttribute(a P2PAttribute, d, peer Device) (int, error)

	// CtxEnablePeerAccess lets the current context reach memory of another.
	CtxEnablePeerAccess(peer Context) error

	MemGetInfo() (free, total int64, err error)
	MemAlloc(bytes int64) (Ptr, error)
	MemFree(Ptr) error
	// MemHostAlloc allocates pinned memory that all contexts can use, mapped into the
	// device's address space.
	MemHostAlloc(bytes int64) (unsafe.Pointer, error)
	MemFreeHost(unsafe.Pointer) error
	MemHostGetDevicePointer(unsafe.Pointer) (Ptr, error)

	// The three methods below share memory of MemAlloc with another process, which must close it
	// before this process frees it.
	IpcGetMemHandle(Ptr) (MemHandle, error)
	IpcOpenMemHandle(MemHandle) (Ptr, error)
	IpcCloseMemHandle(Ptr) error

	// Reserved address space, and physical memory mapped into it. MemGranularity returns the
	// recommended granularity of both, in bytes (cuMemGetAllocationGranularity).
	MemGranularity(Device) (int64, error)
	MemAddressReserve(bytes int64) (Ptr, error)
	MemAddressFree(p Ptr, bytes int64) error
	MemCreate(bytes int64, d Device) (Allocation, error)
	MemRelease(Allocation) error
	MemMap(p Ptr, bytes int64, a Allocation) error
	MemUnmap(p Ptr, bytes int64) error
	MemSetAccess(p Ptr, bytes int64, d Device) error

	// Copies on a stream.
	MemcpyHtoDAsync(dst Ptr, src unsafe.Pointer, bytes int64, s Stream) error
	MemcpyDtoHAsync(dst unsafe.Pointer, src Ptr, bytes int64, s Stream) error
	MemcpyDtoDAsync(dst, src Ptr, bytes int64, s Stream) error
	// MemsetAsync sets n elements of width 1, 2 or 4 bytes.
	MemsetAsync(dst Ptr, element uint32, width int, n int64, s Stream) error

	StreamCreate() (Stream, error) // non-blocking
	StreamDestroy(Stream) error
	StreamSynchronize(Stream) error
	StreamWaitEvent(Stream, Event) error
	StreamBeginCapture(Stream, CaptureMode) error
	StreamEndCapture(Stream) (Graph, error)
	// StreamAddGraph adds a graph as a node to the stream's capture.
	StreamAddGraph(Stream, Graph) error
	// StreamCaptureNode returns the node that the stream recorded last; 0 if the driver
	// cannot tell.
	StreamCaptureNode(Stream) (GraphNode, error)
	// ThreadExchangeStreamCaptureMode sets the calling thread's mode and returns
	// the mode before.
	ThreadExchangeStreamCaptureMode(CaptureMode) (CaptureMode, error)

	EventCreate(EventFlags) (Event, error)
	EventDestroy(Event) error
	EventRecord(Event, Stream) error
	// EventRecordExternal adds a node that records the event to the stream's capture
	// (cuEventRecordWithFlags).
	EventRecordExternal(Event, Stream) error
	// EventQuery reports whether the work before the event is done.
	EventQuery(Event) (bool, error)
	EventSynchronize(Event) error
	EventElapsedTime(start, end Event) (milliseconds float32, err error)

	// ModuleLoadData loads a cubin, or PTX, which it compiles. log is the compiler's
	// log of errors.
	ModuleLoadData(image []byte, ptx bool) (m Module, log string, err error)
	ModuleUnload(Module) error
	ModuleGetFunction(Module, string) (Function, error)
	FuncGetAttribute(FuncAttribute, Function) (int, error)
	FuncSetAttribute(Function, FuncAttribute, int) error
	// FuncParamSizes returns the bytes of each parameter; known is false if the driver
	// cannot tell (before CUDA 12.4).
	FuncParamSizes(Function) (sizes []int64, known bool, err error)
	// LaunchKernel takes one address for each parameter.
	LaunchKernel(f Function, c *LaunchConfig, params *unsafe.Pointer) error

	// GraphNodeTypes returns the type of each node (cuGraphGetNodes, cuGraphNodeGetType).
	GraphNodeTypes(Graph) ([]NodeType, error)
	// GraphInstantiate makes a graph executable (cuGraphInstantiateWithFlags).
	GraphInstantiate(Graph) (GraphExec, error)
	GraphUpload(GraphExec, Stream) error
	GraphLaunch(GraphExec, Stream) error
	GraphExecDestroy(GraphExec) error

	// Changes of nodes of an executable graph, for later launches. Nodes are those of the
	// graph that it was made from. A kernel gets all its arguments. A copy or a fill gets
	// addresses of device memory; if dst or src of a copy is 0, that side gets its address in
	// that graph (cuGraphExecMemcpyNodeSetParams, cuGraphExecMemsetNodeSetParams).
	GraphExecKernelNodeSetParams(x GraphExec, n GraphNode, f Function, c *LaunchConfig, params *unsafe.Pointer) error
	GraphExecMemcpyNodeSetAddresses(x GraphExec, n GraphNode, ctx Context, dst, src Ptr) error
	GraphExecMemsetNodeSetAddress(x GraphExec, n GraphNode, ctx Context, dst Ptr) error

	GraphDestroy(Graph) error
}
