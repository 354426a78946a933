package split

import (
	"fmt"
	"slices"
	"strings"

	"pwc/ir"
)

// matcher decides which nodes are splitting ops.
type matcher struct {
	externs map[string]bool // by full name
	table   map[string]bool // by name in the op table
}

func (s *matcher) splits(n *ir.Node) bool {
	if n.Extern != nil {
		return s.externs[n.Extern.Name]
	}
	return s.table[n.Op.Name]
}

// resolve turns a list of ops into a matcher and returns the list; nil selects the extern ops
// that are declared split. An unknown name is an error, because it would have no effect.
func resolve(m *ir.Module, ops []string) (*matcher, []string, error) {
	s := &matcher{externs: map[string]bool{}, table: map[string]bool{}}
	if ops == nil {
		for _, e := range m.Externs {
			if e.Split {
				s.externs[e.Name] = true
				ops = append(ops, e.Name)
			}
		}
		return s, ops, nil
	}
	packets := map[string][]string{} // "ns::op" → its overloads
	for _, e := range m.Externs {
		packets[e.Name] = append(packets[e.Name], e.Name)
		if p := packet(e.Name); p != e.Name {
			packets[p] = append(packets[p], e.Name)
		}
	}
	var unknown []string
	for _, op := range ops {
		if op := ir.LookupOp(op); op != nil && op.Class != ir.Call {
			s.table[op.Name] = true
			continue
		}
		// PyTorch's name of an unnamed overload is "default".
		if base, ok := strings.CutSuffix(op, ".default"); ok && len(packets[op]) == 0 && slices.Contains(packets[base], base) {
			s.externs[base] = true
			continue
		}
		if len(packets[op]) == 0 {
			unknown = append(unknown, fmt.Sprintf("%q", op))
		}
		for _, name := range packets[op] {
			s.externs[name] = true
		}
	}
	if len(unknown) > 0 {
		return nil, nil, fmt.Errorf("cannot split at %s: module %q declares %s, and the op table has %s",
			strings.Join(unknown, ", "), m.Name, listExterns(m), listTable())
	}
	return s, slices.Clone(ops), nil
}

// packet returns "ns::op" of "ns::op.overload".
func packet(name string) string {
	ns := strings.Index(name, "::") + 2
	if dot := strings.IndexByte(name[ns:], '.'); dot >= 0 {
		return name[:ns+dot]
	}
	return name
}

func listExterns(m *ir.Module) string {
	if len(m.Externs) == 0 {
		return "no extern ops"
	}
	names := make([]string, len(m.Externs))
	for i, e := range m.Externs {
		names[i] = e.Name
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func listTable() string {
	var names []string
	for _, op := range ir.Ops() {
		if op.Class != ir.Call {
			names = append(names, op.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
