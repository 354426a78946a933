// Package cuda implements devices on NVIDIA GPUs. libcuda is opened at run time, so a
// program that imports this package builds without cgo and without CUDA, and
// runs on machines without CUDA: there [Open] returns an error.
//
// # Programs
//
// A program for a GPU names its target, such as "cuda:sm_90", and has each kernel as a cubin,
// as PTX of the same source, or as both. A device takes the cubin of programs for its
// own compute capability, and for earlier minor versions of its major version unless the
// target is arch-specific ("cuda:sm_90a") or one of the two GPUs is part of a Tegra chip.
// Otherwise it takes the PTX, if the target is its own or an earlier one and has no suffix a
// or f, and the driver compiles it in Load.
// [Device.Takes] and [Device.CompilesAtLoad] report this before Load, and
// [Device.PTXCompiled] counts it. The name of a program.Kernel is its entry point, an
// extern "C" __global__ function.
//
// The parameters of a kernel, each of 8 bytes, are in this order:
//
//   - an address for each of the step's Args, null for a buffer of 0 bytes;
//   - a 64-bit integer for each dim of the launch attribute [AttrDims];
//   - if the launch has the attribute [AttrFaults], the address of an array of
//     32-bit words, one for each node that the attribute lists. The kernel stores
//     a value that is not zero to the word of a node that met an index out of
//     range (C12). It must not read the words;
//   - if the launch has the attribute [AttrPeers], the params of [Device.AddPeers] for the
//     group.
//
// Load checks the number and sizes of a kernel's parameters if the driver (CUDA 12.4 and
// later) or the code itself gives them. The other launch attributes are [AttrFree],
// [AttrPDL], [AttrCluster] and [AttrCooperative].
//
// Unless the grid has no blocks, Bind refuses a dim that is larger than the number of elements
// of every buffer that the kernel is given: the kernel might read or write past them. The
// attribute [AttrFree] lists dims that Bind does not check, such as numbers to compute with. No
// check can tell which memory machine code uses: load only programs of a trusted maker.
//
// Dims of a launch may use the properties of the device that Properties of
// device.Info lists, among them device.sms, device.shared_bytes and device.l2_bytes.
//
// # Threads
//
// The driver keeps a current context for each thread of the operating system,
// and a capture begins and ends on one thread. A call that needs the context locks its
// goroutine to its thread while it lasts, and makes the context current first. Between
// [Stream.Enter] and [Stream.Leave] most calls of the stream need neither. From BeginCapture to
// EndCapture the goroutine stays locked, unless the mode is relaxed, and makes all calls of the
// capture.
//
// While a stream captures in mode global or thread-local, calls that the mode forbids (see
// device.CaptureMode) are refused with device.ErrCapturing on the capturing goroutine, and in
// mode global on all goroutines. In mode thread-local, loads of other goroutines wait for the
// end of the capture, and objects that they free or close go back to the driver after it.
// Other goroutines may still allocate, launch and wait.
//
// # Memory for copies
//
// Copies from and to memory of AllocHost are asynchronous: they read and write
// it when they execute. Copies from and to other memory return when they are
// done, and cannot be captured.
package cuda
