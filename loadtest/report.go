package loadtest

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Summary describes a list of durations, in milliseconds.
type Summary struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean_ms"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P95   float64 `json:"p95_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

// Percentile returns the p-th percentile of sorted values, p in [0, 100], by linear interpolation
// between the closest ranks, as numpy.percentile does by default. It is NaN without values and for
// other p.
func Percentile(values []float64, p float64) float64 {
	if len(values) == 0 || !(p >= 0 && p <= 100) {
		return math.NaN()
	}
	at := p / 100 * float64(len(values)-1)
	low := int(at)
	if low+1 >= len(values) {
		return values[len(values)-1]
	}
	return values[low] + (at-float64(low))*(values[low+1]-values[low])
}

// Summarize returns the summary of values, which it sorts.
func Summarize(values []float64) Summary {
	if len(values) == 0 {
		return Summary{}
	}
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	at := func(p float64) float64 { return Percentile(values, p) }
	return Summary{Count: len(values), Mean: sum / float64(len(values)), P50: at(50), P90: at(90), P95: at(95), P99: at(99), Max: values[len(values)-1]}
}

// Limits are the latencies that a request has to meet to count as goodput; 0: no limit.
type Limits struct {
	TTFT time.Duration // time to the first token
	TPOT time.Duration // time per token after the first, on average over the request
	E2E  time.Duration // time to the end
}

// Report is the result of a run.
type Report struct {
	Requests  int     `json:"requests"`
	Completed int     `json:"completed"`
	Failed    int     `json:"failed"`
	Error     string  `json:"error,omitempty"` // of the first failed request
	Seconds   float64 `json:"seconds"`         // from the start to the end of the last request
	Prompt    int64   `json:"prompt_tokens"`   // of the completed requests, as the following fields
	Output    int64   `json:"output_tokens"`

	RequestRate float64 `json:"requests_per_second"`
	OutputRate  float64 `json:"output_tokens_per_second"`
	TotalRate   float64 `json:"total_tokens_per_second"` // prompts and outputs
	Good        int     `json:"good"`                    // requests within the limits
	Goodput     float64 `json:"goodput_requests_per_second"`

	TTFT Summary `json:"time_to_first_token"`
	ITL  Summary `json:"inter_token_latency"`
	TPOT Summary `json:"time_per_output_token"` // after the first, by request
	E2E  Summary `json:"end_to_end"`

	ttft, itl, e2e []float64 // sorted, in milliseconds
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// NewReport summarizes measured requests. It sets Err of a request that ended without a token.
func NewReport(measured []Measured, limits Limits) *Report {
	r := &Report{Requests: len(measured)}
	var tpot []float64
	var end time.Duration
	for i := range measured {
		m := &measured[i]
		end = max(end, m.End)
		if m.Err == nil && len(m.Tokens) == 0 {
			m.Err = fmt.Errorf("loadtest: request %d ended without a token", i)
		}
		if m.Err != nil {
			if r.Failed++; r.Error == "" {
				r.Error = m.Err.Error()
			}
			continue
		}
		r.Completed++
		r.Prompt += int64(m.Prompt)
		r.Output += int64(m.Output)
		first, last := m.Tokens[0]-m.Sent, m.Tokens[len(m.Tokens)-1]-m.Tokens[0]
		r.ttft = append(r.ttft, ms(first))
		r.e2e = append(r.e2e, ms(m.End-m.Sent))
		for j, at := range m.Tokens[1:] {
			r.itl = append(r.itl, ms(at-m.Tokens[j]))
		}
		each := time.Duration(0)
		if m.Output > 1 {
			each = last / time.Duration(m.Output-1)
			tpot = append(tpot, ms(each))
		}
		if limits.keeps(first, each, m.End-m.Sent) {
			r.Good++
		}
	}
	r.TTFT, r.ITL, r.TPOT, r.E2E = Summarize(r.ttft), Summarize(r.itl), Summarize(tpot), Summarize(r.e2e)
	if r.Seconds = end.Seconds(); r.Seconds > 0 {
		r.RequestRate = float64(r.Completed) / r.Seconds
		r.OutputRate = float64(r.Output) / r.Seconds
		r.TotalRate = float64(r.Prompt+r.Output) / r.Seconds
		r.Goodput = float64(r.Good) / r.Seconds
	}
	return r
}

func (l Limits) keeps(ttft, tpot, e2e time.Duration) bool {
	return (l.TTFT == 0 || ttft <= l.TTFT) && (l.TPOT == 0 || tpot <= l.TPOT) && (l.E2E == 0 || e2e <= l.E2E)
}
