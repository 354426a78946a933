// Package serve answers HTTP requests with a language model, as the completions and chat
// completions API of OpenAI describes it: text in, text out, whole or as server-sent events.
//
// A [Server] is an http.Handler over a runner, a tokenizer and a chat template. It starts
// nothing and listens nowhere: its user runs the runner, and puts the handler into an
// http.Server. Each request has goroutines of its own; the goroutine that steps only appends
// ids to a buffer of the request, so that a slow client holds nobody back.
//
// What a request asks for and the server cannot give is refused with all its names, never
// left out.
package serve
