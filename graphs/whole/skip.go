package whole

import (
	"fmt"
	"slices"
	"strings"

	"pwc/graphs/tree"
	"pwc/ir"
	"pwc/runtime/device"
)

// Reason is why a function is not graphed.
type Reason string

// Reasons, in the words of PyTorch's counters and messages.
const (
	MutatedInputs   Reason = "mutated inputs"   // it writes an input that is not static
	HostDevice      Reason = "cpu device"       // an op reads or changes state of the host
	MultipleDevices Reason = "multiple devices" // an input of a call belongs to another session
	IncompatibleOp  Reason = "incompatible op"  // an extern op cannot be captured
)

// Skip is a reason why a function cannot be graphed, with its position.
type Skip struct {
	Reason Reason
	Func   string
	Op     string    // of HostDevice and IncompatibleOp
	Inputs []string  // of MutatedInputs
	At     *ir.Error // the place in the module; nil for inputs of a call
}

// Error is "skipping cudagraphs due to …" with the position.
func (s *Skip) Error() string {
	what := string(s.Reason)
	switch {
	case s.Op != "":
		what += " (" + s.Op + ")"
	case s.Reason == MutatedInputs:
		what += fmt.Sprintf(" (%d instances): %s", len(s.Inputs), strings.Join(s.Inputs, ", "))
	}
	text := fmt.Sprintf("@%s: skipping cudagraphs due to %s", s.Func, what)
	if s.At != nil {
		text = fmt.Sprintf("%s. Found from: %s", text, place(s.At))
	}
	return text
}

// place returns file:line:col and the node's loc, whichever is known.
func place(e *ir.Error) string {
	var parts []string
	if e.Source != nil && e.Pos.IsValid() {
		parts = append(parts, fmt.Sprintf("%s:%d:%d", e.Source.Name, e.Pos.Line, e.Pos.Col))
	}
	if e.Loc != "" {
		parts = append(parts, e.Loc)
	}
	if parts == nil {
		return fmt.Sprintf("node %d of @%s", e.Node, e.Func)
	}
	return strings.Join(parts, " ")
}

// CheckOptions are the assumptions of a check.
type CheckOptions struct {
	// Static lists the parameters that keep their address between calls. Weights and states
	// always keep theirs.
	Static []int

	// NoMutation forbids writes to parameters that are not in Static, even if they are outputs of a graph.
	NoMutation bool

	// Ops are the implementations of extern ops. An op that cannot be captured overrides its
	// declaration in the module.
	Ops []device.Op
}

// Check returns every reason why the function cannot be one graph, in the order of PyTorch's
// cudagraphs backend: written inputs (with NoMutation), devices, ops. It returns nil if the function can be
// one graph.
func Check(m *ir.Module, fn *ir.Func, o CheckOptions) []*Skip {
	var skips []*Skip
	if o.NoMutation {
		if s := mutated(m, fn, o.Static); s != nil {
			skips = append(skips, s)
		}
	}
	for _, want := range []Reason{HostDevice, IncompatibleOp} {
		for i, n := range fn.Nodes {
			if r := reasonOf(n, o.Ops); r == want {
				skips = append(skips, &Skip{Reason: r, Func: fn.Name, Op: n.Name(), At: m.ErrorAt(fn, i, "%s", r)})
			}
		}
	}
	return skips
}

// reasonOf returns why a node cannot be captured; "" if it can.
func reasonOf(n *ir.Node, ops []device.Op) Reason {
	e := n.Extern
	switch {
	case e == nil:
		return ""
	case e.Host:
		return HostDevice
	case !e.Capture:
		return IncompatibleOp
	}
	for _, op := range ops {
		if s := op.Signature(); s.Name == e.Name && !s.Capture {
			return IncompatibleOp
		}
	}
	return ""
}

// Mutated returns the parameters that the function writes, through any value that shares
// their memory.
func Mutated(fn *ir.Func) []int {
	var all []int
	for i, p := range fn.Params {
		if slices.ContainsFunc(fn.Nodes, func(n *ir.Node) bool { return writes(fn, n, p) }) {
			all = append(all, i)
		}
	}
	return all
}

// writes reports whether a node writes the memory whose first value is base.
func writes(fn *ir.Func, n *ir.Node, base ir.Value) bool {
	return slices.ContainsFunc(n.Versions, func(v ir.Version) bool { return fn.Base(v.Value) == base })
}

// mutated returns the skip for written inputs that are not static; nil if there are no such inputs.
func mutated(m *ir.Module, fn *ir.Func, static []int) *Skip {
	var s *Skip
	for _, i := range Mutated(fn) {
		if slices.Contains(static, i) {
			continue
		}
		p := fn.Params[i]
		if s == nil {
			at := slices.IndexFunc(fn.Nodes, func(n *ir.Node) bool { return writes(fn, n, p) })
			s = &Skip{Reason: MutatedInputs, Func: fn.Name, At: m.ErrorAt(fn, at, "%s", MutatedInputs)}
		}
		s.Inputs = append(s.Inputs, "%"+fn.Values[p].Name)
	}
	return s
}

// Front moves nodes that cannot be captured, and allocations whose first user is such a node, to the front
// of fn, so that they cut the function in fewer places. A node stays if it depends on an earlier node that
// stays: both touch memory that one of them writes, or both have effects beyond their results. The moved
// nodes keep their order, and so do the other nodes.
func Front(m *ir.Module, fn *ir.Func, ops []device.Op) (*ir.Func, error) {
	moved := make([]bool, len(fn.Nodes))
	some := false
	for i, n := range fn.Nodes {
		if !frontable(fn, n, ops) {
			continue
		}
		moved[i] = true
		for j := range fn.Nodes[:i] {
			if !moved[j] && !independent(fn, fn.Nodes[j], n) {
				moved[i] = false
				break
			}
		}
		some = some || moved[i]
	}
	if !some {
		return fn, nil
	}
	out, err := ir.Rewrite(m, fn, func(rw *ir.Rewriter, i int, n *ir.Node) {
		if i == 0 {
			for j, x := range fn.Nodes {
				if moved[j] {
					rw.SetOrigin(x.Origin)
					rw.Keep(x)
				}
			}
			rw.SetOrigin(n.Origin)
		}
		if !moved[i] {
			rw.Keep(n)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("whole: moving ops of @%s to the front: %w", fn.Name, err)
	}
	return out, nil
}

// frontable reports whether Front may move a node: it cannot be captured, or it is an allocation whose
// first user cannot be captured.
func frontable(fn *ir.Func, n *ir.Node, ops []device.Op) bool {
	if reasonOf(n, ops) != "" {
		return true
	}
	if !n.IsEmpty() || len(n.Args) > 0 {
		return false
	}
	first := slices.IndexFunc(fn.Nodes, func(u *ir.Node) bool {
		return slices.ContainsFunc(u.Args, func(a ir.Value) bool { return fn.Base(a) == fn.Base(n.Results[0]) })
	})
	return first >= 0 && reasonOf(fn.Nodes[first], ops) != ""
}

// independent reports whether b may move before the earlier node a.
func independent(fn *ir.Func, a, b *ir.Node) bool {
	const ordered = ir.Random | ir.Host
	if a.Effects()&ordered != 0 && b.Effects()&ordered != 0 {
		return false
	}
	made := func(n *ir.Node, base ir.Value) bool {
		return writes(fn, n, base) || slices.ContainsFunc(n.Results, func(r ir.Value) bool { return fn.Base(r) == base })
	}
	for _, x := range b.Args {
		if made(a, fn.Base(x)) {
			return false
		}
	}
	for _, v := range b.Versions {
		base := fn.Base(v.Value)
		if made(a, base) || slices.ContainsFunc(a.Args, func(x ir.Value) bool { return fn.Base(x) == base }) {
			return false
		}
	}
	return true
}

// warn counts a skip and gives it to Warn. With OrError it returns an error.
func (b *Backend) warn(s *Skip) error {
	b.skips[s.Reason]++
	if b.opts.Warn != nil {
		b.opts.Warn(s)
	}
	if b.opts.OrError {
		return fmt.Errorf("%w: %w", tree.ErrSkipped, s)
	}
	return nil
}
