// Package chat renders conversations to prompts by the chat template of a checkpoint: a Jinja
// template, executed as transformers' apply_chat_template does.
//
// A template is an untrusted program. It can read the conversation, the tools and the texts of
// special tokens, but no file, no environment and no Go value. Loops and macros are counted,
// ranges and results are bounded, and a panic of the interpreter is an error. Two things are not
// bounded, and can end the process: the memory of one expression, such as 'a' * 1000000000000, and
// the stack of the interpreter for a value that contains itself.
package chat
