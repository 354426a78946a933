package cgen

import (
	"fmt"
	"math"
	"slices"

	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

// MaxCachedGroups is the largest number of groups of columns of a thread for which vectors are cached, and
// the loop over the groups is unrolled. If the blocks of a cluster share the row, it is
// loopgen.clusterGroups instead.
const MaxCachedGroups = 4

// Vectors that later phases read again stay in registers: at any time up to cacheBytes per thread,
// which is half of the registers of a thread in a block of 1024.
//
// If a cluster shares a row, up to cacheShared percent of the shared memory caches more vectors, so
// that a multiprocessor has room for two blocks.
const (
	cacheShared = 40
	cacheBytes  = 128
)

// Cache is the register cache of a row: later phases find in registers, or in the thread's part of
// shared memory, the vectors that an earlier phase loaded or stored. A nil cache is empty.
type Cache struct {
	e       *Emitter
	groups  int64 // of columns of a thread
	width   int
	threads int64 // of a block
	list    []*entry
	shared  int64 // bytes of a block
}

// entry is the vectors of one access over a row's columns.
type entry struct {
	access   *loop.Access
	arg      int32
	first    int            // the phase that fills it
	last     int            // the last phase that reads it
	stored   bool           // by a store; else by a load
	unstored bool           // the store is left out: every load of it is served by the cache
	loads    []*loop.Access // of later phases, which find the elements in this entry
	bytes    int64          // of a thread
	shared   bool           // in shared memory; else in registers
	maximum  bool           // a variable has the largest of the thread's elements
}

// NewCache finds the vectors that later phases read again and declares variables for those that fit,
// except for prefetched ones, which are in registers already. It returns nil if it caches no vector. groups is
// the number of groups of columns of a thread; 0 if their loop is not unrolled.
func (e *Emitter) NewCache(s *Context, groups int64, prefetched Prefetched) *Cache {
	if s.Width == 1 || s.Warps == 0 || groups == 0 {
		return nil
	}
	c := &Cache{e: e, groups: groups, width: s.Width, threads: int64(e.Threads)}
	for _, k := range e.readAgain() {
		if _, ok := prefetched.Find(k.access); ok {
			continue
		}
		k.bytes = int64(e.K.Args[k.arg].DType.Bits()/8*s.Width) * groups
		switch size := k.bytes * c.threads; {
		case c.fits(k):
			c.list = append(c.list, k)
		case s.Cluster > 1 && c.shared+size <= int64(e.GPU.SharedBytes())*cacheShared/100 && k.bytes/groups%16 == 0:
			k.shared = true
			c.shared += size
			c.list = append(c.list, k)
		}
	}
	if len(c.list) == 0 {
		return nil
	}
	for _, k := range c.list {
		k.unstored = k.stored && e.K.Args[k.arg].Local && e.onlyCached(k)
	}
	for _, ph := range e.K.Phases {
		if load, _ := e.thresholds(ph.Body); load != nil {
			if n := c.holds(load.Access); n >= 0 {
				c.list[n].maximum = true
			}
		}
	}
	c.declare()
	return c
}

// declare writes the variables.
func (c *Cache) declare() {
	e := c.e
	if c.shared > 0 {
		e.Shared = dim.Const(c.shared)
		e.Line("extern __shared__ uint4 shared[];")
	}
	e.Use("vec")
	at := int64(0)
	for n, k := range c.list {
		t := fmt.Sprintf("vec<%s, %d>", e.Storage(e.K.Args[k.arg].DType), c.width)
		if k.maximum {
			e.Line("float thread_max%d = %s;", n, Float(math.Inf(-1)))
		}
		if k.shared {
			e.Line("%s *const cached%d = (%s *)(shared + %d) + threadIdx.x;", t, n, t, at/16)
			at += k.bytes * c.threads
			continue
		}
		e.Line("%s cached%d[%d];", t, n, c.groups)
	}
}

// onlyCached reports whether an entry's store is the only one to its argument, and the cache serves
// every load of it.
func (e *Emitter) onlyCached(k *entry) bool {
	for i, ph := range e.K.Phases {
		for _, in := range slices.Concat(ph.Row, ph.Body) {
			if a := in.Access; a != nil && a.Arg == k.arg && a != k.access && (in.Op != loop.Load || i <= k.first || !nest.SameElements(a, k.access)) {
				return false
			}
		}
	}
	return true
}

// readAgain lists the vectors that a phase loads or stores and a later phase reads. A load is served by
// the latest contents of its elements, or not at all if a store may have changed some of them.
func (e *Emitter) readAgain() []*entry {
	var list []*entry
	seen := make(map[int32][]*entry) // by argument, in execution order
	for i, ph := range e.K.Phases {
		for _, in := range ph.Row {
			if in.Op == loop.Store {
				delete(seen, in.Access.Arg)
			}
		}
		for _, in := range ph.Body {
			a := in.Access
			if a == nil || a.Arg < 0 {
				continue
			}
			whole := nest.IsConst(nest.Inner(a), 1) && !nest.PerColumn(e.K, a)
			switch {
			case in.Op == loop.Store && (!whole || a.Index != nil):
				delete(seen, a.Arg) // it may change elements of any entry
			case in.Op == loop.Store:
				seen[a.Arg] = append(seen[a.Arg], &entry{access: a, arg: a.Arg, first: i, stored: true})
			case in.Op == loop.Load && whole:
				k := latestEntry(seen[a.Arg], a, i)
				if k == nil {
					seen[a.Arg] = append(seen[a.Arg], &entry{access: a, arg: a.Arg, first: i})
					continue
				}
				if k.last == 0 {
					list = append(list, k)
				}
				k.last, k.loads = i, append(k.loads, a)
			}
		}
	}
	return list
}

// fits reports whether there are registers for another entry: at most cacheBytes are live at any
// time. An entry whose last read is in the phase that fills k leaves its registers to k.
func (c *Cache) fits(k *entry) bool {
	for phase := k.first; phase < k.last; phase++ {
		bytes := k.bytes
		for _, l := range c.list {
			if !l.shared && l.first <= phase && phase < l.last {
				bytes += l.bytes
			}
		}
		if bytes > cacheBytes {
			return false
		}
	}
	return true
}

// latestEntry returns the latest entry of a list with the elements of an access, if an earlier phase
// filled it.
func latestEntry(list []*entry, a *loop.Access, phase int) *entry {
	for i := len(list) - 1; i >= 0; i-- {
		if k := list[i]; nest.SameElements(k.access, a) {
			if k.first < phase {
				return k
			}
			return nil
		}
		if list[i].stored {
			return nil // other elements, which may overlap
		}
	}
	return nil
}

// Fills reports whether a phase fills an entry.
func (c *Cache) Fills(phase int) bool {
	return c != nil && slices.ContainsFunc(c.list, func(k *entry) bool { return k.first == phase })
}

// holds returns the index of the entry that serves the access of a load, or -1.
func (c *Cache) holds(a *loop.Access) int {
	return slices.IndexFunc(c.list, func(k *entry) bool { return slices.Contains(k.loads, a) })
}

// Attach makes the accesses of a phase that are emitted in the context read and fill the cache.
func (c *Cache) Attach(s *Context, phase int) {
	if c == nil {
		return
	}
	iteration := "0"
	if c.groups > 1 {
		iteration = "t"
	}
	name := func(n int) string {
		if c.list[n].shared {
			return fmt.Sprintf("cached%d[%s * %d]", n, iteration, c.threads)
		}
		return fmt.Sprintf("cached%d[%s]", n, iteration)
	}
	s.Vector = func(in loop.Instr) (string, bool) {
		n := c.holds(in.Access)
		switch {
		case n < 0:
			return "", false
		case !c.list[n].shared:
			return name(n), true
		}
		x := fmt.Sprintf("x%d", in.Dst)
		c.e.Line("const auto %s = %s;", x, name(n))
		return x, true
	}
	s.Visited = func(in loop.Instr, vector string) {
		for n, k := range c.list {
			if k.first != phase || k.access != in.Access {
				continue
			}
			c.e.Line("%s = %s;", name(n), vector)
			if k.maximum {
				c.e.Line("#pragma unroll")
				c.e.Line("for (int j = 0; j < %d; j++) thread_max%d = fmaxf(thread_max%d, %s[j]);", c.width, n, n, vector)
			}
		}
	}
	s.Unstored = func(in loop.Instr) bool {
		return slices.ContainsFunc(c.list, func(k *entry) bool { return k.access == in.Access && k.unstored })
	}
}
