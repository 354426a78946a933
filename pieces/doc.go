// Package pieces turns the pieces of split functions into programs: one artifact for each
// distinct piece, shape and target, from a store or compiled. Identical layers are compiled once.
// Distinct pieces are compiled in parallel, and the outcome, including counters and the order of
// errors, does not depend on timing.
package pieces
