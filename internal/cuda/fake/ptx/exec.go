package ptx

import (
	"fmt"
	"math/bits"
	"slices"
)

// Module is a module in PTX.
type Module struct {
	Version string // of the PTX ISA
	Target  string // sm_90
	Entries []*Entry

	data   []byte // .global and .const variables
	shared int64  // bytes of shared memory that is not an entry's own
}

// Data is what the module's variables hold when it is loaded. Launches take the
// address where it was put.
func (m *Module) Data() []byte { return m.data }

// Entry returns a kernel by name, or nil.
func (m *Module) Entry(name string) *Entry {
	i := slices.IndexFunc(m.Entries, func(e *Entry) bool { return e.Name == name })
	if i < 0 {
		return nil
	}
	return m.Entries[i]
}

// Entry is a kernel.
type Entry struct {
	Name         string
	ParamBytes   []int64 // the size of each parameter
	MaxThreads   int     // of a block
	StaticShared int     // bytes

	module          *Module
	params          map[string]int64 // where they start
	paramBytes      int64
	local           int64 // bytes of each thread
	n32, n64, nPred int32
	body            []instruction // until it is decoded
	code            []op
	places          []place // by instruction
	c32             [][lanesOfWarp]uint32
	c64             [][lanesOfWarp]uint64
	specials        []special
	unit            int64 // bytes of shared memory that one record of accesses is for
	globalUnit      int64 // and of global memory
	atomic          bool  // there are atomic operations
	spins           bool  // there are volatile loads of global memory
	waits, late     bool  // there is a griddepcontrol.wait, and behind one a griddepcontrol.launch_dependents
	signals         int   // barriers of a cluster that stores may complete transactions of; 0 if there are no such stores
	tail            int64 // where dynamic shared memory starts
}

// Spins reports whether the kernel may wait for what others write while it runs: it has volatile
// loads of global memory. Blocks of such a kernel execute in their order.
func (e *Entry) Spins() bool { return e.spins }

// place is where an instruction stands.
type place struct {
	line   int
	opcode string
	source string
}

// special is a register that holds what a block or lane is told.
type special struct {
	wide  bool
	index int32
	value func(w *warp, lane int) uint64
}

const lanesOfWarp = 32

// all is the mask of a whole warp.
const all = ^uint32(0)

// exec does an instruction in the lanes of a mask, of which there is one.
type exec func(w *warp, m uint32)

// opKind says how an instruction moves the lanes.
type opKind uint8

const (
	opPlain   opKind = iota
	opBranch         // to target
	opExit           // ends lanes
	opSync           // first the lanes of need come here
	opBarrier        // first all lanes come here; then the warp may have to wait
	opAwait          // the lanes of need come here again later
)

// op is a decoded instruction.
type op struct {
	kind    opKind
	negated bool
	guard   int32 // predicate, or -1
	target  int32
	run     exec
	need    func(w *warp, m uint32) uint32 // nil: all that have not ended
}

// Memory is the device's memory.
type Memory interface {
	// Span returns bytes around an address that the device may touch, and the
	// address of the first, or nil if it may not touch that address.
	Span(address uint64) (base uint64, data []byte)
}

// Launch is a launch of a kernel.
type Launch struct {
	Grid, Block [3]uint32
	Cluster     [3]uint32 // blocks; zero: none
	Dynamic     uint32    // bytes of dynamic shared memory
	Params      []uint64  // each from a multiple of 8 bytes on
	Memory      Memory
	Data        uint64 // where the module's variables are
	Early       bool   // may start before the launches of the chain end
	Chain       *Chain // to which this one is added; nil: not watched

	// Yield is called by a kernel that spins when all its warps have had a turn; false ends the
	// launch. Nil: nothing else writes while it runs.
	Yield func() bool
}

// Fault says what a kernel did that ends it.
type Fault uint8

const (
	AddressFault   Fault = iota // touched memory that it may not
	AlignmentFault              // touched memory at an address that is not a multiple of the size
	RaceFault                   // accesses that nothing orders
	WaitFault                   // a wait that nothing ends, or a loop
	LaunchFault                 // a launch that the kernel cannot have
)

// Error is what ended a launch.
type Error struct {
	Fault  Fault
	Kernel string
	Line   int    // of the text
	Opcode string // of the instruction
	Source string // file and line, if the text says it
	Block  [3]uint32
	Thread int // in the block
	Text   string
}

// Error names the kernel, and the instruction and the thread if it was one.
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("ptx: kernel %s: %s", e.Kernel, e.Text)
	}
	at := fmt.Sprintf("line %d (%s)", e.Line, e.Opcode)
	if e.Source != "" {
		at += ", " + e.Source
	}
	return fmt.Sprintf("ptx: kernel %s, block %v, thread %d, %s: %s", e.Kernel, e.Block, e.Thread, at, e.Text)
}

// span is a range of the device's memory.
type span struct {
	base uint64
	data []byte
}

// spanCache is how many ranges a launch remembers, by instruction.
const spanCache = 256

// Machine executes launches, one at a time. The zero Machine is ready.
type Machine struct {
	Unordered bool  // accesses that nothing orders are no error
	Limit     int64 // of the instructions of warps in a cluster; 0: 2³¹

	entry  *Entry
	launch Launch
	blocks []*block
	warps  []*warp // of all blocks
	spans  [spanCache]span
	b32    [][lanesOfWarp]uint32 // what warps have their registers of
	b64    [][lanesOfWarp]uint64
	preds  []uint32
	steps  int64 // instructions of warps so far: the time
	// Launches so far: each has another order of clusters, and of warps.
	launches uint64
	number   uint32 // of the cluster that runs, plus 1
	owners   owners // of global memory
	// Of the cluster's barrier.
	phase   int
	arrived int
	clock   []uint32
	count   int // warps of a cluster
	signals int // barriers of the cluster that runs, of which stores have completed transactions
}

// block is a block of the cluster that runs.
type block struct {
	rank     int
	at       [3]uint32 // in the grid
	shared   []byte
	shadow   []access
	gen      uint32
	warps    []*warp
	barriers [16]barrier
	// Barriers in shared memory, those that something else was written over included.
	mbarriers []mbarrier
}

// barrier is a barrier of a block.
type barrier struct {
	arrived int // warps, those that do not wait included
	want    int // warps; 0: all that have lanes left
	waiting []*warp
	clock   []uint32
}

// state says whether a warp may run.
type state uint8

const (
	stateReady state = iota
	stateBarrier
	stateCluster
	stateAwait // all lanes that have not ended wait for phases, or for lanes that do
	stateDone
)

// group is lanes at one place.
type group struct {
	pc   int32
	mask uint32
}

// warp is 32 lanes.
type warp struct {
	m      *Machine
	block  *block
	entry  *Entry
	id     int // in the cluster
	first  int // thread of lane 0 in the block
	b32    [][lanesOfWarp]uint32
	b64    [][lanesOfWarp]uint64
	preds  []uint32
	state  state
	phase  int // of the cluster's barrier, at its arrival; -1 if it has waited since
	pc     int32
	mask   uint32
	exists uint32 // lanes that have a thread
	alive  uint32 // of them, those that have not ended
	waited uint32 // of them, those that waited for earlier kernels
	next   int32  // the lowest place of rest
	rest   []group
	parked []group // lanes that wait for others of the warp
	// Lanes that wait for a phase of a barrier in shared memory to end.
	awaiting []group
	clock    []uint32
	fenced   []uint32 // the clock at the last fence.proxy.async
	made     []uint32 // the clock at the last fence.mbarrier_init
	local    [lanesOfWarp][]byte
	copies   []asyncCopy
	groups   [lanesOfWarp]int32 // groups of copies committed, by lane
	arrivals []asyncArrival
	arrived  int32 // how many arrivals there were, those that have happened included
	products []asyncProduct
	batches  int32 // groups of products committed
	began    bool  // wgmma.fence was executed
}

const never = int32(1<<31 - 1)

// sliceSteps is how many instructions a warp executes before the next has its turn.
const sliceSteps = 1 << 20

// spinSteps is sliceSteps of a kernel that spins.
const spinSteps = 1 << 10

// Run executes a launch. An error is an [*Error].
func (m *Machine) Run(e *Entry, l Launch) (err error) {
	cluster := l.Cluster
	for i := range cluster {
		cluster[i] = max(cluster[i], 1)
		if l.Grid[i]%cluster[i] != 0 {
			return &Error{Fault: LaunchFault, Kernel: e.Name, Text: fmt.Sprintf("a grid of %v in clusters of %v", l.Grid, cluster)}
		}
	}
	if int64(len(l.Params))*8 < e.paramBytes {
		return &Error{Fault: LaunchFault, Kernel: e.Name, Text: "too few parameters"}
	}
	m.entry, m.launch = e, l
	m.launch.Cluster = cluster
	m.spans = [spanCache]span{}
	m.prepare()
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			err = f
		}
		m.launch, m.spans = Launch{}, [spanCache]span{}
	}()
	m.launches++
	m.owners.clear()
	if l.Chain != nil {
		if err := l.Chain.begin(e.late); err != nil {
			return &Error{Fault: RaceFault, Kernel: e.Name, Text: err.Error()}
		}
	}
	nx, ny := uint64(l.Grid[0]/cluster[0]), uint64(l.Grid[1]/cluster[1])
	n := nx * ny * uint64(l.Grid[2]/cluster[2])
	step := n*5/8 | 1
	for gcd(step, n) > 1 {
		step += 2
	}
	for i := range n {
		at := (m.launches*7 + i*step) % n
		if e.spins {
			at = i
		}
		m.number = uint32(at) + 1
		m.cluster(m.place(uint32(at)))
	}
	if l.Chain != nil {
		l.Chain.end(l.Early)
	}
	return nil
}

// place is the first block of a cluster by number.
func (m *Machine) place(n uint32) [3]uint32 {
	g, c := m.launch.Grid, m.launch.Cluster
	nx, ny := g[0]/c[0], g[1]/c[1]
	return [3]uint32{n % nx * c[0], n / nx % ny * c[1], n / nx / ny * c[2]}
}

func gcd(a, b uint64) uint64 {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// prepare makes the blocks and warps of a cluster.
func (m *Machine) prepare() {
	e, l := m.entry, &m.launch
	threads := int(l.Block[0] * l.Block[1] * l.Block[2])
	perBlock := (threads + lanesOfWarp - 1) / lanesOfWarp
	blocks := int(l.Cluster[0] * l.Cluster[1] * l.Cluster[2])
	n := blocks * perBlock
	m.count = n
	known := n + e.signals
	m.b32 = slices.Grow(m.b32[:0], n*int(e.n32))[:n*int(e.n32)]
	m.b64 = slices.Grow(m.b64[:0], n*int(e.n64))[:n*int(e.n64)]
	m.preds = slices.Grow(m.preds[:0], n*int(e.nPred))[:n*int(e.nPred)]
	for len(m.blocks) < blocks {
		m.blocks = append(m.blocks, &block{})
	}
	for len(m.warps) < n {
		m.warps = append(m.warps, &warp{m: m})
	}
	size := e.sharedBytes(l.Dynamic)
	for r, b := range m.blocks[:blocks] {
		b.rank = r
		b.shared = slices.Grow(b.shared[:0], int(size))[:size]
		if units := int((size + e.unit - 1) / e.unit); !m.Unordered && cap(b.shadow) < units {
			b.shadow, b.gen = make([]access, units), 0
		} else {
			b.shadow = b.shadow[:cap(b.shadow)]
		}
		b.warps = m.warps[r*perBlock : (r+1)*perBlock]
		for i, w := range b.warps {
			id := r*perBlock + i
			w.block, w.entry, w.id, w.first = b, e, id, i*lanesOfWarp
			w.b32, w.b64, w.preds = m.b32[id*int(e.n32):][:e.n32], m.b64[id*int(e.n64):][:e.n64], m.preds[id*int(e.nPred):][:e.nPred]
			w.exists = all
			if left := threads - w.first; left < lanesOfWarp {
				w.exists = 1<<left - 1
			}
			w.clock = slices.Grow(w.clock[:0], known)[:known]
			w.fenced = slices.Grow(w.fenced[:0], known)[:known]
			w.made = slices.Grow(w.made[:0], known)[:known]
			if e.local > 0 {
				for lane := range w.local {
					w.local[lane] = slices.Grow(w.local[lane][:0], int(e.local))[:e.local]
				}
			}
		}
	}
	m.clock = slices.Grow(m.clock[:0], known)[:known]
}

// sharedBytes is the shared memory of a block.
func (e *Entry) sharedBytes(dynamic uint32) int64 {
	if dynamic == 0 {
		return int64(e.StaticShared)
	}
	return e.tail + int64(dynamic)
}

// cluster executes the blocks of a cluster, the first of which is at.
func (m *Machine) cluster(at [3]uint32) {
	l := &m.launch
	blocks := int(l.Cluster[0] * l.Cluster[1] * l.Cluster[2])
	var warps []*warp
	m.phase, m.arrived, m.signals = 0, 0, 0
	clear(m.clock)
	for r, b := range m.blocks[:blocks] {
		x, y, z := uint32(r)%l.Cluster[0], uint32(r)/l.Cluster[0]%l.Cluster[1], uint32(r)/l.Cluster[0]/l.Cluster[1]
		b.at = [3]uint32{at[0] + x, at[1] + y, at[2] + z}
		b.start()
		for _, w := range b.warps {
			w.start()
		}
		warps = m.warps[:(r+1)*len(b.warps)]
	}
	limit := m.Limit
	if limit == 0 {
		limit = 1 << 31
	}
	slice := min(limit, sliceSteps)
	yields := m.entry.spins && l.Yield != nil
	if yields {
		slice = spinSteps
	}
	limit += m.steps
	for {
		alive, moved := false, false
		for i := range warps {
			w := warps[(i+int(m.launches%uint64(len(warps))))%len(warps)]
			if w.state == stateDone {
				continue
			}
			alive = true
			if w.state == stateReady {
				moved = true
				w.run(m.steps + slice)
			}
		}
		switch {
		case !alive:
			return
		case !moved && !tell(warps):
			for _, w := range warps {
				w.stuck()
			}
		case yields && !l.Yield():
			warps[0].fault(WaitFault, 0, "the device is lost")
		case m.steps > limit && !yields:
			warps[0].fault(WaitFault, 0, "the block does not end")
		}
	}
}

// stuck ends the launch if the warp waits, which nothing will end.
func (w *warp) stuck() {
	switch w.state {
	case stateAwait:
		w.pc = w.awaiting[0].pc
		w.fault(WaitFault, bits.TrailingZeros32(w.awaiting[0].mask), "a phase of an mbarrier that nothing ends")
	case stateBarrier, stateCluster:
		w.pc--
		w.fault(WaitFault, 0, "a barrier that not all come to")
	}
}

// start fills shared memory with NaN.
func (b *block) start() {
	for i := range b.shared {
		b.shared[i] = 0xff
	}
	if b.gen++; b.gen == 0 { // the records of 2³² blocks ago
		clear(b.shadow)
		b.gen = 1
	}
	for i := range b.barriers {
		b.barriers[i] = barrier{waiting: b.barriers[i].waiting[:0], clock: b.barriers[i].clock}
		clear(b.barriers[i].clock)
	}
	b.mbarriers = b.mbarriers[:0]
}

func (w *warp) start() {
	w.state, w.phase, w.pc, w.mask, w.alive, w.next = stateReady, -1, 0, w.exists, w.exists, never
	w.waited = 0
	w.rest, w.parked, w.awaiting = w.rest[:0], w.parked[:0], w.awaiting[:0]
	w.copies, w.arrivals, w.products = w.copies[:0], w.arrivals[:0], w.products[:0]
	w.groups, w.arrived, w.batches, w.began = [lanesOfWarp]int32{}, 0, 0, false
	clear(w.clock)
	clear(w.fenced)
	clear(w.made)
	w.clock[w.id] = 1
	for i := range w.entry.specials {
		s := &w.entry.specials[i]
		for lane := range lanesOfWarp {
			if v := s.value(w, lane); s.wide {
				w.b64[s.index][lane] = v
			} else {
				w.b32[s.index][lane] = uint32(v)
			}
		}
	}
	for lane := range w.local {
		for i := range w.local[lane] {
			w.local[lane][i] = 0xff
		}
	}
}

// fault ends the launch.
func (w *warp) fault(f Fault, lane int, format string, args ...any) {
	p := w.entry.places[w.pc]
	panic(&Error{Fault: f, Kernel: w.entry.Name, Line: p.line, Opcode: p.opcode, Source: p.source, Block: w.block.at,
		Thread: w.first + lane, Text: fmt.Sprintf(format, args...)})
}

// run executes until the warp has to wait, has ended, or has had its turn.
func (w *warp) run(until int64) {
	code := w.entry.code
	for {
		if w.pc >= w.next {
			w.meet()
		}
		o := &code[w.pc]
		m := w.mask
		if o.guard >= 0 {
			if p := w.preds[o.guard]; o.negated {
				m &^= p
			} else {
				m &= p
			}
		}
		w.m.steps++
		if m == 0 {
			w.pc++
			continue
		}
		switch o.kind {
		case opPlain:
			o.run(w, m)
			w.pc++
		case opBranch:
			if m == w.mask {
				back := o.target <= w.pc
				w.pc = o.target
				if back && w.m.steps > until {
					return
				}
			} else {
				w.part(group{o.target, m})
				w.mask &^= m
				w.pc++
			}
		case opExit:
			w.alive &^= m
			if w.mask &^= m; w.mask != 0 {
				w.pc++
			} else if !w.take() {
				if w.state == stateReady {
					w.end()
				}
				return
			}
		case opSync, opBarrier:
			if m = w.gather(o, m); m != 0 {
				o.run(w, m)
				w.pc++
			}
			if w.state != stateReady {
				return
			}
		case opAwait:
			late := o.need(w, m)
			if m &^= late; m != 0 {
				o.run(w, m)
			}
			if late == 0 {
				w.pc++
				continue
			}
			if w.await(late); w.state != stateReady {
				return
			}
		}
	}
}

// part adds lanes that are elsewhere.
func (w *warp) part(g group) {
	for i := range w.rest {
		if w.rest[i].pc == g.pc {
			w.rest[i].mask |= g.mask
			return
		}
	}
	i, _ := slices.BinarySearchFunc(w.rest, g.pc, func(x group, pc int32) int { return int(x.pc - pc) })
	w.rest = slices.Insert(w.rest, i, g)
	w.next = w.rest[0].pc
}

// meet joins the lanes that are where others wait, or lets those go first that
// are lower.
func (w *warp) meet() {
	w.part(group{w.pc, w.mask})
	w.take()
}

// leave lets others run than some lanes, which wait here.
func (w *warp) leave(m uint32) {
	if w.mask &^= m; w.mask != 0 {
		w.pc++
	} else {
		w.take()
	}
}

// take makes the lowest lanes those that run. It returns false if there are none:
// all have ended, or the warp waits.
func (w *warp) take() bool {
	if len(w.rest) == 0 {
		if len(w.awaiting) > 0 {
			w.state = stateAwait
			return false
		}
		if len(w.parked) > 0 {
			w.pc = w.parked[0].pc
			w.fault(WaitFault, bits.TrailingZeros32(w.parked[0].mask), "lanes %#08x wait for others that ended or wait elsewhere", w.parked[0].mask)
		}
		return false
	}
	w.pc, w.mask = w.rest[0].pc, w.rest[0].mask
	w.rest = slices.Delete(w.rest, 0, 1)
	w.next = never
	if len(w.rest) > 0 {
		w.next = w.rest[0].pc
	}
	return true
}

// gather returns the lanes that execute an instruction which waits for others, or
// 0 if these wait and others run.
func (w *warp) gather(o *op, m uint32) uint32 {
	for i := range w.parked {
		if w.parked[i].pc == w.pc {
			m |= w.parked[i].mask
			w.mask |= m
			w.parked = slices.Delete(w.parked, i, i+1)
			break
		}
	}
	need := w.alive
	if o.need != nil {
		need = o.need(w, m) & w.exists
	}
	if need&^m == 0 {
		return m
	}
	w.parked = append(w.parked, group{w.pc, m})
	w.leave(m)
	return 0
}

// end is the end of a warp: barriers do not wait for it.
func (w *warp) end() {
	if w.phase >= 0 {
		w.fault(WaitFault, 0, "a warp ends between barrier.cluster.arrive and its wait")
	}
	w.state = stateDone
	w.outlived()
	for i := range w.block.barriers {
		w.block.complete(i)
	}
	w.m.completeCluster()
}
