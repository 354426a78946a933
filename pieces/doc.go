// Package pieces turns the pieces of split functions into programs: one artifact
// for each distinct piece, shape and target, taken from a store where it is
// there and compiled where it is not. Identical layers are compiled once;
// distinct pieces are compiled in parallel, and the outcome, down to the order
// of errors and counters, does not depend on which is done first.
package pieces
