// Package ptx executes kernels in PTX, the instruction set of NVIDIA's virtual machine, on the host.
// So a machine without a GPU can run kernels that NVRTC compiled, and can find faults that a GPU does
// not report or shows at random only.
//
// [Parse] reads a module and decodes every instruction; an unknown instruction is an error that names
// it. [Machine.Run] executes a launch: the blocks of a cluster together, and clusters one after
// another. The 32 lanes of a warp execute together until they diverge. Of diverged lanes, those with the
// lowest address execute first, until they converge. Instructions with .sync wait for the lanes that
// their mask names, or for the whole warp. The order of clusters, and of the warps of a cluster, changes from launch to
// launch, because the results of a kernel must not depend on these orders. Only the clusters of a kernel
// that polls global memory ([Entry.Spins]) execute in the order of their numbers.
//
// It is stricter than a GPU where a program must not rely on luck:
//
//   - cp.async writes shared memory when its group is waited for, not before.
//   - An arrival at an mbarrier that waits for copies (cp.async.mbarrier.arrive.noinc) happens when no
//     warp can execute anything else, and its copies write shared memory then.
//   - wgmma.mma_async reads shared memory, and writes registers, when its group is waited for. Its
//     operands in shared memory must not be written between the instruction and the wait. It must
//     only read memory that was written before a fence.proxy.async of the writing warp or of a warp of
//     the warpgroup. Registers with the left matrix are read at the wait, too: a register that was
//     written too early contributes its new value.
//   - Data of st.async may be accessed after a wait for the phase of the mbarrier whose transactions the
//     store completes, or after a barrier with a warp that has waited. Nothing else orders the
//     store, not even barriers of its own warp, and the store orders no other access of its warp.
//     For each st.async to its shared memory a warp of the block has to have waited before the block ends.
//   - A relaxed arrival at the cluster's barrier orders only accesses before a fence.mbarrier_init.
//   - A warp that has arrived at the cluster's barrier has to wait there before it ends. Otherwise the
//     kernel never ends under compute-sanitizer's racecheck.
//   - An instruction must not arrive at an mbarrier more often than the phase still expects, and must not
//     arrive where no mbarrier is or where other data overwrote it.
//   - Shared memory is full of NaN when a block starts.
//   - Accesses of two threads to the same bytes of shared memory, at least one of them a write, need a
//     barrier between them, also if the threads are lanes of one warp (PTX ISA, "Memory Consistency
//     Model"). Of the warps that read since the last write, only the last two are remembered. A write
//     that changes nothing needs no barrier after earlier accesses; later accesses need one after it.
//   - A block must not read global memory that a block of another cluster wrote, and must not change it,
//     unless the kernel has atomic operations.
//   - A kernel that may start before earlier kernels end must not write global memory before
//     griddepcontrol.wait, nor read memory that the earlier kernels write. If the kernel before it
//     (the predecessor) waits before it triggers this one, only two things are forbidden: access to memory
//     that the predecessor writes, and writes to memory that the predecessor reads. If no thread of a
//     kernel that may start early waits, no other such kernel may follow it.
//   - A lane that the mask of shfl.sync or vote.sync names must execute that instruction. A lane that
//     reads from a lane outside of the mask gets NaN.
//   - A cache policy has to be the result of createpolicy.
//   - An access outside an allocation, an access that is not aligned, and a wait that cannot end are
//     errors that end the launch.
//
// It is less strict, or less general, than a GPU in the following:
//
//   - atom and red may access shared memory without a barrier, whatever the other accesses are.
//   - mbarrier.try_wait waits until the phase ends; its result is never false.
//   - An arrival at an mbarrier and wgmma.wait_group order accesses of the lanes of the warp, as
//     bar.warp.sync does. An arrival that waits for copies also orders the warp's other accesses
//     before it.
//   - st.async stores immediately, and completes its transactions immediately.
//   - fence.mbarrier_init publishes all accesses of its warp and all that were ordered before them, not
//     only the mbarriers that its thread made. It also orders accesses of the lanes of the warp.
//   - st.async works for at most 64 mbarriers of a cluster; an mbarrier that is made again counts again.
//   - fence.proxy.async also covers later writes of its warp, until the warp's next barrier, arrival,
//     fence.mbarrier_init or wgmma.wait_group.
//   - The warps of a warpgroup multiply independently: it is not detected if they are not synchronized
//     or have different descriptors. Only the first wgmma.mma_async of a warp requires a wgmma.fence.
//   - wgmma.mma_async supports matrices of bf16 or f16 with sums in f32. The left one is in registers, or
//     K-major in shared memory; the right one is K-major in shared memory, or N-major from a
//     multiple of 64 columns. In shared memory they have the 128-byte swizzle.
//
// Numbers: add, sub, mul, fma, div.rn, sqrt.rn and conversions round as IEEE 754 requires, in the
// mode of the instruction. Their NaN results in f32 are 0x7fffffff, as on a GPU. The approximations (ex2, lg2,
// sin, cos, tanh, rcp, rsqrt, sqrt and div with .approx or .full) are computed in float64 and rounded once, which is
// more exact than a GPU; only div.approx by a finite divisor above 2^126 in magnitude divides by infinity, as PTX
// defines it.
// mma.sync and wgmma.mma_async add the products of a step and the accumulator in
// float64 and round once. A tensor core truncates addends to a few bits more than an f32 has, so
// results differ in the last bits.
package ptx
