// Package compile turns a piece (a module with one function) into a
// [program.Program]: kernels for a target, the list of steps that launches
// them, and the memory they touch.
//
// The pipeline is a table of rows (passes.go, [Passes]), which one loop runs,
// verifies, dumps and times (pipeline.go). Passes on the function (static, noop,
// fold, lower, cse, dce) rewrite the tensor IR. Then
//
//   - fuse puts nodes into groups, one kernel each (fuse.go decides, eval.go and
//     coord.go address, sinks.go and contract.go store, reduce and multiply);
//   - schedule.go makes a [loop.Kernel] of each group: phases, what is computed
//     again in which, what is stored for later phases; coalesce.go lengthens
//     inner loops;
//   - chain.go and beside.go let kernels become code together, one after the other or
//     side by side, and plan.go lets outputs take the memory of inputs;
//   - a [Backend] makes code of each kernel and emit.go the program.
//
// Nothing here depends on the target, and nothing on the order of a map: the same
// piece, shape and options give the same bytes everywhere (C3).
package compile
