// Package loadtest measures a server of language models under load, as the serving benchmarks of
// vLLM and SGLang do. Requests of a schedule arrive at a rate (open loop) or keep a number of
// clients busy (closed loop). It measures the times to the first token, between tokens and to the
// end of each request.
//
// [Schedule] depends only on its options, so a run can be repeated against any [Target]: a
// server by HTTP ([Client]), or a runner in the process. A [Report] has percentiles and the rates
// of requests and tokens; [Report.SVG] draws it.
package loadtest
