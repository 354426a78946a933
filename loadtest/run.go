package loadtest

import (
	"context"
	"sync"
	"time"
)

// Target serves requests.
type Target interface {
	// Complete serves one request. It calls token for each token, or once for several that arrive
	// together, and returns the number of tokens at the end of the answer. Several goroutines
	// call Complete. Its calls of token do not overlap and end before it returns.
	Complete(ctx context.Context, q Request, token func()) (tokens int, err error)
}

// Measured is a finished request. Times are relative to the start of the run.
type Measured struct {
	Prompt, Output int             // tokens of the prompt, and of the answer
	Sent, End      time.Duration   // call and return of Complete
	Tokens         []time.Duration // arrival of tokens: one entry for each call of token
	Err            error
}

// Run sends the requests of a schedule to a target and returns them, measured, in the order of the
// schedule. If clients is 0 (open loop), it sends each request at its arrival time, independent of
// running requests. Otherwise (closed loop), that many clients each send one request after the other,
// and arrival times have no effect. If ctx ends before all requests are sent, Run sends no more, and
// returns the error of ctx once all calls have returned.
func Run(ctx context.Context, target Target, schedule []Request, clients int) ([]Measured, error) {
	out := make([]Measured, len(schedule))
	start := time.Now()
	one := func(i int) {
		m := &out[i]
		m.Prompt, m.Sent = len(schedule[i].Prompt), time.Since(start)
		m.Output, m.Err = target.Complete(ctx, schedule[i], func() { m.Tokens = append(m.Tokens, time.Since(start)) })
		m.End = time.Since(start)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	if clients > 0 {
		next := make(chan int)
		defer close(next)
		for range min(clients, len(schedule)) {
			wg.Go(func() {
				for i := range next {
					one(i)
				}
			})
		}
		for i := range schedule {
			if err := ctx.Err(); err != nil { // select would choose at random
				return unsent(out, i, err)
			}
			select {
			case next <- i:
			case <-ctx.Done():
				return unsent(out, i, ctx.Err())
			}
		}
		return out, nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range schedule {
		if err := ctx.Err(); err != nil {
			return unsent(out, i, err)
		}
		timer.Reset(schedule[i].At - time.Since(start))
		select {
		case <-timer.C:
			wg.Go(func() { one(i) })
		case <-ctx.Done():
			return unsent(out, i, ctx.Err())
		}
	}
	return out, nil
}

// unsent sets the error of the requests from first on, which were not sent, and returns all requests.
func unsent(all []Measured, first int, err error) ([]Measured, error) {
	for i := range all[first:] {
		all[first+i].Err = err
	}
	return all, err
}
