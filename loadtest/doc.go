// Package loadtest measures a server of language models under load, as the serving benchmarks of
// vLLM and SGLang do: requests of a schedule arrive at a rate (open loop) or keep a number of
// clients busy (closed loop), and of each the times to the first token, between tokens and to the
// end are taken.
//
// A [Schedule] is a function of its options, so a run can be repeated against anything that is a
// [Target]: a server by HTTP ([Client]), or a runner in the process. A [Report] has percentiles
// and the rates of requests and tokens; [Report.SVG] draws it.
package loadtest
