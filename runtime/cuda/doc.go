// Package cuda is NVIDIA GPUs as devices. libcuda is opened at run time, so a
// program that imports this package builds without cgo and without CUDA, and
// runs where there is none: [Open] then says what it looked for.
//
// # Programs
//
// A program for a GPU names its target "cuda:sm_90" and holds each kernel as a cubin
// and as the PTX that it was made of. A device takes the cubin of programs for its
// own architecture and for earlier ones of its major version. Of those for earlier
// major versions it takes the PTX, which the driver compiles when it is loaded; that
// is compilation, which [Device.Takes] and [Device.CompilesAtLoad] tell beforehand and
// [Device.PTXCompiled] counts. The name of a program.Kernel is its entry point, an
// extern "C" __global__ function.
//
// The parameters of a kernel, each of 8 bytes, are in this order:
//
//   - an address for each of the step's Args, null for a buffer of no bytes;
//   - a 64-bit integer for each dim of the launch attribute [AttrDims];
//   - if the launch has the attribute [AttrFaults], the address of an array of
//     32-bit words, one for each node that the attribute lists. The kernel stores
//     a value that is not zero to the word of a node that met a position out of
//     range (C12). It must not read the words;
//   - if the launch has the attribute [AttrPeers], what [Device.AddPeers] was given for the
//     group.
//
// Load holds the parameters of every kernel to this, as the driver tells them (CUDA
// 12.4) or else the code itself. The other launch attributes are [AttrPDL], [AttrCluster]
// and [AttrCooperative].
//
// Bind refuses a dim that is larger than the number of elements of every buffer that
// the kernel is given: the kernel would read and write past them. Dims that no buffer
// bounds, numbers to compute with and extents of what a kernel makes up, are listed in
// the attribute [AttrFree]. This finds programs that contradict themselves. Nothing
// proves what machine code does: who loads a program trusts whoever made it.
//
// Dims of a launch may use the properties of the device that Properties of
// device.Info lists, among them device.sms, device.shared_bytes and device.l2_bytes.
//
// # Threads
//
// The driver keeps a current context for each thread of the operating system,
// and a capture begins and ends on one thread. Every call here locks its
// goroutine to its thread for as long as it lasts, and makes the context current
// first. Between [Stream.Enter] and [Stream.Leave] that happens once. From
// BeginCapture to EndCapture the goroutine stays locked; both, and what is
// captured between them, are calls of one goroutine.
//
// While a stream captures, calls that a capture must not meet are refused on the
// capturing goroutine with device.ErrCapturing. On other goroutines loads wait
// for the end of the capture, and what is freed or closed there goes back to the
// driver after it. Allocations, launches and waits of other goroutines go on.
//
// # Memory for copies
//
// Copies from and to memory of AllocHost are asynchronous: they read and write
// it when they execute. Copies from and to other memory return when they are
// done, and cannot be captured.
package cuda
