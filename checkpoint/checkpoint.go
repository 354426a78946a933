// Package checkpoint connects checkpoints and the weights of a module: [Compute] computes a
// weight from tensors, [Invert] tensors from weights, and [Check] finds tensors that the module
// would ignore although their values matter.
package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/safetensors"
)

// Error lists the tensors of a checkpoint whose values a module would ignore.
type Error struct {
	Unread  []string    // sorted: no weight, state or declaration mentions them; empty unless the module has "weights strict"
	Differs []Different // they differ from the tensor to which the module declares them equal
}

// Different is a tensor that differs from another to which it is declared equal.
type Different struct {
	Name, Equal string
	Reason      string // "f32[4, 2], not f32[2, 4]"
}

// Error lists tensors of each kind, and the remedy.
func (e *Error) Error() string {
	const shown = 8
	var b strings.Builder
	b.WriteString("the checkpoint has tensors whose values the module would ignore")
	for _, d := range e.Differs {
		fmt.Fprintf(&b, "; %s differs from %s, to which the module declares it equal: %s", termsafe.Quote(d.Name), termsafe.Quote(d.Equal), d.Reason)
	}
	if n := len(e.Unread); n > 0 {
		names := make([]string, min(n, shown))
		for i := range names {
			names[i] = termsafe.Quote(e.Unread[i])
		}
		fmt.Fprintf(&b, "; no weight reads %s", strings.Join(names, ", "))
		if n > shown {
			fmt.Fprintf(&b, " and %d more", n-shown)
		}
	}
	b.WriteString(". Import the checkpoint anew from its directory, with the tensors there")
	if len(e.Unread) > 0 {
		b.WriteString(", or declare tensors that have no effect on the module as unread in it")
	}
	return b.String()
}

// Check returns an [*Error] with the tensors of src whose values m would ignore: those that differ from
// the tensor to which m declares them equal and, only if m is strict, those that no weight, state or
// declaration mentions. It reads bytes only to compare tensors that are declared equal. Other errors are
// of src, or [ir.ErrNoModule]. It does not look for missing tensors: loading does.
func Check(m *ir.Module, src safetensors.Source) error {
	if m == nil {
		return fmt.Errorf("checkpoint: %w", ir.ErrNoModule)
	}
	if src == nil || !m.Strict && len(m.Unread) == 0 {
		return nil
	}
	var e Error
	held := map[string]bool{}
	names := src.Names()
	for _, name := range names {
		held[name] = true
	}
	if m.Strict {
		e.Unread = unread(m, names)
	}
	for _, u := range m.Unread {
		if u.Equal == "" || !held[u.Name] || !held[u.Equal] {
			continue
		}
		reason, err := Compare(src, u.Name, u.Equal)
		switch {
		case err != nil:
			return err
		case reason != "":
			e.Differs = append(e.Differs, Different{u.Name, u.Equal, reason})
		}
	}
	if len(e.Unread)+len(e.Differs) > 0 {
		return &e
	}
	return nil
}

// unread returns the sorted names of tensors that no weight, no state and no declaration
// mentions.
func unread(m *ir.Module, names []string) []string {
	read := map[string]bool{}
	var leaves func(e *ir.WeightExpr)
	leaves = func(e *ir.WeightExpr) {
		if e.Op == ir.WeightTensor {
			read[e.Name] = true
		}
		for _, a := range e.Args {
			leaves(a)
		}
	}
	for _, w := range m.Loaded() {
		if w.Expr == nil {
			read[w.Name] = true
		} else {
			leaves(w.Expr)
		}
	}
	var out []string
	for _, name := range names {
		if !read[name] && !slices.ContainsFunc(m.Unread, func(u *ir.Unread) bool { return u.Matches(name) }) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Compare describes how tensor a of src differs from tensor b, in dtype, shape or bytes; empty if
// they are equal. The error wraps [safetensors.ErrNotFound] if one is missing.
func Compare(src safetensors.Source, a, b string) (reason string, err error) {
	if src == nil {
		return "", errors.New("checkpoint: no tensors to compare are given")
	}
	x, errX := src.Tensor(a)
	y, errY := src.Tensor(b)
	if err := errors.Join(errX, errY); err != nil {
		return "", err
	}
	if x.DType != y.DType || !slices.Equal(x.Shape, y.Shape) {
		return fmt.Sprintf("%s%v, not %s%v", x.DType, x.Shape, y.DType, y.Shape), nil
	}
	same := true
	if err := safetensors.Guard(src, func() error { same = bytes.Equal(x.Data, y.Data); return nil }); err != nil {
		return "", err
	}
	if !same {
		return "other values", nil
	}
	return "", nil
}
