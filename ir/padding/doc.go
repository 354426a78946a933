// Package padding proves that rows do not mix over a batch symbol, so that a
// step of n rows may be run with more (C11): whatever the padded rows hold, and
// however many there are, the first n rows of every result, and every state, come
// out as if the step had n rows.
//
// # The invariant
//
// Let S be the size symbol. The proof gives each value one of three classes, and
// the type of a value that is not mixed says which of the first two it has:
//
//   - uniform: S is in no extent. The value depends neither on padded rows nor on S.
//   - rows: exactly one axis has the extent S·g, with S not in g, and S is in no
//     other extent. Positions i·g … (i+1)·g−1 of that axis are batch row i: for a row
//     that is real they depend neither on padded rows nor on S. Reshaping
//     [S, 12·64] to [S·12, 64] makes g = 12.
//   - mixed: neither could be shown.
//
// A rule for each op of the table says when results keep the invariant, given
// operands that have it; where it cannot, the node is reported. What is computed
// from a mixed value is mixed and not reported again. An op without a rule is
// reported whenever it touches rows, so the proof is sound for ops to come.
//
// The classes do not say that real rows are independent of each other: a value
// made from the first row alone is uniform, because that row is always real.
//
// # Indices
//
// Whatever a padded row holds does not reach the others, but an index out of range
// that it names is a fault of the whole step (C12). Integer parameters hold 0 in
// padded rows, which a step may make −1: so bounds of integers in padded rows are
// carried along, and an op that takes indices from rows is reported unless they are
// in its table however small that is. A clamp is what makes unknown ones known.
//
// # Trust
//
// An extern op declared split is trusted to work row by row (it gets the step's
// metadata, and so knows which rows are real) and to write zeros in padded rows. One
// declared rowwise is trusted to keep rows of the first axis apart, and no more; any
// other extern op is not trusted. Padded rows of a parameter that another function made are
// taken for 0 too. Writing
// rows into memory that all rows share, at indices from a tensor, is safe only
// when padded rows write nowhere: the indices must come from a parameter whose
// padded rows hold −1, which its declaration ("padded -1") says, or the caller of [Check]
// promises by naming it.
package padding
