package metrics

import (
	"pwc/runner"
)

// serving has the metrics that have vLLM's names.
type serving struct {
	model string // label model_name

	prompt, generated int64 // tokens
	preempted         int64 // times that a request gave its blocks back
	ends              [len(endReasons)]int64

	firstToken, interval             histogram // seconds
	total, queue, prefill, decode    histogram // seconds of a request
	inference                        histogram // seconds from the first step of a request to its last token
	promptLengths, generationLengths histogram // tokens of a request
}

// endReasons are vLLM's names for the reasons why requests end (FinishReason).
var endReasons = [...]string{"stop", "length", "abort", "error"}

// endReason returns the index in endReasons.
func endReason(r runner.Reason) int {
	switch r {
	case runner.Stopped:
		return 0
	case runner.Exhausted, runner.MaxPosition:
		return 1
	case runner.Canceled, runner.DeadlineExceeded:
		return 2
	}
	return 3
}

// latencyBounds are vLLM's buckets of times to first tokens, between tokens and of requests, in
// seconds, and further ones up to 15 ms: tokens of a small model are a millisecond apart.
var latencyBounds = []float64{0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.04, 0.05, 0.06, 0.075, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5,
	0.75, 0.8, 1, 1.5, 2, 2.5, 5, 7.5, 10, 15, 20, 30, 40, 50, 60, 80, 120, 160, 240, 480, 640, 960, 1920, 2560, 7680}

// lengthBounds are vLLM's buckets of tokens: 1, 2 and 5 of each power of ten.
var lengthBounds = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000}

func newServing() serving {
	latency, length := func() histogram { return newHistogram(latencyBounds) }, func() histogram { return newHistogram(lengthBounds) }
	return serving{firstToken: latency(), interval: latency(), total: latency(), queue: latency(), prefill: latency(), decode: latency(), inference: latency(),
		promptLengths: length(), generationLengths: length()}
}

func (v *serving) stepped(s *runner.Step) {
	v.prompt += int64(s.PromptTokens)
	v.generated += int64(len(s.FirstTokens) + len(s.Intervals))
	v.preempted = s.Preempted
	v.firstToken.addAll(s.FirstTokens)
	v.interval.addAll(s.Intervals)
}

// finished counts a request. A request without a token is counted by its reason only, because it has
// no times of its phases.
func (v *serving) finished(why runner.Reason, at runner.Times, prompt, generated int) {
	v.ends[endReason(why)]++
	if at.FirstToken.IsZero() {
		return
	}
	v.total.add(at.LastToken.Sub(at.Queued).Seconds())
	v.queue.add(at.Scheduled.Sub(at.Queued).Seconds())
	v.prefill.add(at.FirstToken.Sub(at.Scheduled).Seconds())
	v.decode.add(at.LastToken.Sub(at.FirstToken).Seconds())
	v.inference.add(at.LastToken.Sub(at.Scheduled).Seconds())
	v.promptLengths.add(float64(prompt))
	v.generationLengths.add(float64(generated))
}

// write adds the metrics to a page. It changes the page's prefix and labels, so it is called last.
func (v *serving) write(p *page, last *runner.Step) {
	p.prefix, p.common = "vllm:", []string{"model_name", v.model}
	usage := 0.0
	if last.Blocks > 0 {
		usage = float64(last.UsedBlocks) / float64(last.Blocks)
	}
	p.gauge("num_requests_running", "Requests in the batch.", float64(last.Running))
	p.gauge("num_requests_waiting", "Requests that wait for room.", float64(last.Waiting))
	p.gauge("kv_cache_usage_perc", "Part of the KV cache in use, from 0 to 1.", usage)
	p.counter("num_preemptions_total", "Times that a request gave its blocks back.", v.preempted)
	p.counter("prompt_tokens_total", "Prompt tokens of requests, counted when the first token is read.", v.prompt)
	p.counter("generation_tokens_total", "Tokens that were generated.", v.generated)
	p.head("request_success_total", "counter", "Requests that ended, by reason.")
	for i, name := range endReasons {
		p.value("request_success_total", float64(v.ends[i]), "finished_reason", name)
	}
	p.histogram("time_to_first_token_seconds", "Time from the arrival of a request to its first token.", &v.firstToken)
	p.histogram("inter_token_latency_seconds", "Time from one token of a request to the next.", &v.interval)
	p.histogram("e2e_request_latency_seconds", "Time from the arrival of a request to its last token.", &v.total)
	p.histogram("request_queue_time_seconds", "Time from the arrival of a request to its first step.", &v.queue)
	p.histogram("request_prefill_time_seconds", "Time from the first step of a request to its first token.", &v.prefill)
	p.histogram("request_decode_time_seconds", "Time from the first token of a request to its last.", &v.decode)
	p.histogram("request_inference_time_seconds", "Time from the first step of a request to its last token.", &v.inference)
	p.histogram("request_prompt_tokens", "Tokens of the prompt of a request.", &v.promptLengths)
	p.histogram("request_generation_tokens", "Tokens of the answer to a request.", &v.generationLengths)
}

func (p *page) counter(name, help string, n int64) {
	p.head(name, "counter", help)
	p.value(name, float64(n))
}
