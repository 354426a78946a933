// Package serve answers HTTP requests with a language model, by the completions and chat
// completions API of OpenAI, in one answer or as server-sent events.
//
// A [Server] is an http.Handler over a runner, a tokenizer and a chat template. It starts no
// goroutine outside of requests and opens no port: the caller runs the runner and puts the
// handler into an http.Server. Within a request, each choice of a completion or chat has a goroutine.
// The runner's goroutine only appends to buffers of the request, so a slow client delays no other
// client.
//
// The server refuses unknown fields of a body, options that it does not support, and values out of
// range. One error names all unknown fields outside of messages, or all unknown fields of one list of
// content parts or tool calls, or all unsupported options. Fields that only templates read are not
// checked: the others of messages, those of tools and of chat_template_kwargs.
package serve
