// Package ptx executes kernels in PTX, the instruction set of NVIDIA's virtual
// machine, on the host: so that a machine without a GPU runs what NVRTC makes of
// kernels, and finds what a GPU would forgive or punish at random.
//
// [Parse] reads a module and decodes every instruction; one that it does not
// know is an error that names it. [Machine.Run] executes a launch: the blocks of a
// cluster together, clusters one after another, the 32 lanes of a warp in step
// while their ways are one. Of lanes that parted, those at the lowest address go
// first, until they meet again. Instructions that end in .sync wait for the lanes
// that they name. Each launch has another order of clusters, and of the warps of
// one: what a kernel computes must not depend on it.
//
// It is stricter than a GPU where programs must not rely on luck:
//
//   - What cp.async copies is in shared memory when its group is waited for, not
//     before.
//   - An arrival at an mbarrier that tells of copies (cp.async.mbarrier.arrive.noinc)
//     happens when nothing else can be done, and they land then.
//   - wgmma.mma_async reads shared memory, and writes registers, when its group is
//     waited for; what it reads may not be written from the instruction on until then.
//     It reads what was written before a fence.proxy.async of the warp that wrote it or
//     of one of the warpgroup, and what was written after is an error.
//     Registers that the left matrix is in are read when the group is waited for, too:
//     what was written to them too early is multiplied.
//   - What st.async stores may be touched after a wait for the phase of the mbarrier whose
//     transactions it completes, or after a barrier with a warp that has waited: nothing else
//     orders it, its own warp's barriers neither, and it orders nothing else that its warp
//     did. A block may not end before one of its warps knows that what others stored, or it
//     itself, is there.
//   - A relaxed arrival at the cluster's barrier orders nothing but what was before a
//     fence.mbarrier_init.
//   - A warp that has arrived at the cluster's barrier has to wait there before it ends: a
//     kernel where one does not never ends under compute-sanitizer's racecheck.
//   - More arrivals of one instruction than a phase of an mbarrier still expects are an
//     error, as are those where there is none, or something else was written over it.
//   - Shared memory is full of NaN when a block starts.
//   - Two accesses to the same bytes of shared memory, one a write, that no
//     barrier orders are an error, also between lanes of one warp: only
//     bar.warp.sync orders these (PTX ISA, "Memory Consistency Model"). Of the
//     readers since the last write the last two warps are known. Writes of what is
//     there already pass.
//   - What a block wrote to global memory, one of another cluster may neither read nor
//     overwrite, unless the kernel has atomic operations.
//   - A kernel that may start before earlier ones end neither writes before
//     griddepcontrol.wait nor reads what they write. Where the one before lets it begin
//     only behind its own wait, it keeps clear of what that one works with. If none
//     of its threads waits none follows that may start early.
//   - A lane that shfl.sync or vote.sync names must come to that instruction;
//     what a lane reads from one that does not take part is NaN.
//   - A cache policy that createpolicy did not make is an error.
//   - An access outside an allocation, or one that is not aligned, ends the
//     launch, as do waits that nothing ends, be it for a phase of an mbarrier.
//
// Where it is not as strict, or not as general:
//
//   - mbarrier.try_wait waits until the phase ends: it is never false.
//   - An arrival at an mbarrier and wgmma.wait_group order accesses of the lanes of the
//     warp, as bar.warp.sync does; an arrival that tells of copies orders the warp's
//     other accesses before it, too.
//   - st.async stores at once, and completes its transactions at once.
//   - fence.mbarrier_init tells of all that its warp did before it, and knew of others, not
//     only of barriers that its thread made, and orders accesses of the lanes of the warp, as
//     bar.warp.sync does.
//   - st.async is known of 64 barriers of a cluster, made anew included.
//   - fence.proxy.async also counts for what its warp wrote after it, until the next
//     barrier, arrival or wgmma.wait_group.
//   - The warps of a warpgroup multiply each for itself: that they do not wait for each
//     other, or have other descriptors, does not show. That wgmma.fence is there is only
//     asked of the first product.
//   - wgmma.mma_async is known of matrices of bf16 or f16 with sums in f32: the left one in
//     registers, or in shared memory along K, the right one in shared memory along K or,
//     from a multiple of 64 columns on, along N. In shared memory they are exchanged in
//     128 bytes.
//
// Numbers: add, sub, mul, fma, div.rn, sqrt.rn and conversions round as IEEE 754
// has it, in the mode asked for, and NaN results are 0x7fffffff, as on a GPU. The
// approximations (ex2, lg2, sin, cos, rcp, rsqrt, sqrt and div with .approx) are
// those of float64 rounded once, which is closer than a GPU's. mma.sync adds the
// products of a step and the accumulator in float64 and rounds once; a tensor core
// truncates addends to a few bits more than those of an f32, so results differ in
// the last bits. wgmma.mma_async adds as mma.sync does.
package ptx
