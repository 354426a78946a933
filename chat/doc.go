// Package chat renders conversations to the prompt that a model was trained on, by
// the checkpoint's chat template: a Jinja template as transformers' apply_chat_template
// runs it.
//
// A template is a program of the checkpoint. It sees the conversation, the tools and the
// names of special tokens, and nothing else: no file, no environment, no Go value. Loops
// and macros are counted, ranges and results are bounded, and a panic of the interpreter
// is an error.
package chat
