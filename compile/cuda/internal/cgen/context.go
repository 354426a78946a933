package cgen

import "pwc/compile/loop"

// Context is the emission context of instructions: the row and the columns that they run for,
// and where their operands are.
type Context struct {
	Width     int      // neighbouring columns that are visited at once
	Rows      []string // indices of the row
	Cols      []string // indices of the first column
	Pos       string   // linear index of the first column
	Live      string   // the condition that the columns exist; "": they do
	Turn      string   // of a scan that blocks of a cluster share: the index of its buffer, 0 or 1
	Running   bool     // a variable has a scan's sum of the columns before, and the columns are added to it
	StoresRow string   // the condition that this thread stores the values of the row; "": it does
	Acc       string   // the array with the sums of a GEMM, one for each of the Width columns
	Warps     int      // of a block that share a row; 0: a thread computes a row, or loopgen's rowSplit.across
	Cluster   int      // blocks that share a row

	Vector   func(in loop.Instr) (string, bool) // returns the variable with a vector that need not be loaded
	Element  func(in loop.Instr) (string, bool) // returns the variable with an element that need not be loaded
	Visited  func(in loop.Instr, name string)   // is called after a vector was loaded or stored
	Unstored func(in loop.Instr) bool           // reports whether a vector need not be stored: the register cache has it
	Sink     func(in loop.Instr, what string)   // writes the code for a value that the body stores, instead of a store
}
