package compile

import (
	"slices"
)

// PassInfo describes one pass.
type PassInfo struct {
	Name     string
	Does     string
	Required bool // cannot be switched off: later passes, or the program, need it
	Order    []Order
}

// Order is a constraint between two passes.
type Order struct {
	After  string // the pass comes after that one
	Before string // or before that one
	Reason string
}

// pass is a row of the table. The driver runs, verifies, dumps and times each.
type pass struct {
	PassInfo
	run  func(*state) error
	off  func(*state) error // runs instead if the pass is switched off; nil: nothing
	user bool               // a pass of Options
}

// Passes returns the pipeline in its order. The entry with the name "user" is the place of
// the passes of Options.
func Passes() []PassInfo {
	out := make([]PassInfo, len(table))
	for i, p := range table {
		out[i] = p.PassInfo
		out[i].Order = slices.Clone(p.Order)
	}
	return out
}

// userRow is the name of the row that the passes of Options replace.
const userRow = "user"

// table is the pipeline. It is never written.
var table = []pass{
	{PassInfo{Name: "static", Does: "narrows symbols to the shape, and puts constants in place of those whose range is one number",
		Order: []Order{{Before: "noop", Reason: "a slice may become a slice of the whole axis"}, {Before: "fuse", Reason: "constant extents take simpler addresses"}}},
		specialize, narrow, false},
	{PassInfo{Name: userRow, Does: "runs the passes of Options, in their order",
		Order: []Order{{After: "static", Reason: "they see the extents that will run"}, {Before: "lower", Reason: "they see whole ops, as the piece was written"}}},
		nil, nil, false},
	{PassInfo{Name: "lower", Does: "replaces norms, softmax, rope, dropout, narrow draws, integer GEMMs and collectives along later axes by primitive ops", Required: true,
		Order: []Order{{Before: "noop", Reason: "it adds casts that undo others, such as bf16 to f32 to bf16"}, {Before: "cse", Reason: "two norms of one value share their mean"}, {Before: "fuse", Reason: "fusion knows no composite ops"}}},
		rewriting(lower), nil, false},
	{PassInfo{Name: "noop", Does: "drops ops whose result equals an operand bit for bit",
		Order: []Order{{Before: "cse", Reason: "operands become equal"}}},
		rewriting(noop), nil, false},
	{PassInfo{Name: "fold", Does: "computes constants from constants, where the result is the same on every machine",
		Order: []Order{{After: "noop", Reason: "fewer ops stand between constants"}, {Before: "cse", Reason: "equal constants become one"}}},
		rewriting(fold), nil, false},
	{PassInfo{Name: "cse", Does: "computes equal nodes once",
		Order: []Order{{Before: "dce", Reason: "it leaves the second of two equal nodes unused"}}},
		rewriting(cse), nil, false},
	{PassInfo{Name: "dce", Does: "drops nodes that nothing uses",
		Order: []Order{{Before: "fuse", Reason: "an unused node would keep its operands in memory"}}},
		rewriting(dce), nil, false},
	{PassInfo{Name: "fuse", Does: "puts nodes together into kernels; switched off, no two nodes share a kernel",
		Order: []Order{{Before: "inplace", Reason: "it makes the kernels that inplace merges memory of"}}},
		fuseNodes, separateNodes, false},
	{PassInfo{Name: "overlap", Does: "lets an all_reduce whose sum is read much later overlap with the kernels until then",
		Order: []Order{{After: "fuse", Reason: "it is about the order of kernels"}, {Before: "chain", Reason: "a wait may separate the kernels of a chain"}, {Before: "inplace", Reason: "no kernel may get the memory of a running call"}}},
		overlap, nil, false},
	{PassInfo{Name: "allreduce", Does: "makes an all_reduce part of the kernel that reads the sums, where the target can",
		Order: []Order{{After: "fuse", Reason: "it is about kernels"}, {After: "overlap", Reason: "a call that overlaps with kernels stays a call"}, {Before: "chain", Reason: "a norm fuses with the all_reduce before it rather than with the GEMM after it"}, {Before: "inplace", Reason: "the sums must not share memory with what the kernel reads"}}},
		fuseAllReduce, nil, false},
	{PassInfo{Name: "chain", Does: "vertical fusion: makes code of consecutive kernels together, where the target can",
		Order: []Order{{After: "fuse", Reason: "it is about kernels"}, {Before: "inplace", Reason: "kernels may share memory only if one ends before the other begins"}, {Before: "emit", Reason: "it changes the list of steps"}}},
		fuseVertically, nil, false},
	{PassInfo{Name: "inplace", Does: "lets outputs take the memory that they are copied to, or the scratch memory of inputs whose last use is the kernel",
		Order: []Order{{Before: "emit", Reason: "it changes which buffers there are"}}},
		inPlace, nil, false},
	{PassInfo{Name: "beside", Does: "horizontal fusion: neighbouring kernels that do not depend on each other run as one launch, where the target can",
		Order: []Order{{After: "inplace", Reason: "kernels that share memory depend on each other"}, {Before: "emit", Reason: "it changes the list of steps"}}},
		fuseHorizontally, nil, false},
	{PassInfo{Name: "emit", Does: "makes the code for the target, and the program's list of steps", Required: true},
		emit, nil, false},
}
