package scenario

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"pwc/graphs"
	"pwc/graphs/tree"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/runtime/device"
)

func (x *run) expected(s *step, ok bool, key, want, got string) {
	x.result.Expects = append(x.result.Expects, ExpectResult{Line: s.line, OK: ok, Want: map[string]Value{key: Value(want)}, Got: map[string]Value{key: Value(got)}})
}

// compare checks that addresses are the same, or that they are distinct.
func (x *run) compare(s *step) error {
	var at []device.Buffer
	got := []string{}
	for _, n := range s.names {
		t, err := x.address(n)
		if err != nil {
			return err
		}
		b := t.Storage().Buffer()
		at = append(at, device.Buffer{Memory: b.Memory, Offset: b.Offset})
		got = append(got, n+" at "+x.s.Where(b))
	}
	ok := true
	for i := range at {
		for j := range i {
			if (at[i] == at[j]) != (s.kind == stepSame) {
				ok = false
			}
		}
	}
	key := "same"
	if s.kind == stepDistinct {
		key = "distinct"
	}
	x.expected(s, ok, key, strings.Join(s.names, " "), strings.Join(got, ", "))
	return nil
}

// address returns the tensor of a name for a comparison of addresses. A dropped tensor has one, too.
func (x *run) address(name string) (graphs.Tensor, error) {
	if t, ok := x.last[name]; ok {
		return t, nil
	}
	return x.tensor(name)
}

func (x *run) check(s *step) error {
	t, err := x.tensor(s.names[0])
	if err != nil {
		return err
	}
	buf := make([]byte, t.Size())
	if err := x.s.Read(t, buf); err != nil {
		return err
	}
	vs, err := decode(t.DType(), buf)
	if err != nil {
		return err
	}
	want := s.values
	if len(want) == 1 && len(vs) > 1 { // one number for all
		want = slices.Repeat(want, len(vs))
	}
	ok := len(vs) == len(want)
	for i := 0; ok && i < len(vs); i++ {
		w := want[i]
		if t.DType().Float() {
			w = t.DType().Round(w)
		}
		ok = vs[i] == w || math.IsNaN(vs[i]) && math.IsNaN(w) || s.near && math.Abs(vs[i]-w) <= 1e-6*math.Abs(w)
	}
	x.expected(s, ok, s.names[0], numbers(s.values), numbers(vs))
	return nil
}

func numbers(vs []float64) string {
	const most = 16
	var parts []string
	for i, v := range vs {
		if i == most {
			parts = append(parts, "…")
			break
		}
		parts = append(parts, fmt.Sprint(v))
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// warned runs the inner step and counts its warnings, or its skips, with texts that contain the message.
func (x *run) warned(s *step) error {
	before := x.said
	x.said = nil
	err := x.step(s.inner)
	n, texts := int64(0), []string{}
	for _, w := range x.said {
		texts = append(texts, w.Text)
		if (w.Kind == tree.Skipped) == (s.kind == stepSkip) && strings.Contains(w.Text, s.message) {
			n++
		}
	}
	x.said = append(before, x.said...)
	key := "warn"
	if s.kind == stepSkip {
		key = "skip"
	}
	x.expected(s, n == s.count, key, fmt.Sprintf("%d of %q", s.count, s.message), fmt.Sprintf("%d of %q", n, texts))
	return err
}

// expect compares the manager's state with the expected values.
func (x *run) expect(s *step) error {
	in, err := x.m.Inspect()
	if err != nil {
		return err
	}
	e := ExpectResult{Line: s.line, OK: true, Want: map[string]Value{}, Got: map[string]Value{}}
	for _, w := range s.expect {
		got := x.value(w.key, in)
		e.Want[w.key], e.Got[w.key] = Value(w.want), Value(got)
		if got != w.want {
			e.OK = false
		}
	}
	x.result.Expects = append(x.result.Expects, e)
	return nil
}

// value returns the present value of a key of expect.
func (x *run) value(key string, in tree.Inspection) string {
	use := x.m.Pool().Use()
	number := func(v int, there bool) string {
		if !there {
			return "none"
		}
		return fmt.Sprint(v)
	}
	list := func(n int, f func(int) string) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = f(i)
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	flag := func(b bool) string {
		if b {
			return "1"
		}
		return "0"
	}
	places := func(ps []tree.Place) string {
		return list(len(ps), func(i int) string { return fmt.Sprintf("(%d,%d)", ps[i].Depth, ps[i].Output) })
	}
	switch key {
	case "state":
		return in.State.String()
	case "node":
		return number(in.Node, in.HasNode)
	case "parent":
		return number(in.Parent, in.HasParent)
	case "roots":
		return fmt.Sprint(in.Roots)
	case "children":
		return list(len(in.Children), func(i int) string { return fmt.Sprint(in.Children[i]) })
	case "recorded":
		return fmt.Sprint(in.Stats.Recorded)
	case "warmups":
		return fmt.Sprint(in.Stats.Warmups)
	case "checkpoints":
		return fmt.Sprint(in.Stats.Checkpoints)
	case "executed":
		return fmt.Sprint(in.Stats.Executed)
	case "eager":
		return fmt.Sprint(in.Stats.Eager)
	case "rerecords":
		return fmt.Sprint(in.Stats.Rerecords)
	case "live":
		return fmt.Sprint(in.Live)
	case "blocks":
		return fmt.Sprint(use.Blocks)
	case "segments":
		return fmt.Sprint(use.Segments)
	case "reserved":
		return fmt.Sprint(use.Reserved)
	case "pending":
		return flag(in.Pending)
	case "generation":
		return fmt.Sprint(in.Generation)
	case "unaliased":
		return list(len(in.Unaliased), func(i int) string { return flag(in.Unaliased[i]) })
	case "dead_before":
		return places(in.DeadBefore)
	case "dead_after":
		return places(in.DeadAfter)
	case "skips":
		n := 0
		for _, c := range in.Stats.Skips {
			n += c
		}
		return fmt.Sprint(n)
	}
	bodies := 0
	for _, f := range x.names[strings.TrimPrefix(key, "body.")] {
		bodies += f.Bodies()
	}
	return fmt.Sprint(bodies)
}

// encode returns numbers as little-endian elements, rounded to dt.
func encode(dt dtype.DType, vs []float64) ([]byte, error) {
	t, err := interp.FromFloat64s(dt, []int64{int64(len(vs))}, vs)
	if err != nil {
		return nil, err
	}
	return t.Bytes(), nil
}

// decode returns little-endian elements as numbers.
func decode(dt dtype.DType, data []byte) ([]float64, error) {
	n := int64(len(data)) * 8 / int64(max(dt.Bits(), 1))
	t, err := interp.FromBytes(dt, []int64{n}, data)
	if err != nil {
		return nil, err
	}
	return t.Float64s(), nil
}
