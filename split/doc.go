// Package split cuts a function into pieces at the ops that cannot be captured into a graph, by
// the rules of vLLM's piecewise compilation (vllm/compilation/backends.py, split_graph). A plan
// describes how the pieces connect.
//
// Pieces are numbered from 0, in program order: a splitting op starts a new number, and so does the
// node after it. Consecutive splitting ops share a number. A piece of only one empty allocation
// joins the previous non-splitting piece, if its inputs exist there; numbers may then have gaps. All
// other nodes stay in program order. L splitting ops between ordinary ops give 2L+1 pieces, L+1 of
// them capturable.
//
// A cut passes storage, not versions: a piece that writes a buffer of another piece takes it as a
// mut parameter and returns nothing for it, so no result of a piece shares memory with a parameter or
// another result. The order of reads and writes never changes, so at every read the memory has the
// version that the text means.
package split
