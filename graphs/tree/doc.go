// Package tree replays sequences of functions from graphs without being told which
// function follows which, as CUDAGraph Trees of PyTorch do
// (torch/_inductor/cudagraph_trees.py).
//
// A [Manager] owns one pool and one stream. A function runs three times in different
// ways: first eagerly with memory of the pool (warm-up), then it is recorded, then it
// is replayed. A recording holds addresses, and what was live in the pool when it was
// made decides which addresses are free. So recordings form a tree: a node is one
// recording of a function behind the node before it, and a call is served by a node
// only behind that node. When every output of a path is released, or when a new
// generation starts, the next call starts at a root again.
//
// # Inputs
//
// Static inputs are read where they lie; a static input that moves gives a sibling
// recording. Outputs of the current path are read where they lie, too. All other
// inputs are copied into memory of the pool, which the function may reuse after it
// released the input.
//
// # Outputs
//
// Outputs belong to the caller, who releases them. A generation that starts takes the
// outputs of the one before away: reading one is a [graphs.StaleError].
package tree
