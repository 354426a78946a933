package loadtest

import (
	"context"
	"sync"
	"time"
)

// Target serves requests.
type Target interface {
	// Complete serves one request, calls token whenever a token has come, or several at once,
	// and returns the number of tokens when the answer has ended. Calls come from many
	// goroutines; those of token for one request come from one at a time, before the return.
	Complete(ctx context.Context, q Request, token func()) (tokens int, err error)
}

// Measured is what became of a request. Times are from the start of the run.
type Measured struct {
	Prompt, Output int             // tokens of the prompt, and of the answer
	Sent, End      time.Duration   // from the call to its return
	Tokens         []time.Duration // when tokens came: as often as the target told
	Err            error
}

// Run sends the requests of a schedule to a target and returns what became of each, in their
// order. In an open loop, which a clients of 0 means, each is sent when it arrives, whatever is
// still running; in a closed loop that many clients send one after the other. After the end of
// ctx nothing more is sent, and Run returns once all calls have, with the error of ctx.
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
			select {
			case next <- i:
			case <-ctx.Done():
				unsent(out[i:], ctx.Err())
				return out, ctx.Err()
			}
		}
		return out, nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range schedule {
		timer.Reset(schedule[i].At - time.Since(start))
		select {
		case <-timer.C:
			wg.Go(func() { one(i) })
		case <-ctx.Done():
			unsent(out[i:], ctx.Err())
			return out, ctx.Err()
		}
	}
	return out, nil
}

// unsent says of requests that they were not sent.
func unsent(rest []Measured, err error) {
	for i := range rest {
		rest[i].Err = err
	}
}
