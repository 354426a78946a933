package compile

import (
	"fmt"
	"strings"
)

// verifySteps checks the invariants of steps between fuse and emit: each kernel argument has a
// memory, in order, with elements of its width, and a chain describes all its arguments.
func verifySteps(steps []*planned) error {
	for i, st := range steps {
		if len(st.kernels) == 0 {
			if st.group.call == nil {
				return fmt.Errorf("step %d is neither kernels nor a call", i)
			}
			continue
		}
		at := 0
		for _, k := range st.kernels {
			for _, a := range k.Args {
				if at >= len(st.mems) {
					return fmt.Errorf("step %d, kernel %s: argument %d has no memory, the step has %d memories", i, k.Name, at, len(st.mems))
				}
				if m := st.mems[at].root(); a.DType.Bits() != m.typ.DType.Bits() {
					return fmt.Errorf("step %d, kernel %s: argument %d is %s, but its memory is %s", i, k.Name, at, a.DType, m.typ.DType)
				}
				at++
			}
		}
		if at != len(st.mems) {
			return fmt.Errorf("step %d has %d arguments, but %d memories", i, at, len(st.mems))
		}
		if c := st.chain; c != nil && (len(c.Kernels) != len(st.kernels) || len(c.Same) != at || len(c.Dead) != at) {
			return fmt.Errorf("step %d has %d kernels and %d arguments, but its chain has %d kernels, Same of %d and Dead of %d arguments", i, len(st.kernels), at, len(c.Kernels), len(c.Same), len(c.Dead))
		}
	}
	return nil
}

// stepsText returns the text of a list of steps: kernels, how they are fused, and which
// arguments share memory with another one.
func stepsText(steps []*planned) string {
	var b strings.Builder
	name := make(map[*memory]string)
	for i, st := range steps {
		for j, m := range st.mems {
			if name[m] == "" {
				name[m] = fmt.Sprintf("step %d a%d", i, j)
			}
		}
	}
	shown := make(map[*memory]bool)
	for i, st := range steps {
		fmt.Fprintf(&b, "step %d: ", i)
		switch {
		case len(st.kernels) == 0:
			fmt.Fprintf(&b, "%s\n", st.group.call)
		case st.chain != nil:
			fmt.Fprintf(&b, "%d kernels in a row\n", len(st.kernels))
		case len(st.kernels) > 1:
			fmt.Fprintf(&b, "%d kernels side by side\n", len(st.kernels))
		}
		for _, k := range st.kernels {
			b.WriteString(k.String())
		}
		for j, m := range st.mems {
			if m.into != nil && !shown[m] {
				fmt.Fprintf(&b, "  a%d in the memory of %s\n", j, name[m.root()])
				shown[m] = true
			}
		}
	}
	return b.String()
}
