package host

import (
	"testing"

	"pwc/internal/testkit"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program/vec"
)

// TestPreOfEmptyBody holds that registers that a Pre assigns keep their values in later phases,
// also if the phase of the Pre has no Body: out[r, c] = x[r].
func TestPreOfEmptyBody(t *testing.T) {
	k := &vec.Kernel{Args: 2, Loop: vec.Loop{
		Outer: testkit.Consts(3), Inner: testkit.Consts(2), Regs: vec.RegCount{F: 1, SF: 1},
		Access: []vec.Access{
			{Arg: 0, DType: dtype.F32, Offset: dim.Const(0), Outer: testkit.Consts(1), Inner: testkit.Consts(0)},
			{Arg: 1, DType: dtype.F32, Offset: dim.Const(0), Outer: testkit.Consts(2), Inner: testkit.Consts(1)}},
		Phases: []vec.Phase{
			{Scalar: []vec.Instr{{Op: vec.OpLoadF, X: 0}}, Pre: []vec.Instr{{Op: vec.OpSplatF}}},
			{Body: []vec.Instr{{Op: vec.OpStoreF, X: 1}}},
		}}}
	if err := k.Validate(); err != nil {
		t.Fatal(err)
	}
	got := load(t, openDevice(t, 1), k, floats(dtype.F32, 5, 6, 7), empty(dtype.F32, 6)).run(t, 1)
	if got, want := show(got), "[5 5 6 6 7 7]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
