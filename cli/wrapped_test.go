package cli

import (
	"errors"
	"testing"

	"pwc/program"
	"pwc/runtime/device"
)

// recordedOp notes which of its methods were called.
type recordedOp struct{ calls []string }

func (o *recordedOp) Signature() device.Signature { return device.Signature{Name: "my::op"} }

func (o *recordedOp) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 7, nil }

func (o *recordedOp) Launch(*device.OpCall) error { return o.note("launch") }

func (o *recordedOp) Warm(*device.OpCall) error { return o.note("warm") }

func (o *recordedOp) Prepare(device.Stream, any, int64, int64) error { return o.note("prepare") }

func (o *recordedOp) note(what string) error {
	o.calls = append(o.calls, what)
	return errors.New(what)
}

// Timed and traced ops forward all calls to the op.
func TestWrappedOpsHideNothing(t *testing.T) {
	for name, wrap := range map[string]func(device.Op) device.Op{
		"timed":  func(op device.Op) device.Op { return &timedOp{wrapped: wrapped{op}} },
		"traced": func(op device.Op) device.Op { return &tracedOp{wrapped: wrapped{op}} },
	} {
		inner := &recordedOp{}
		op := wrap(inner)
		warmer, isWarmer := op.(device.Warmer)
		preparer, isPreparer := op.(device.Preparer)
		if !isWarmer || !isPreparer {
			t.Fatalf("%s: warmer %v, preparer %v", name, isWarmer, isPreparer)
		}
		for _, err := range []error{warmer.Warm(nil), preparer.Prepare(nil, nil, 1, 1), op.Launch(&device.OpCall{})} {
			if err == nil {
				t.Errorf("%s: an error of the op is lost", name)
			}
		}
		if len(inner.calls) != 3 || inner.calls[0] != "warm" || inner.calls[1] != "prepare" || inner.calls[2] != "launch" {
			t.Errorf("%s: the op was told of %v", name, inner.calls)
		}
		if n, _ := op.ScratchBytes(nil, nil); n != 7 || op.Signature().Name != "my::op" {
			t.Errorf("%s: %d bytes for %s", name, n, op.Signature().Name)
		}
	}
}
