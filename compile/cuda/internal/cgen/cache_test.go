package cgen

import (
	"testing"

	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// TestCacheServes: the cache serves a load with the latest contents of its elements, and does not serve it if a store
// may have changed some of them.
func TestCacheServes(t *testing.T) {
	const load, store, shifted, strided, scattered, rowStore = 'l', 's', 'o', 'n', 'i', 'r'
	access := func(kind rune) *loop.Access {
		a := &loop.Access{Rows: []dim.Dim{dim.Const(64)}, Cols: []dim.Dim{dim.Const(1)}}
		switch kind {
		case shifted:
			a.Offset = dim.Const(8)
		case strided:
			a.Cols[0] = dim.Const(2)
		case scattered:
			a.Index = &loop.Index{Stride: dim.Const(64), Extent: dim.Const(4)}
		case rowStore:
			a.Cols[0] = dim.Const(0)
		}
		return a
	}
	for _, c := range []struct {
		phases []string // instructions of each phase, all on one argument
		served string   // what serves the last load: the phase and the kind of the access; "": nothing does
	}{
		{[]string{"l", "l"}, "0l"},
		{[]string{"s", "l"}, "0s"},
		{[]string{"l", "ls", "l"}, "1s"},
		{[]string{"ls", "l"}, "0s"},
		{[]string{"l", "l", "lo", "l"}, ""},
		{[]string{"l", "l", "ln", "l"}, ""},
		{[]string{"l", "l", "li", "l"}, ""},
		{[]string{"l", "l", "r", "l"}, ""},
		{[]string{"l", "li", "l", "l"}, "2l"},
	} {
		k := &loop.Kernel{Args: []loop.Arg{{DType: dtype.F32}}, Values: []loop.ValueInfo{{Row: true}}}
		places := make(map[*loop.Access]string)
		var last *loop.Access
		for i, list := range c.phases {
			var p loop.Phase
			for _, kind := range list {
				in := loop.Instr{Op: loop.Store, Access: access(kind)}
				places[in.Access] = string(rune('0'+i)) + string(kind)
				switch kind {
				case rowStore:
					p.Row = append(p.Row, in)
					continue
				case load:
					in.Op, last = loop.Load, in.Access
				}
				p.Body = append(p.Body, in)
			}
			k.Phases = append(k.Phases, p)
		}
		cache, served := &Cache{list: (&Emitter{K: k}).readAgain()}, ""
		if n := cache.holds(last); n >= 0 {
			served = places[cache.list[n].access]
		}
		if served != c.served {
			t.Errorf("%q: the last load is served by %q, want %q", c.phases, served, c.served)
		}
	}
}
