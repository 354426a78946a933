// Package tree replays sequences of functions from graphs, as PyTorch's CUDAGraph Trees do
// (torch/_inductor/cudagraph_trees.py). The caller does not declare which function follows which.
//
// A [Manager] owns one pool and one stream. If nothing else happens, the first call of a function runs it
// eagerly with memory of the pool (warm-up), the second call records it, and later calls replay the
// recording. A recording contains addresses, and the live memory of the pool at its start determined which
// addresses were free. So recordings form a tree. A node is a recording of one function after its
// parent node, and serves a call only if the parent is the current node. When all outputs of a path
// are released, or when a generation starts, the next call starts at a root, unless a recording after
// the current node serves it or it warms up after a replay.
//
// # Inputs
//
// Static inputs outside of the pool are read in place; one at a new address needs a sibling recording.
// Outputs of the current path are read in place, too. All other inputs, and those that are not aligned
// to 16 bytes, are copied into memory of the pool, which the function may reuse after it releases the
// input.
//
// # Outputs
//
// Outputs belong to the caller, who releases them. A call that starts at a root makes the outputs of the
// previous generation stale. A read of a stale output is a [graphs.StaleError].
package tree
