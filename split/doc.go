// Package split cuts a function into pieces at the ops that cannot be captured
// into a graph, by the rules of vLLM's piecewise compilation
// (vllm/compilation/backends.py, split_graph), and says how the pieces connect.
//
// Nodes stay in program order and are numbered from 0: an op on the list starts
// a new number, and so does the node after it. Textually consecutive splitting
// ops share one. A piece made of one lone empty allocation joins the previous
// non-splitting piece, if its inputs exist there; numbers may then have gaps.
// L splitting ops between ordinary ops give 2L+1 pieces, L+1 of them capturable.
//
// What crosses a cut is storage, not versions: a piece that writes a buffer
// allocated elsewhere takes it as a mut parameter and returns nothing for it.
// Since order never changes, the memory of a storage holds exactly the version
// that the text means wherever it is read. Hence no result of a piece shares
// memory with a parameter or with another result.
package split
