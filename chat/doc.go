// Package chat renders conversations to prompts by the chat template of a checkpoint: a Jinja
// template, executed as transformers' apply_chat_template does.
//
// A template is an untrusted program. It can read the fields of a [Conversation], the texts of special tokens and the
// time, but no file, no environment and no other Go value. Iterations, and calls of macros and of call blocks, are
// counted. Ranges, all output, values that are printed or get a name, and texts that are repeated, replaced, joined,
// indented or formatted are bounded. No value can be put into itself. A panic of the interpreter is an error.
//
// The interpreter cannot be limited within an expression, so three things are not bounded:
//   - One tag can compute many values of up to MaxResult bytes, as operands of + and ~ or by filters
//     and methods such as list and split. A tag has at most 4 KiB outside of strings, so it computes
//     some thousand at most. That can take more memory than a machine has, and end the process.
//   - A list or dict that grows after others contain it, several times on each of many levels, has
//     a text that grows exponentially. Operators, and filters without a limit, read all of it.
//   - A slice of a text that is not ASCII counts to its bounds, also beyond the text. Such a count
//     does not end with the context.
package chat
