// Package compile turns a piece (a module with one function) into a
// [program.Program]: kernels for a target, the list of steps that launches
// them, and the memory they touch.
//
// The pipeline is a table of rows (passes.go, [Passes]), which one loop runs,
// verifies, dumps and times (pipeline.go). Passes on the function (static, the passes of
// Options, lower, noop, fold, cse, dce) rewrite the tensor IR. Then
//
//   - fuse puts nodes into groups, each a kernel or a call (fuse.go decides, eval.go and
//     coord.go address, sinks.go and contract.go store, reduce and multiply);
//   - schedule.go makes a [loop.Kernel] of each group but calls: its phases, which values later
//     phases compute again, and which ones they load; coalesce.go lengthens inner loops;
//   - collective.go and overlap.go fuse or overlap collectives, vertical.go and
//     horizontal.go fuse kernels, and plan.go and copies.go let outputs share memory with
//     inputs and with the targets of copies;
//   - a [Backend] makes code of each kernel, and emit.go makes the program.
//
// What a target can do is asked of its Backend, and the order of a map decides nothing: the
// same piece, shape, options and backend give the same bytes on every machine (C3).
package compile
