package collective

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

var (
	// ErrLost is matched by every [LostError].
	ErrLost = errors.New("collective: a rank is lost")

	// ErrLeft is the cause of a [LostError] for a rank that closed the group.
	ErrLeft = errors.New("it left the group")

	// ErrMissing is the cause of a [LostError] for ranks that did not make a call within the limit, or had
	// not joined when the rendezvous ended.
	ErrMissing = errors.New("it did not come")

	// ErrClosed is returned by calls of a rank that has closed its group.
	ErrClosed = errors.New("collective: the group was closed")
)

// LostError is the error of a group that has ended because ranks left, failed or did not make a call
// in time (C22). It matches [ErrLost] and its cause.
type LostError struct {
	Group  string
	Ranks  []int         // lost or missing ranks, in ascending order
	What   string        // the call, or "the rendezvous", in which the loss was noticed; "" if it was noticed otherwise
	Waited time.Duration // how long the call waited; 0 if it did not reach its limit
	Cause  error
}

// Error names the ranks, the call and the cause.
func (e *LostError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "collective: group %q: ", e.Group)
	noun, verb := "rank", "is"
	if len(e.Ranks) > 1 {
		noun, verb = "ranks", "are"
	}
	fmt.Fprintf(&b, "%s %s %s lost", noun, ranks(e.Ranks), verb)
	if e.What != "" {
		fmt.Fprintf(&b, " in %s", e.What)
	}
	if e.Waited > 0 {
		fmt.Fprintf(&b, " after a wait of %s", e.Waited)
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	return b.String() + "; the group has ended on all ranks"
}

// Unwrap returns ErrLost and the cause.
func (e *LostError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.Cause}
}

// ranks lists ranks for a message.
func ranks(list []int) string {
	text := make([]string, len(list))
	for i, r := range list {
		text[i] = fmt.Sprint(r)
	}
	return strings.Join(text, ", ")
}

// MismatchError is the error of a group that has ended because ranks made different calls: their
// programs or the order of their runs differ.
type MismatchError struct {
	Group string
	Rank  [2]int
	What  [2]string // the calls of the two ranks
}

// Error gives the two calls.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("collective: group %q: rank %d calls %s while rank %d calls %s; all ranks make the same calls in one order",
		e.Group, e.Rank[0], e.What[0], e.Rank[1], e.What[1])
}
