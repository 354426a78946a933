// Package callables captures functions of a training loop and their backwards, as
// torch.cuda.make_graphed_callables does: partial-network capture. The loop itself stays on the
// host. It has the control flow between the functions, and runs the optimizer outside of the graphs.
//
// [New] captures the forwards of all functions in order, then their backwards in reverse
// order, by default into one private pool. [Callable.Forward] copies its arguments into static inputs and
// replays the forward; [Call.Backward] replays the backward later.
//
// # Validity
//
// Outputs and gradients are in static memory that the set owns, so they need no release. A forward
// of a callable invalidates all gradients of the set's callables that share its pool, and the outputs of
// that callable and of later ones; a later read is a [graphs.StaleError]. [Set.Close] releases all of
// them. A caller that retains an output or a gradient (graphs.Tensor.Retain) keeps its contents: a forward
// that would overwrite it is refused with a [graphs.HeldError].
//
// # Order
//
// Callables of a set that share a pool reuse each other's memory, so they run in the order of their capture: first
// forwards in ascending order, then backwards in reverse order. A step may skip callables. A forward of
// a callable whose backward, or that of a later one, is pending is an [OrderError], and so is a backward
// before that of a later forward. Callables that run in any order, or concurrently, need separate pools:
// set [Options].AnyOrder, or make a set for each. Sets that run concurrently and call library routines also
// need different capturing streams ([Options].Stream).
package callables
