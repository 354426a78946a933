// Package collective joins ranks into groups: N ranks in one process, or N processes on one or
// several hosts. A rank is one device, used by one goroutine.
//
// Ranks of a group make the same calls in the same order. A lost rank ends the group: all ranks get a
// [LostError] that names it within ten seconds (C22). Every wait has a limit, after which the error
// names the missing ranks. A group that has ended cannot be used again; a restart joins a new one.
//
// [Kind] lists the routines that programs call. Package collective/host computes them on host devices
// by [Group.Exchange], package collective/cuda on GPUs over peer memory or NCCL.
package collective

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// MaxSize is the largest number of ranks of a group.
const MaxSize = 1024

// MaxExchange is the most bytes that a rank gives to one [Group.Exchange].
const MaxExchange = 1 << 20

// Options configure a group. All ranks use the same options.
type Options struct {
	// Limit is how long a call waits for the other ranks. 0: one minute.
	Limit time.Duration

	// JoinLimit is how long Join waits for all ranks. 0: one minute.
	JoinLimit time.Duration

	// Token is a secret of up to MaxToken bytes that ranks send when they join over TCP or a
	// file, so that processes of another run are refused.
	Token string
}

// MaxToken is the most bytes of Options.Token.
const MaxToken = 256

func (o Options) limit() time.Duration     { return positive(o.Limit) }
func (o Options) joinLimit() time.Duration { return positive(o.JoinLimit) }

func positive(d time.Duration) time.Duration {
	if d <= 0 {
		return time.Minute
	}
	return d
}

// Group is one rank's membership of a group. Exchange and Barrier must not overlap; all other methods may
// be called at any time, from any goroutine.
type Group struct {
	name       string
	rank, size int
	met        string
	member     member
}

// member is how a rank reaches the others.
type member interface {
	exchange(ctx context.Context, what string, mine []byte, use func(all [][]byte) error) error
	end(err error)
	err() error
	done() <-chan struct{}
	leave() error
}

// Name returns the group's name, which programs have as an attribute of their calls.
func (g *Group) Name() string { return g.name }

// Rank returns the number of this rank, from 0.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of ranks.
func (g *Group) Size() int { return g.size }

// Met returns where the ranks met: "in one process", or an address.
func (g *Group) Met() string { return g.met }

// Exchange sends mine, up to MaxExchange bytes, to all ranks and calls use with the bytes of all
// ranks, in rank order. The slices are valid until use returns, and must not be written; use must not
// wait for another rank. mine may change once Exchange has returned. what describes the call, in up to
// 256 bytes. If it differs between ranks, the group ends with a [MismatchError]. Exchange returns the error of use,
// which no other rank sees.
//
// If the context ends while a rank is missing, the group ends, since the other ranks wait for this one.
func (g *Group) Exchange(ctx context.Context, what string, mine []byte, use func(all [][]byte) error) error {
	switch {
	case len(mine) > MaxExchange:
		return fmt.Errorf("collective: group %q: exchange of %d bytes, the most is %d", g.name, len(mine), MaxExchange)
	case len(what) > maxWhat:
		return fmt.Errorf("collective: group %q: a description of %d bytes, the most is %d", g.name, len(what), maxWhat)
	}
	return g.member.exchange(ctx, what, mine, use)
}

// Barrier returns when all ranks have called it.
func (g *Group) Barrier(ctx context.Context) error {
	return g.Exchange(ctx, "barrier", nil, func([][]byte) error { return nil })
}

// Err returns why the group has ended, a [LostError] or a [MismatchError]; nil while it lives.
func (g *Group) Err() error { return g.member.err() }

// Done is closed when the group has ended.
func (g *Group) Done() <-chan struct{} { return g.member.done() }

// Fail ends the group for all ranks, because this rank cannot continue.
func (g *Group) Fail(cause error) {
	if cause == nil {
		cause = errors.New("it failed")
	}
	g.member.end(&LostError{Group: g.name, Ranks: []int{g.rank}, Cause: cause})
}

// Lose ends the group for all ranks, with an error which says that the given rank is lost: this rank
// waited for it, for the given duration, in a call. what describes the call.
func (g *Group) Lose(rank int, what string, waited time.Duration) {
	g.member.end(&LostError{Group: g.name, Ranks: []int{rank}, What: what, Waited: waited, Cause: ErrMissing})
}

// Close leaves the group. Ranks that wait for this one, or make a call later, get a [LostError] that
// matches [ErrLeft].
func (g *Group) Close() error { return g.member.leave() }

// Local returns the memberships of all ranks of a group within this process, by rank.
func Local(name string, size int, o Options) ([]*Group, error) {
	if err := checkGroup(name, 0, size); err != nil {
		return nil, err
	}
	h := newHub(name, size, o.limit())
	groups := make([]*Group, size)
	for rank := range groups {
		groups[rank] = &Group{name, rank, size, "in one process", &local{h, rank}}
	}
	return groups, nil
}

// maxName is the most bytes of a group's name.
const maxName = 64

// checkGroup checks the name of a group, and a rank and size.
func checkGroup(name string, rank, size int) error {
	switch {
	case name == "" || len(name) > maxName:
		return fmt.Errorf("collective: a group's name has 1 to %d bytes, not %d", maxName, len(name))
	case size < 1 || size > MaxSize:
		return fmt.Errorf("collective: group %q: a group has 1 to %d ranks, not %d", name, MaxSize, size)
	case rank < 0 || rank >= size:
		return fmt.Errorf("collective: group %q: rank %d of %d ranks, which count from 0", name, rank, size)
	}
	return nil
}
