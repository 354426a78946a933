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
	shared int64  // bytes of the module's .shared variables
}

// Data returns the initial contents of the module's variables. [Launch.Data] is the address of a copy.
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
	params          map[string]int64 // offsets in bytes
	paramBytes      int64
	local           int64 // bytes of local memory of a thread
	n32, n64, nPred int32
	body            []instruction // nil after decoding
	code            []op
	places          []place // by instruction
	c32             [][lanesOfWarp]uint32
	c64             [][lanesOfWarp]uint64
	specials        []special
	unit            int64 // bytes of shared memory of one access record
	globalUnit      int64 // bytes of global memory of one owner
	atomic          bool  // has atomic operations
	spins           bool  // has volatile loads of global memory
	waits, late     bool  // has a griddepcontrol.wait; has a griddepcontrol.launch_dependents after one
	signals         int   // largest number of mbarriers of a cluster for st.async; 0 without st.async
	tail            int64 // offset of dynamic shared memory
}

// Spins reports whether the kernel has volatile loads of global memory, by which it may wait for writes of
// the host or of other devices. Clusters of such a kernel execute in the order of their numbers.
func (e *Entry) Spins() bool { return e.spins }

// place is the place of an instruction in the text.
type place struct {
	line   int
	opcode string
	source string
}

// special is a register whose value is set when a warp starts, such as %tid.x.
type special struct {
	wide  bool
	index int32
	value func(w *warp, lane int) uint64
}

const lanesOfWarp = 32

// all is the mask of a whole warp.
const all = ^uint32(0)

// exec executes an instruction in the lanes of a mask, which is not empty.
type exec func(w *warp, m uint32)

// opKind is the effect of an instruction on the control flow of lanes.
type opKind uint8

const (
	opPlain   opKind = iota
	opBranch         // to target
	opExit           // ends lanes
	opSync           // waits until the lanes of need are here
	opBarrier        // waits until all lanes are here; then the warp may have to wait
	opAwait          // the lanes of need execute it again later
)

// op is a decoded instruction.
type op struct {
	kind    opKind
	negated bool
	guard   int32 // predicate, or -1
	target  int32
	run     exec
	need    func(w *warp, m uint32) uint32 // nil: all lanes that have not ended
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
	Cluster     [3]uint32 // blocks; 0 counts as 1
	Dynamic     uint32    // bytes of dynamic shared memory
	Params      []uint64  // each starts at a multiple of 8 bytes
	Memory      Memory
	Data        uint64 // address of the module's variables
	Early       bool   // may start before the launches of the chain end
	Chain       *Chain // the launch is added to it; nil: early starts are not checked

	// Yield is called by a kernel that spins, after each turn of all its warps. It returns false to end
	// the launch. nil: nothing else writes memory during the launch.
	Yield func() bool
}

// Fault is the kind of error that ended a launch.
type Fault uint8

const (
	AddressFault   Fault = iota // an access outside of an allocation, or one that is invalid otherwise
	AlignmentFault              // an access at an address that is not a multiple of its size
	RaceFault                   // accesses without an order, or a missing fence or wait that orders them
	WaitFault                   // a wait or a loop that does not end, or a wrong use of barriers, warps or warpgroups
	LaunchFault                 // invalid parameters of a launch
)

// Error is the error that ended a launch.
type Error struct {
	Fault  Fault
	Kernel string
	Line   int    // of the PTX; 0: the error is not of an instruction
	Opcode string // of the instruction
	Source string // file and line of the CUDA source, if the text has them
	Block  [3]uint32
	Thread int // in the block
	Text   string
}

// Error names the kernel and the fault, and for an error of an instruction its place, block and thread.
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

// spanCache is the number of ranges that a launch caches, by instruction.
const spanCache = 256

// Machine executes launches. It is not safe for concurrent use. The zero Machine is ready.
type Machine struct {
	Unordered bool  // accesses without an order are allowed
	Limit     int64 // on the instructions of all warps of a cluster, unless Launch.Yield is called; 0: 2³¹

	entry  *Entry
	launch Launch
	blocks []*block
	warps  []*warp // of all blocks
	spans  [spanCache]span
	b32    [][lanesOfWarp]uint32 // memory of the registers of all warps
	b64    [][lanesOfWarp]uint64
	preds  []uint32
	steps  int64 // executed instructions of warps
	// launches is the number of launches. It decides the order of clusters and warps.
	launches uint64
	number   uint32 // of the cluster that is executed, plus 1
	owners   owners // of global memory
	// Of the cluster's barrier.
	phase   int
	arrived int
	clock   []uint32
	count   int // warps of a cluster
	signals int // mbarriers of the executed cluster for st.async so far
}

// block is a block of the cluster that is executed.
type block struct {
	rank     int
	at       [3]uint32 // in the grid
	shared   []byte
	shadow   []access
	gen      uint32
	warps    []*warp
	barriers [16]barrier
	// mbarriers are the barriers in shared memory, including overwritten ones.
	mbarriers []mbarrier
}

// barrier is a barrier of a block.
type barrier struct {
	arrived int // warps, including those that do not wait
	want    int // warps; 0: all that have not ended
	waiting []*warp
	clock   []uint32
}

// state is the state of a warp.
type state uint8

const (
	stateReady state = iota
	stateBarrier
	stateCluster
	stateAwait // all lanes that have not ended wait for phases, or for lanes that wait for phases
	stateDone
)

// group is a set of lanes at the same instruction.
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
	phase  int // phase of the cluster's barrier at this warp's arrival; -1 after the wait
	pc     int32
	mask   uint32
	exists uint32 // lanes that have a thread
	alive  uint32 // lanes that have not ended
	waited uint32 // lanes that executed griddepcontrol.wait
	next   int32  // lowest pc in rest
	rest   []group
	parked []group // lanes that wait for other lanes of the warp
	// awaiting are lanes that wait for a phase of an mbarrier.
	awaiting []group
	clock    []uint32
	fenced   []uint32 // the clock at the last fence.proxy.async
	made     []uint32 // the clock at the last fence.mbarrier_init
	local    [lanesOfWarp][]byte
	copies   []asyncCopy
	groups   [lanesOfWarp]int32 // committed groups of copies, by lane
	arrivals []asyncArrival
	arrived  int32 // number of arrivals so far, including those that have happened
	mmas     []asyncMMA
	batches  int32 // committed groups of wgmma.mma_async
	began    bool  // wgmma.fence was executed
}

const never = int32(1<<31 - 1)

// sliceSteps is the number of instructions after which a warp's turn ends when the warp branches back.
const sliceSteps = 1 << 20

// spinSteps is sliceSteps for a kernel that spins.
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
	step, shift := coprime(n*5/8|1, n), coprime(7, n)
	for i := range n {
		at := (m.launches*shift + i*step) % n
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

// place returns the coordinates of the first block of cluster n.
func (m *Machine) place(n uint32) [3]uint32 {
	g, c := m.launch.Grid, m.launch.Cluster
	nx, ny := g[0]/c[0], g[1]/c[1]
	return [3]uint32{n % nx * c[0], n / nx % ny * c[1], n / nx / ny * c[2]}
}

// coprime returns the first of from, from+2, from+4, … without a common divisor with n. from is odd.
func coprime(from, n uint64) uint64 {
	for gcd(from, n) > 1 {
		from += 2
	}
	return from
}

func gcd(a, b uint64) uint64 {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// prepare allocates the blocks and warps of a cluster.
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

// sharedBytes returns the bytes of shared memory of a block.
func (e *Entry) sharedBytes(dynamic uint32) int64 {
	if dynamic == 0 {
		return int64(e.StaticShared)
	}
	return e.tail + int64(dynamic)
}

// cluster executes the blocks of the cluster whose first block has the coordinates at.
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

// stuck ends the launch if the warp waits. No warp can execute, so the wait cannot end.
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

// start resets the block and fills shared memory with NaN.
func (b *block) start() {
	for i := range b.shared {
		b.shared[i] = 0xff
	}
	if b.gen++; b.gen == 0 { // gen wrapped: access records of 2³² blocks ago would count
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
	w.copies, w.arrivals, w.mmas = w.copies[:0], w.arrivals[:0], w.mmas[:0]
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

// run executes the warp until it waits, ends, or branches back when the machine has executed more than
// until instructions.
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

// part adds diverged lanes to rest.
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

// meet joins the executing lanes with those that wait at the same instruction, and continues with the lanes
// at the lowest instruction.
func (w *warp) meet() {
	w.part(group{w.pc, w.mask})
	w.take()
}

// leave removes the lanes m from the executing lanes, because they wait at this instruction.
func (w *warp) leave(m uint32) {
	if w.mask &^= m; w.mask != 0 {
		w.pc++
	} else {
		w.take()
	}
}

// take continues with the lanes of rest at the lowest instruction. It returns false if rest is empty: all
// lanes have ended, or the warp waits.
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

// gather returns the lanes that execute an opSync or opBarrier. It returns 0 if needed lanes are missing;
// then the lanes m wait and others execute.
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

// end ends the warp. Barriers of all warps do not wait for it any more.
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
