package cgen

import "pwc/compile/loop"

// Context is the emission context of instructions: the row and the columns that they run for,
// and where their operands are.
type Context struct {
	Width     int      // neighbouring columns that are visited at once
	Rows      []string // indices of the row
	Cols      []string // indices of the first of the columns
	Pos       string   // its position among all columns
	Live      string   // "": the columns exist; else the condition
	Turn      string   // of a scan that blocks of a cluster share: which of two buffers it uses
	Running   bool     // what comes before the columns in a scan is known, and added to
	StoresRow string   // whether this thread stores what is the same for the whole row
	Acc       string   // the sums of a matrix product, width of them
	Warps     int      // of a block that share a row; 0: it is one thread's
	Cluster   int      // blocks that share a row

	Vector   func(in loop.Instr) (string, bool) // the variable with a vector that need not be loaded
	Element  func(in loop.Instr) (string, bool) // the same for an element
	Visited  func(in loop.Instr, name string)   // is called after a vector was loaded or stored
	Unstored func(in loop.Instr) bool           // whether a vector need not be stored: the register cache has it
	Sink     func(in loop.Instr, what string)   // takes what the body stores, instead of memory
}
