// Package scenario runs files that drive a graph tree: modules, small functions over a
// recorder, and steps with what they must give. Users learn from them, and a report of
// a fault is one. docs/graphs.md describes the language;
// docs/appendix/pytorch-graph-tests.md lists the files that hold scenarios of PyTorch.
package scenario
