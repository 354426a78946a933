package pieces

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"pwc/cache"
	"pwc/ir"
)

// recorder is a store that records the entries of a module, as [cache.Store] does. Listing,
// pinning and collection work on these records.
type recorder interface {
	PutModule(ctx context.Context, m cache.Module) error
}

// record tells the store the artifacts of the module. A failure is a warning.
func (b *builder) record(ctx context.Context) {
	r, ok := b.o.Store.(recorder)
	if !ok || len(b.plans) == 0 || b.o.Unrecorded {
		return
	}
	m := b.plans[0].Module
	rec := cache.Module{Name: m.Name, Hash: m.Hash(), Target: b.o.Compiler.Target(), Graph: []byte(b.graph())}
	for _, a := range slices.Concat(b.result.Artifacts, b.result.Extras) {
		rec.Entries = append(rec.Entries, cache.ModuleEntry{ID: a.Key.Sum(), Size: int64(a.Bytes)})
	}
	if err := r.PutModule(ctx, rec); err != nil {
		b.result.Warnings = append(b.result.Warnings, fmt.Errorf("recording module %s: %w", m.Name, err))
	}
}

// graph returns the split module as text: its canonical print, which parses, with a comment wherever
// another item begins or goes on.
func (b *builder) graph() string {
	m := *b.plans[0].Module
	m.WeightsFrom = "" // the path of the weights is private to this machine
	lines := strings.SplitAfter(ir.Print(&m), "\n")
	var out strings.Builder
	fn := -1 // functions are printed in order, one line for each node after the header
	node := 0
	items := []int(nil)
	for _, line := range lines {
		switch {
		case strings.HasPrefix(line, "  func "):
			fn, node = fn+1, 0
			items = b.itemOf(m.Funcs[fn])
		case fn >= 0 && node < len(items):
			if node == 0 || items[node] != items[node-1] {
				fmt.Fprintf(&out, "    // %s\n", b.itemText(m.Funcs[fn], items[node]))
			}
			node++
		}
		out.WriteString(line)
	}
	return out.String()
}

// itemOf returns for each node the index of its item; nil for a function that is not part of the
// build.
func (b *builder) itemOf(f *ir.Func) []int {
	for _, p := range b.plans {
		if p.Func != f {
			continue
		}
		of := make([]int, len(f.Nodes))
		for i, it := range p.Items {
			for _, n := range it.Nodes {
				of[n] = i
			}
		}
		return of
	}
	return nil
}

func (b *builder) itemText(f *ir.Func, item int) string {
	for _, p := range b.plans {
		if p.Func != f {
			continue
		}
		it := p.Items[item]
		text := fmt.Sprintf("item %d", it.ID)
		if it.Splitting {
			text += ", splitting"
		}
		for _, u := range it.Units {
			if u.Piece != nil {
				text += fmt.Sprintf(", piece %x", u.Piece.Hash[:6])
			}
		}
		return text
	}
	return ""
}
