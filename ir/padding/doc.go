// Package padding proves that rows do not mix over a batch symbol, so that a step of
// n rows may be run with more rows (C11). The first n rows of every result, and every
// state, are then the same as in a step of n rows, for any number and contents of
// padded rows that keep the promises of section Trust.
//
// # The invariant
//
// Let S be the size symbol. The proof gives each value one of three classes, and
// the type of a value that is not mixed determines which of the first two it has:
//
//   - uniform: S is in no extent. The value depends neither on padded rows nor on S.
//   - rows: exactly one axis has the extent S·g, with S not in g, and S is in no
//     other extent. Indices i·g … (i+1)·g−1 of that axis are batch row i. Real rows
//     depend neither on padded rows nor on S. Reshaping [S, 12·64] to [S·12, 64]
//     makes g = 12.
//   - mixed: neither could be proved.
//
// A rule for each op of the table tells when results keep the invariant, given operands
// that keep it. If a node does not, it is reported and its results are mixed. Values that
// are computed from a mixed value are mixed and not reported again.
//
// The classes do not say that real rows are independent of each other: a value
// made from the first row alone is uniform, because that row is always real.
//
// # Indices
//
// Values of padded rows do not reach other rows, but an index out of range in a padded
// row is an error of the whole step (C12). Integer and bool parameters hold 0 in padded rows, and a
// node may make an invalid index of that 0, such as −1. So the analysis computes bounds of
// integers in padded rows. An op that takes indices from rows is reported unless the bounds
// are within the table's extent for every size, or padded rows have the same indices as real
// rows. A clamp gives bounds to unknown integers.
//
// # Trust
//
// An extern op declared split is trusted to work row by row (it gets the step's
// metadata, and so knows which rows are real) and to write zeros in padded rows. An op
// declared rowwise is trusted only to keep rows of the first axis independent. Other extern
// ops are not trusted. Integer and bool parameters are trusted to hold 0 in padded rows, or the −1
// of the next paragraph, even if another function computed them.
//
// Writing rows into memory that all rows share, at indices from a tensor, is safe only
// if padded rows write nothing: the indices must come from a parameter whose padded rows
// hold −1. Either its declaration ("padded -1") promises that, or the caller of [Check] does
// by naming the parameter.
package padding
