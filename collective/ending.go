package collective

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// ending is why a group has ended, in the form that frames carry.
type ending struct {
	Ranks    []int     `json:"ranks,omitempty"` // of a LostError
	Waited   int64     `json:"waited,omitempty"`
	Cause    string    `json:"cause,omitempty"`
	Known    string    `json:"known,omitempty"` // a cause that callers compare: "left" or "missing"
	Call     string    `json:"call,omitempty"`
	Mismatch [2]int    `json:"mismatch,omitzero"` // ranks of a MismatchError
	What     [2]string `json:"what,omitzero"`
}

// known are the causes that errors match in other processes, too.
var known = map[string]error{"left": ErrLeft, "missing": ErrMissing}

// encodeEnding returns an error as a payload of at most maxText bytes.
func encodeEnding(err error) []byte {
	var e ending
	var lost *LostError
	var mismatch *MismatchError
	switch {
	case errors.As(err, &mismatch):
		e.Mismatch, e.What = mismatch.Rank, mismatch.What
	case errors.As(err, &lost):
		e.Ranks, e.Waited, e.Call = lost.Ranks, int64(lost.Waited), lost.What
		if lost.Cause != nil {
			e.Cause = lost.Cause.Error()
		}
		for name, cause := range known {
			if errors.Is(lost.Cause, cause) {
				e.Known = name
			}
		}
	default:
		e.Cause = fmt.Sprint(err)
	}
	e.Ranks = e.Ranks[:min(len(e.Ranks), 100)] // bounds the size of the frame
	e.Cause = cut(e.Cause, 512)
	b, _ := json.Marshal(e) // numbers and strings: it cannot fail
	if len(b) > maxText {   // JSON has up to six bytes for one, such as \u003c
		e.Cause, e.Call = cut(e.Cause, 128), cut(e.Call, 128)
		b, _ = json.Marshal(e)
	}
	return b
}

// cut ends a text of more than n bytes after at most n, at a boundary of characters, with "…".
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// decodeEnding returns the error of a payload for a group of size ranks. If the payload is not valid or names
// no rank, the lost rank is from, which sent it.
func decodeEnding(group string, size, from int, b []byte) error {
	invalid := func(err error) error { return &LostError{Group: group, Ranks: []int{from}, Cause: err} }
	var e ending
	if err := json.Unmarshal(b, &e); err != nil {
		return invalid(fmt.Errorf("%w: the end of the group: %w", errFrame, err))
	}
	outside := func(r int) bool { return r < 0 || r >= size }
	if slices.ContainsFunc(e.Ranks, outside) || slices.ContainsFunc(e.Mismatch[:], outside) {
		return invalid(fmt.Errorf("%w: the end of the group names ranks outside it", errFrame))
	}
	if e.What != [2]string{} {
		return &MismatchError{Group: group, Rank: e.Mismatch, What: e.What}
	}
	if len(e.Ranks) == 0 {
		e.Ranks = []int{from}
	}
	cause := known[e.Known]
	if cause == nil {
		cause = errors.New(e.Cause)
	} else if details, ok := strings.CutPrefix(e.Cause, cause.Error()); ok && details != "" {
		cause = fmt.Errorf("%w%s", cause, details)
	}
	return &LostError{Group: group, Ranks: e.Ranks, What: e.Call, Waited: time.Duration(e.Waited), Cause: cause}
}
