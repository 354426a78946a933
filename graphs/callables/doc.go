// Package callables captures functions of a training loop and their backwards, as
// torch.cuda.make_graphed_callables does: partial-network capture. The loop stays a loop of
// the host, with control flow between the functions and the optimizer outside.
//
// [New] captures the forwards of all functions in order, then their backwards in reverse
// order, into one private pool. [Callable.Forward] copies its arguments into static inputs and
// replays the forward; [Call.Backward] replays the backward later.
//
// # What is valid when
//
// Outputs and gradients lie in static memory, which the set owns. They need no release. A
// forward of a callable ends the validity of all gradients of its pool, and of the outputs of
// that callable and of those behind it; until then everything is readable. A read after that
// is a [graphs.StaleError]. Who retains an output or a gradient (graphs.Tensor.Retain) keeps it
// from being overwritten: the forward that would do so is a [graphs.HeldError].
//
// # Order
//
// Callables of one pool reuse each other's memory, so they run in the order of their capture:
// forwards in ascending order, any of them left out, then the backwards in reverse. Another
// order is an [OrderError]. Callables that may run in any order, or at the same time, get
// pools of their own ([Options].AnyOrder, or sets of their own).
package callables
