package collective

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// hub is the meeting point of the ranks of a group, in the process of rank 0. A rank of another
// process has a goroutine there that calls the hub for it.
type hub struct {
	name  string
	limit time.Duration
	ended chan struct{} // closed when err is set

	mu    sync.Mutex
	round *round // the current one
	left  []bool // ranks that have closed the group
	err   error  // why the group has ended
}

// round is one exchange of all ranks. Once all ranks have arrived, each uses the bytes of all. No rank
// returns before all have done so, so that no rank changes bytes that another one reads. If the group
// ends first, an incomplete round is never used.
type round struct {
	what    []string
	given   [][]byte
	here    []bool
	arrived int
	used    int
	full    chan struct{} // closed when all ranks have arrived
	free    chan struct{} // closed when all ranks have used the bytes
}

func newHub(name string, size int, limit time.Duration) *hub {
	return &hub{name: name, limit: limit, ended: make(chan struct{}), round: newRound(size), left: make([]bool, size)}
}

func newRound(size int) *round {
	return &round{what: make([]string, size), given: make([][]byte, size), here: make([]bool, size), full: make(chan struct{}), free: make(chan struct{})}
}

// end ends the group. Only the first error is kept.
func (h *hub) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endLocked(err)
}

func (h *hub) endLocked(err error) {
	if h.err == nil {
		h.err = err
		close(h.ended)
	}
}

func (h *hub) reason() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// leave marks a rank that makes no more calls. Ranks that wait for it get an error.
func (h *hub) leave(rank int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left[rank] {
		return ErrClosed
	}
	h.left[rank] = true
	if h.round.arrived > 0 {
		h.endLocked(h.goneLocked())
	}
	return nil
}

// goneLocked returns the error of a round in which ranks wait for others that have left.
func (h *hub) goneLocked() error {
	e := &LostError{Group: h.name, Cause: ErrLeft}
	for rank, left := range h.left {
		if left {
			e.Ranks = append(e.Ranks, rank)
		}
	}
	e.What = h.round.call()
	return e
}

// call returns the call of the lowest rank that has arrived.
func (r *round) call() string {
	for rank, here := range r.here {
		if here {
			return r.what[rank]
		}
	}
	return ""
}

// exchange is [Group.Exchange] of a rank.
func (h *hub) exchange(ctx context.Context, rank int, what string, mine []byte, use func(all [][]byte) error) error {
	r, err := h.arrive(rank, what, mine)
	if err != nil {
		return err
	}
	if err := h.await(ctx, rank, r); err != nil {
		return err
	}
	err = h.compare(r)
	if err == nil {
		err = use(r.given)
	}
	h.mu.Lock()
	if r.used++; r.used == len(r.here) {
		close(r.free)
	}
	h.mu.Unlock()
	<-r.free // does not block for long: every rank of a full round uses it, and use waits for no rank
	return err
}

func (h *hub) arrive(rank int, what string, mine []byte) (*round, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.round
	switch {
	case h.left[rank]:
		return nil, ErrClosed
	case h.err != nil:
		return nil, h.err
	case r.here[rank]:
		return nil, fmt.Errorf("collective: group %q: rank %d calls %s during a call of %s: a rank is used by one goroutine", h.name, rank, what, r.what[rank])
	}
	r.what[rank], r.given[rank], r.here[rank] = what, mine, true
	if r.arrived++; r.arrived == len(r.here) {
		h.round = newRound(len(r.here))
		close(r.full)
		return r, nil
	}
	if slices.Contains(h.left, true) {
		h.endLocked(h.goneLocked())
		return nil, h.err
	}
	return r, nil
}

// await waits until all ranks have arrived at a round.
func (h *hub) await(ctx context.Context, rank int, r *round) error {
	select {
	case <-r.full:
		return nil
	default:
	}
	limit := time.NewTimer(h.limit)
	defer limit.Stop()
	var lost *LostError
	select {
	case <-r.full:
	case <-h.ended:
	case <-ctx.Done():
		lost = &LostError{Group: h.name, Ranks: []int{rank}, Cause: context.Cause(ctx)}
	case <-limit.C:
		lost = &LostError{Group: h.name, Waited: h.limit, Cause: ErrMissing}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.arrived == len(r.here) {
		return nil // even if the group has ended: the others use the round, too
	}
	if lost != nil {
		lost.What = r.what[rank]
		if lost.Ranks == nil {
			lost.Ranks = r.missing()
		}
		h.endLocked(lost)
	}
	return h.err
}

func (r *round) missing() []int {
	var out []int
	for rank, here := range r.here {
		if !here {
			out = append(out, rank)
		}
	}
	return out
}

// compare ends the group if ranks made different calls. It has the same result on all ranks.
func (h *hub) compare(r *round) error {
	for rank, what := range r.what {
		if what != r.what[0] {
			err := &MismatchError{Group: h.name, Rank: [2]int{0, rank}, What: [2]string{r.what[0], what}}
			h.end(err)
			return err
		}
	}
	return nil
}

// local is a rank in the process of the hub.
type local struct {
	hub  *hub
	rank int
}

func (l *local) exchange(ctx context.Context, what string, mine []byte, use func(all [][]byte) error) error {
	return l.hub.exchange(ctx, l.rank, what, mine, use)
}
func (l *local) end(err error)         { l.hub.end(err) }
func (l *local) err() error            { return l.hub.reason() }
func (l *local) done() <-chan struct{} { return l.hub.ended }
func (l *local) leave() error          { return l.hub.leave(l.rank) }
