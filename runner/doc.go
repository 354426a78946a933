// Package runner serves a language model with continuous batching over a paged KV cache. It is an
// example of an embedder: it uses only the public API of package piecewise. The work that a server
// adds to a model runner, such as tokens from text and HTTP, is in package serve.
//
// Requests can join and leave at every step. A step has one row for each request that decodes, and
// chunks of prompts in further rows, up to [Options.MaxTokens] rows. It is padded to a captured size
// if one serves it. If a decode needs a block and the KV cache has no free one, the runner
// preempts the last running request in the order of priority and arrival: it frees the request's
// blocks, and later computes their keys and values again. The request keeps its tokens.
//
// A step runs functions of one module: the model's @forward and @logits, and functions that [New]
// adds ([WithSampling]). These choose tokens on the device and pass them to the next step on the
// device. The host issues a step before it has read the tokens that the previous step sampled, so
// it finds a stop token one step late, which costs one row. A [LogitsProcessor] makes the host wait.
//
// The order of calls is [New], [Runner.Plan], [Runner.Load], [Runner.Submit] with [Runner.Run] or
// [Runner.Step], [Runner.Close]. Any goroutine may call Submit, Stats, Drain, Close, and the methods
// of a [Sequence]. The package keeps goroutines only for [Options.Peers]: one for each, until Close.
//
// With [Options.Peers] or [Options.Processes], several ranks run one model. Rank 0 takes the requests
// and decides what runs.
package runner
