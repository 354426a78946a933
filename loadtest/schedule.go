package loadtest

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Lengths are numbers of tokens, uniform in [Min, Max].
type Lengths struct {
	Min, Max int // in [1, 2^30]
}

// ParseLengths reads "128", or "64-512".
func ParseLengths(s string) (Lengths, error) {
	low, high, ranged := strings.Cut(s, "-")
	if !ranged {
		high = low
	}
	a, err1 := strconv.Atoi(low)
	b, err2 := strconv.Atoi(high)
	l := Lengths{a, b}
	if err1 != nil || err2 != nil || !l.valid() {
		return Lengths{}, fmt.Errorf("loadtest: %q is no number of tokens, such as 128, and no range, such as 64-512", s)
	}
	return l, nil
}

// String returns the form that [ParseLengths] reads.
func (l Lengths) String() string {
	if l.Min == l.Max {
		return strconv.Itoa(l.Min)
	}
	return fmt.Sprintf("%d-%d", l.Min, l.Max)
}

const maxLength = 1 << 30 // tokens

func (l Lengths) valid() bool { return l.Min >= 1 && l.Max >= l.Min && l.Max <= maxLength }

func (l Lengths) draw(r *rand.Rand) int { return l.Min + r.IntN(l.Max-l.Min+1) }

// Options configure a schedule.
type Options struct {
	Seed     uint64
	Requests int
	Prompt   Lengths // tokens of prompts
	Output   Lengths // requested tokens

	// Rate is the mean number of arriving requests a second, as a Poisson process: intervals are
	// exponential. 0: all requests arrive at the start; for a closed loop, in which clients take
	// them when they are free.
	Rate float64

	// Vocabulary bounds the ids of prompts, which are drawn from [1, Vocabulary).
	Vocabulary int
}

// Request is a request of a schedule.
type Request struct {
	At     time.Duration // from the start of the run
	Prompt []int32
	Output int // tokens
}

const minRate, maxRate = 1e-3, 1e6 // requests a second; at minRate, times of MaxRequests arrivals fit into time.Duration

// MaxRequests bounds the requests of a schedule.
const MaxRequests = 1 << 20

// Schedule returns the requests in order of arrival. It is a function of the options. Arrivals, lengths
// of prompts, lengths of outputs and ids have separate random numbers: another Rate changes no length
// and no id, and another Output changes no arrival and no prompt.
func Schedule(o Options) ([]Request, error) {
	switch {
	case o.Requests < 1 || o.Requests > MaxRequests:
		return nil, fmt.Errorf("loadtest: %d requests, want 1 to %d", o.Requests, MaxRequests)
	case !o.Prompt.valid() || !o.Output.valid():
		return nil, fmt.Errorf("loadtest: prompts of %v and outputs of %v tokens, want ranges from 1 to %d", o.Prompt, o.Output, maxLength)
	case o.Rate != 0 && !(o.Rate >= minRate && o.Rate <= maxRate):
		return nil, fmt.Errorf("loadtest: a rate of %g requests a second, want 0 or from %g to %g", o.Rate, minRate, maxRate)
	case o.Vocabulary < 2:
		return nil, fmt.Errorf("loadtest: a vocabulary of %d ids, want at least 2", o.Vocabulary)
	}
	stream := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(o.Seed, n)) }
	arrivals, prompts, outputs, ids := stream(1), stream(2), stream(3), stream(4)
	out := make([]Request, o.Requests)
	at := 0.0
	for i := range out {
		if o.Rate > 0 {
			at += arrivals.ExpFloat64() / o.Rate
		}
		q := Request{At: time.Duration(at * float64(time.Second)), Prompt: make([]int32, o.Prompt.draw(prompts)), Output: o.Output.draw(outputs)}
		for j := range q.Prompt {
			q.Prompt[j] = int32(1 + ids.IntN(o.Vocabulary-1))
		}
		out[i] = q
	}
	return out, nil
}
