// Package scenario runs files that drive a graph tree. A file has a module, small functions over a
// recorder, and steps with their expected results. Such files serve as examples, tests and bug
// reports. docs/graphs.md describes the language; docs/appendix/pytorch-graph-tests.md lists the
// files for PyTorch's tests.
package scenario
