package cuda

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"pwc/collective/cuda/peer"
)

// constant reads a constant of peer.cu.
func constant(t *testing.T, name string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^constexpr int ` + name + ` = (\d+);`).FindStringSubmatch(peer.Inline(2))
	if m == nil {
		t.Fatalf("peer.cu does not define %s", name)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestConstants compares sizes and words in Go with those in peer.cu.
func TestConstants(t *testing.T) {
	for name, want := range map[string]int{"THREADS": peer.Threads, "DEPTH": peer.Depth, "BLOCKS": peer.Blocks, "PARITIES": peer.Parities, "PROTOCOLS": peer.Protocols, "HEADER_BYTES": peer.HeaderBytes,
		"LATENCY_BYTES": peer.LatencyBytes,
		"CONTROL_END":   controlEnd, "CONTROL_LOST": controlLost} {
		if got := constant(t, name); got != want {
			t.Errorf("%s is %d in peer.cu, and %d in Go", name, got, want)
		}
	}
	if at, header := constant(t, "COUNTERS_AT"), constant(t, "HEADER_BYTES"); at+4*peer.Blocks > header {
		t.Errorf("counters of %d blocks do not fit from %d on into %d bytes", peer.Blocks, at, header)
	}
}

// protocol describes a small instance of the protocol of peer.cu, for the model. A block of each rank runs
// rounds of calls. In a round each of its threads sends a packet to every other rank, one store at a
// time, and waits for a packet of each; stores of a thread arrive at once, in any order between
// threads and ranks. A thread goes on to the next round of its call when all threads of its block
// have read (barrier), and to the next call when the kernel has ended.
type protocol struct {
	ranks, threads int
	calls          [][]int // by call, the threads that take part in each of its rounds
	protocols      []int   // by call: 0 is LL and 1 LL128; LL if there are fewer
	parities       int
	regions        int  // of a parity and a sender: of all protocols together, or one for each
	barrier        bool // between the rounds of a call
	flagBits       int  // of the number of a round in a packet
	cleanBits      int  // two rounds of every 2^cleanBits send all packets; 0: no round does
}

// maxModelThreads is the most threads of all ranks together.
const maxModelThreads = 8

// modelState is a state of the model. Rounds count from 2, as in peer.cu.
type modelState struct {
	call  [4]int8 // by rank
	step  [maxModelThreads]int8
	slots [maxModelSlots]int8 // round of each packet, plus llData if it is of LL128; 0: no packet
}

const (
	maxModelSlots = 72
	llData        = 64 // marks a packet of LL128: most of its words are data
)

// model explores all interleavings.
type model struct {
	p     protocol
	first []int // the round that each call begins with
	seen  map[modelState]bool
}

// explore returns the number of states that were reached, and the first error of the protocol.
func (p protocol) explore() (states int, wrong error) {
	m := &model{p: p, seen: map[modelState]bool{}}
	round := 2
	for _, c := range p.calls {
		m.first = append(m.first, round)
		round += len(c)
	}
	stack := []modelState{{}}
	m.seen[modelState{}] = true
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		next, err := m.steps(s)
		if err != nil {
			return len(m.seen), err
		}
		if len(next) == 0 && !m.finished(s) {
			return len(m.seen), fmt.Errorf("a deadlock: calls %v, steps %v", s.call[:p.ranks], s.step[:p.ranks*p.threads])
		}
		for _, n := range next {
			if !m.seen[n] {
				m.seen[n] = true
				stack = append(stack, n)
			}
		}
	}
	return len(m.seen), nil
}

func (m *model) finished(s modelState) bool {
	for r := range m.p.ranks {
		if int(s.call[r]) < len(m.p.calls) {
			return false
		}
	}
	return true
}

// slot is the index of a packet of a protocol.
func (m *model) slot(to, parity, protocol, from, thread int) int {
	return (((to*m.p.parities+parity)*m.p.regions+protocol%m.p.regions)*m.p.ranks+from)*m.p.threads + thread
}

// protocol returns the protocol of a call.
func (p protocol) protocol(call int) int {
	if call < len(p.protocols) {
		return p.protocols[call]
	}
	return 0
}

// perRound returns the number of steps of a thread in a round: a store to each other rank, then a read of each
// other rank's packet.
func (m *model) perRound() int { return 2 * (m.p.ranks - 1) }

// takes reports whether a thread has a packet in a round of a call.
func (m *model) takes(call, round, thread int) bool { return thread < m.p.calls[call][round] }

// cleans reports whether a round sends all packets.
func (m *model) cleans(round int) bool {
	return m.p.cleanBits > 0 && round&(1<<m.p.cleanBits-1) < 2
}

// steps returns the states that can follow s.
func (m *model) steps(s modelState) ([]modelState, error) {
	var out []modelState
	for r := range m.p.ranks {
		call := int(s.call[r])
		if call == len(m.p.calls) {
			continue
		}
		rounds, ended := len(m.p.calls[call]), true
		for t := range m.p.threads {
			at := int(s.step[r*m.p.threads+t])
			if at == rounds*m.perRound() {
				continue
			}
			ended = false
			n, err := m.step(s, r, t, call, at/m.perRound(), at%m.perRound())
			if err != nil {
				return nil, err
			}
			if n != nil {
				out = append(out, *n)
			}
		}
		if ended {
			n := s
			n.call[r]++
			for t := range m.p.threads {
				n.step[r*m.p.threads+t] = 0
			}
			out = append(out, n)
		}
	}
	return out, nil
}

// step returns the state after the next step of a thread; nil if the thread waits.
func (m *model) step(s modelState, r, t, call, round, at int) (*modelState, error) {
	n := s
	number := m.first[call] + round
	n.step[r*m.p.threads+t]++
	if at == 0 && round > 0 && m.p.barrier { // all threads have read the round before
		for u := range m.p.threads {
			if int(s.step[r*m.p.threads+u]) < round*m.perRound() {
				return nil, nil
			}
		}
	}
	others := m.p.ranks - 1
	peer := (r + 1 + at%others) % m.p.ranks
	parity := number % m.p.parities
	if at < others {
		for protocol := range 2 {
			if mine := protocol == m.p.protocol(call); mine && m.takes(call, round, t) || m.cleans(number) && (mine || m.p.regions > 1) {
				n.slots[m.slot(peer, parity, protocol, r, t)] = int8(number + protocol*llData)
			}
		}
		return &n, nil
	}
	if !m.takes(call, round, t) {
		return &n, nil
	}
	protocol := m.p.protocol(call)
	have, mask := int(s.slots[m.slot(r, parity, protocol, peer, t)]), 1<<m.p.flagBits-1
	if have >= llData && protocol == 0 {
		return nil, fmt.Errorf("rank %d may take data of LL128 of round %d of rank %d for flags of round %d", r, have-llData, peer, number)
	}
	have %= llData
	switch {
	case have == number:
		return &n, nil
	case have&mask == number&mask && have != 0:
		return nil, fmt.Errorf("rank %d takes the packet of round %d of rank %d for that of round %d", r, have, peer, number)
	case have > number:
		return nil, fmt.Errorf("rank %d overwrote its packet of round %d with that of round %d before rank %d had read it", peer, number, have, r)
	}
	return nil, nil // it is not there yet
}

// TestProtocol explores the protocol of peer.cu for 2 to 4 ranks in all interleavings: calls of one
// round and of several, in which fewer threads take part at the end, small between large ones. A kernel of a
// program that computes its all_reduce is such a call, with other numbers of threads than a routine. Then
// it holds that the model finds errors that are planted.
func TestProtocol(t *testing.T) {
	real := func(ranks, threads int, calls ...[]int) protocol {
		return protocol{ranks: ranks, threads: threads, calls: calls, parities: constant(t, "PARITIES"), regions: constant(t, "PROTOCOLS"), barrier: true, flagBits: 6}
	}
	for _, p := range []protocol{
		real(2, 1, []int{1}, []int{1}, []int{1}, []int{1}, []int{1, 1, 1}),
		real(2, 2, []int{2}, []int{1}, []int{2}, []int{2, 1}, []int{2}),
		real(2, 2, []int{2, 2, 1}, []int{1}, []int{2, 2}),
		real(2, 3, []int{3, 1}, []int{3}),
		real(3, 1, []int{1}, []int{1, 1}, []int{1}, []int{1}),
		real(3, 2, []int{2}, []int{1}, []int{2}),
		real(4, 1, []int{1}, []int{1}),
	} {
		states, err := p.explore()
		if err != nil {
			t.Errorf("%+v: %v", p, err)
		}
		if states < 50 {
			t.Errorf("%+v: only %d states", p, states)
		}
	}
	mixed := real(2, 2, []int{2}, []int{1, 2}, []int{1}, []int{2}, []int{1})
	mixed.protocols = []int{1, 0, 1, 0, 0}
	if _, err := mixed.explore(); err != nil {
		t.Errorf("with both protocols: %v", err)
	}
	wraps := real(2, 2, []int{2}, []int{1}, []int{1}, []int{1}, []int{1}, []int{1}, []int{1}, []int{1}, []int{2})
	wraps.flagBits, wraps.cleanBits = 3, 2
	if _, err := wraps.explore(); err != nil {
		t.Errorf("with cleaning: %v", err)
	}
	mixedWraps := wraps
	mixedWraps.protocols = []int{0, 1, 1, 1, 1, 1, 1, 1, 0}
	if _, err := mixedWraps.explore(); err != nil {
		t.Errorf("with cleaning of both protocols: %v", err)
	}
	oneRegion := mixed
	oneRegion.regions = 1
	onePart := real(2, 1, []int{1}, []int{1}, []int{1})
	onePart.parities = 1
	noBarrier := real(2, 2, []int{2, 1}, []int{2})
	noBarrier.barrier = false
	noCleaning, noMixedCleaning := wraps, mixedWraps
	noCleaning.cleanBits, noMixedCleaning.cleanBits = 0, 0
	for name, p := range map[string]protocol{"one region for both protocols": oneRegion, "no cleaning with both protocols": noMixedCleaning, "one parity": onePart, "no barrier between rounds": noBarrier, "no cleaning": noCleaning} {
		if _, err := p.explore(); err == nil {
			t.Errorf("%s: the model finds nothing wrong", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}
