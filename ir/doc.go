// Package ir is the tensor language of pwc: a typed SSA graph with symbolic
// extents, its table of ops, a builder, a parser, a printer, a verifier and a
// canonical hash.
//
// A [Module] declares symbols, extern ops, weights and states, and holds
// functions. A [Func] is straight-line code: nodes in program order over a
// dense table of values. Memory is explicit but still SSA: an op that writes
// an operand defines a new value, a version of the storage that it wrote. In the text,
// later reads of the operand read that version (C1 of docs/architecture.md).
package ir
