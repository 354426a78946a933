// Package runner serves a language model with continuous batching over a paged
// KV cache. It embeds package piecewise as any program would, through its public
// API, and is meant to be read: what a model runner must do at every step is
// here, and what a server adds around it (tokens from text, HTTP: package
// serve) is not. Ranks of a divided model follow the runner that schedules (Options.Peers).
//
// Requests join and leave at every step. A step has one row for each request
// that decodes, and beside them prompts in chunks, up to [Options.MaxTokens]
// rows; it is padded to a captured size. When the cache has no block left the
// last request in the order of priority and arrival gives its blocks back and is
// computed anew later, and no token of it changes or is lost.
//
// A step is a run of four functions of one module: the model's @forward and
// @logits, and two of those that [New] adds to it, which choose tokens on the
// device and hand them to the next step there. The host issues a step before it knows
// what the one before it sampled; only ids reach it. What a request ends with is
// therefore seen one step late, at the cost of a row.
//
// The order is [New] → [Runner.Plan] → [Runner.Load] → [Runner.Submit] and
// [Runner.Run], or [Runner.Step] by Step → [Runner.Close]. Submit, Stats and the
// methods of a [Sequence] may be called from any goroutine. The package starts
// none.
package runner
