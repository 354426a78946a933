package oracle_test

import (
	"testing"

	"pwc/compile/loop"
	"pwc/internal/oracle"
)

// TestElementKernels: every op on elements has a kernel.
func TestElementKernels(t *testing.T) {
	have := map[loop.Op]int{}
	for _, k := range oracle.ElementKernels() {
		have[k.Op]++
	}
	for _, op := range loop.Ops() {
		if have[op] == 0 && op != loop.Acc {
			t.Errorf("%s has no kernel", op)
		}
	}
	// By hand: Exp takes f32, f16 and bf16; And takes the five integer dtypes and bool; Eq and Cast take all nine.
	for op, want := range map[loop.Op]int{loop.Exp: 3, loop.And: 6, loop.Eq: 9, loop.Philox: 1, loop.Cast: 81} {
		if have[op] != want {
			t.Errorf("%s has %d kernels, want %d", op, have[op], want)
		}
	}
}
