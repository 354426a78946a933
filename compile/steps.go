package compile

import (
	"fmt"
	"strings"
)

// verifySteps checks what passes between fuse and emit hold: a step's memory is that
// of its kernels' arguments, in order, and nothing was merged into itself.
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
					return fmt.Errorf("step %d, kernel %s: %d arguments have %d pieces of memory", i, k.Name, at+1, len(st.mems))
				}
				if m := st.mems[at].root(); a.DType.Bits() != m.typ.DType.Bits() {
					return fmt.Errorf("step %d, kernel %s: argument %d of %s lies in memory of %s", i, k.Name, at, a.DType, m.typ.DType)
				}
				at++
			}
		}
		if at != len(st.mems) {
			return fmt.Errorf("step %d: %d arguments have %d pieces of memory", i, at, len(st.mems))
		}
		if c := st.chain; c != nil && (len(c.Kernels) != len(st.kernels) || len(c.Same) != at || len(c.Dead) != at) {
			return fmt.Errorf("step %d: a chain of %d kernels and %d arguments says which of %d are the same", i, len(st.kernels), at, len(c.Same))
		}
	}
	return nil
}

// stepsText shows a list of steps: kernels with how they are joined, and which
// arguments have the memory of another one.
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
