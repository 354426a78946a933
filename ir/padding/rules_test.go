package padding_test

import (
	"fmt"
	"strings"
	"testing"

	"pwc/ir"
	"pwc/ir/padding"
)

// frame surrounds the statements of a case. Parameters with the extent N have rows, and %g
// has rows of twelve elements of its first axis. All other values are uniform in N.
const frame = `pwc 1
module "case" {
  sym N in [2, 64] batch
  sym M in [1, 16] batch
  sym H in [1, 8]
  sym B in [1, 64] load
  sym r in [0, 1] load
  group tp in 2 rank r
  op "s::s"(tensor, mut tensor) split
  op "s::fresh"(tensor) -> (tensor) split
  op "my::op"(tensor) -> (tensor) capture
  op "my::log"(tensor) capture
  op "my::rows"(tensor, tensor) -> (tensor) capture rowwise
  op "my::put"(tensor, mut tensor) capture rowwise
  weight @w : f32[8, 8]
  weight @n : f32[8]
  weight @experts : f32[4, 8, 8]
  weight @table : f32[100, 4]
  state @kv : f32[B, 8]
  func @f(%%x: f32[N, 8], %%y: f32[N, 8], %%h: f32[N, 4, 8], %%g: f32[12*N, 4], %%v: f32[N], %%ids: i32[N], %%slots: i32[N],
      %%u: f32[8, 8], %%four: f32[4, 8], %%k: i32[4], %%m: f32[M, 8], %%c: f32[N, 4], %%own: mut f32[N, 8], %%rng: i64[2], %%part: f32[N, 8] partial over tp, %%part2: f32[N, 8] varying over tp) -> (%s) {
    %s
  }
}
`

// cases has statements for each padding rule. want is a part of the one report of Check, or
// "" if the function can be padded.
var cases = []struct{ name, body, returns, types, want string }{
	// Pointwise: rows stay rows, uniform operands broadcast.
	{"add", "%r = add(%x, %y)", "%r", "f32[N, 8]", ""},
	{"add uniform row", "%r = add(%x, @n)", "%r", "f32[N, 8]", ""},
	{"add uniform", "%r = add(%u, @n)", "%r", "f32[8, 8]", ""},
	{"add two row axes", "%a = reshape(%v, shape=[N, 1])\n%r = add(%a, %v)", "%r", "f32[N, N]", "add: result 0 (f32[N, N]) cannot be padded over N: N is in axes 0 and 1"},
	{"where", "%b = compare(%x, 0, dir=gt)\n%r = where(%b, %x, %y)", "%r", "f32[N, 8]", ""},

	// Reductions.
	{"sum other axis", "%r = sum(%x, axes=[1])", "%r", "f32[N]", ""},
	{"sum rows", "%r = sum(%x, axes=[0])", "%r", "f32[8]", "sum mixes rows of N: it reduces axis 0, which holds the rows"},
	{"sum all, from the end", "%r = sum(%x, axes=[-1, -2])", "%r", "f32[]", "sum mixes rows"},
	{"mean keepdims", "%r = mean(%x, axes=[0], keepdims=true)", "%r", "f32[1, 8]", "mean mixes rows"},
	{"mean of groups", "%a = reshape(%g, shape=[N, 48])\n%r = mean(%a, axes=[1], keepdims=true)", "%r", "f32[N, 1]", ""},
	{"max of groups", "%a = reshape(%g, shape=[N, 48])\n%r = max(%a, axes=[1])", "%r", "f32[N]", ""},
	{"min other axis", "%r = min(%h, axes=[1, 2])", "%r", "f32[N]", ""},
	{"min grouped axis", "%r = min(%g, axes=[0])", "%r", "f32[4]", "min mixes rows"},
	{"prod uniform", "%r = prod(%u, axes=[0])", "%r", "f32[8]", ""},
	{"sum over another batch symbol", "%r = sum(%m, axes=[0])", "%r", "f32[8]", ""},
	{"cumsum other axis", "%r = cumsum(%x, axis=1)", "%r", "f32[N, 8]", ""},
	{"cumsum rows", "%r = cumsum(%x, axis=0)", "%r", "f32[N, 8]", "cumsum mixes rows of N: it runs along axis 0, which holds the rows"},
	{"argmax other axis", "%r = argmax(%x)", "%r", "i32[N]", ""},
	{"argmax rows", "%r = argmax(%x, axis=0)", "%r", "i32[8]", "argmax mixes rows"},
	{"topk other axis", "%r, %i = topk(%x, k=2)", "%r", "f32[N, 2]", ""},
	{"topk rows", "%t = transpose(%x, perm=[1, 0])\n%r, %i = topk(%t, k=2)", "%i", "i32[8, 2]", "topk mixes rows"},
	{"softmax other axis", "%r = softmax(%x)", "%r", "f32[N, 8]", ""},
	{"softmax rows", "%r = softmax(%x, axis=0)", "%r", "f32[N, 8]", "softmax mixes rows"},
	{"softmax groups", "%r = softmax(%g, axis=0)", "%r", "f32[12*N, 4]", "softmax mixes rows"},

	// Norms and rope.
	{"rms_norm", "%r = rms_norm(%x, @n, eps=1e-5)", "%r", "f32[N, 8]", ""},
	{"rms_norm rows", "%r = rms_norm(%v, %v, eps=1e-5)", "%r", "f32[N]", "rms_norm mixes rows"},
	{"layer_norm", "%r = layer_norm(%x, @n, @n, eps=1e-5)", "%r", "f32[N, 8]", ""},
	{"layer_norm rows", "%t = transpose(%x, perm=[1, 0])\n%r = layer_norm(%t, %v, %v, eps=1e-5)", "%u", "f32[8, 8]", "layer_norm mixes rows"},
	{"rope", "%r = rope(%h, %c, %c)", "%r", "f32[N, 4, 8]", ""},
	{"rope heads are rows", "%t = transpose(%h, perm=[1, 0, 2])\n%a = slice(@table, axis=0, start=0, end=4)\n%a2 = transpose(%a, perm=[1, 0])\n%t2 = rope(%t, %a2, %a2)\n%r = transpose(%t2, perm=[1, 0, 2])", "%r", "f32[N, 4, 8]", ""},
	{"rope pairs rows", "%t = transpose(%h, perm=[1, 2, 0])\n%z = full(0, shape=[4, 1], dtype=f32)\n%r = rope(%t, %z, %z)", "%u", "f32[8, 8]", "rope mixes rows of N: it pairs elements of axis 2"},
	{"rope rotates as many as rows", "%z = full(0, shape=[4, N], dtype=f32)\n%b = full(1, shape=[4, 2, 128], dtype=f32)\n%r = rope(%b, %z, %z)", "%r", "f32[4, 2, 128]", "the number of rotated elements is the number of rows"},

	// GEMMs.
	{"matmul", "%r = matmul(%x, %u)", "%r", "f32[N, 8]", ""},
	{"matmul batched rows", "%t = transpose(%h, perm=[0, 2, 1])\n%r = matmul(%h, %t)", "%r", "f32[N, 4, 4]", ""},
	{"matmul contracts rows", "%t = transpose(%x, perm=[1, 0])\n%r = matmul(%t, %x)", "%r", "f32[8, 8]", "matmul mixes rows of N: it contracts axis 1"},
	{"matmul rows by rows", "%t = transpose(%x, perm=[1, 0])\n%r = matmul(%x, %t)", "%u", "f32[8, 8]", "matmul: result 0 (f32[N, N]) cannot be padded over N"},
	{"matmul rows at the right", "%t = transpose(%x, perm=[1, 0])\n%a = matmul(%u, %t)\n%r = transpose(%a, perm=[1, 0])", "%r", "f32[N, 8]", ""},
	{"linear", "%r = linear(%x, @w, @n)", "%r", "f32[N, 8]", ""},
	{"linear rows are outputs", "%a = linear(%u, %x, %v)\n%r = transpose(%a, perm=[1, 0])", "%r", "f32[N, 8]", ""},
	{"linear contracts rows", "%t = transpose(%x, perm=[1, 0])\n%r = linear(%t, %t)", "%r", "f32[8, 8]", "linear mixes rows of N: it contracts axis 1"},
	{"linear_select", "%r = linear_select(%x, @experts, %ids, %four)", "%r", "f32[N, 8]", ""},
	{"linear_select several for a row", "%a = reshape(%x, shape=[N, 1, 8])\n%b = reshape(%k, shape=[1, 4])\n%r = linear_select(%a, @experts, %b)", "%r", "f32[N, 4, 8]", ""},
	{"linear_select one row for many", "%r = linear_select(@n, @experts, %ids)", "%r", "f32[N, 8]", ""},
	{"linear_select rows are outputs", "%t = reshape(%x, shape=[1, N, 8])\n%b = reshape(%v, shape=[1, N])\n%z = full(0, shape=[8], dtype=i32)\n%a = linear_select(%u, %t, %z, %b)\n%r = transpose(%a, perm=[1, 0])", "%r", "f32[N, 8]", ""},
	{"linear_select by rows of x", "%t = transpose(%h, perm=[1, 0, 2])\n%r = linear_select(%t, @experts, %ids)\n%r2 = transpose(%r, perm=[1, 0, 2])", "%r2", "f32[N, 4, 8]", ""},
	{"linear_select two row axes", "%a = reshape(%ids, shape=[N, 1])\n%r = linear_select(%x, @experts, %a)", "%u", "f32[8, 8]", "linear_select: result 0 (f32[N, N, 8]) cannot be padded over N"},
	{"linear_select contracts rows", "%t = transpose(%x, perm=[1, 0])\n%w = reshape(%t, shape=[1, 8, N])\n%z = full(0, shape=[8], dtype=i32)\n%r = linear_select(%t, %w, %z)", "%u", "f32[8, 8]", "linear_select mixes rows of N: it contracts axis 1"},
	{"linear_select of rows", "%w = reshape(%x, shape=[N, 1, 8])\n%r = linear_select(%x, %w, %ids)", "%r", "f32[N, 1]", "linear_select mixes rows of N: the weight's matrices are the batch rows"},

	// Attention, where %h is q[N, 1, 4, 8] in a batch of sequences, or q[N, 4, 8] in one.
	{"attention", "%a = reshape(%h, shape=[N, 1, 4, 8])\n%r, %l = attention(%a, %a, %a, scale=1, causal=true)", "%r", "f32[N, 1, 4, 8]", ""},
	{"attention of one sequence", "%r, %l = attention(%h, %h, %h, scale=1, causal=true)", "%l", "f32[N, 4]", "attention mixes rows of N: every query reads its keys, which are the rows"},
	{"attention to other keys", "%k1 = reshape(%u, shape=[4, 2, 8])\n%r, %l = attention(%h, %k1, %k1, scale=1)", "%r", "f32[N, 4, 8]", ""},
	{"attention_grad", "%a = reshape(%h, shape=[N, 1, 4, 8])\n%o, %l = attention(%a, %a, %a, scale=1)\n%r, %s, %t = attention_grad(%a, %a, %a, %o, %l, %l, scale=1)", "%s", "f32[N, 1, 4, 8]", ""},
	{"attention_grad of other keys", "%k1 = reshape(%u, shape=[4, 2, 8])\n%o, %l = attention(%h, %k1, %k1, scale=1)\n%r, %s, %t = attention_grad(%h, %k1, %k1, %o, %l, %l, scale=1)", "%s", "f32[4, 2, 8]", "attention_grad mixes rows of N: gradients of keys sum over its queries, which are the rows"},

	// Indices.
	{"embedding", "%r = embedding(@w, %ids)", "%r", "f32[N, 8]", ""},
	{"embedding of rows", "%r = embedding(%x, %ids)", "%r", "f32[N, 8]", "embedding mixes rows of N: the table's rows are the batch rows"},
	{"embedding of rows at fixed places", "%r = embedding(%x, %k)", "%r", "f32[4, 8]", "embedding mixes rows"},
	{"embedding of columns", "%t = transpose(%x, perm=[1, 0])\n%a = embedding(%t, %k)\n%r = transpose(%a, perm=[1, 0])", "%r", "f32[N, 4]", ""},
	{"gather columns", "%r = gather(%x, %k, axis=1)", "%r", "f32[N, 4]", ""},
	{"gather rows", "%r = gather(%x, %k)", "%r", "f32[4, 8]", "gather mixes rows of N: it indexes the rows"},
	{"gather of another batch symbol", "%r = gather(%m, %ids)", "%r", "f32[N, 8]", ""},
	{"gather columns by rows", "%r = gather(%x, %ids, axis=1)", "%u", "f32[8, 8]", "gather: result 0 (f32[N, N]) cannot be padded over N"},
	{"scatter to slots", "scatter(@kv, %slots, %x)", "%x", "f32[N, 8]", ""},
	{"scatter to slots after moves", "%a = reshape(%slots, shape=[N, 1])\n%b = cast(%a, dtype=i64)\n%d = slice(%b, axis=1, start=0, end=1)\n%e = reshape(%d, shape=[N])\nscatter(@kv, %e, %x)", "%x", "f32[N, 8]", ""},
	{"scatter to slots after a move", "%a = cast(%slots, dtype=i64)\nscatter(@kv, %a, %x)", "%x", "f32[N, 8]", ""},
	{"scatter to other indices after a move", "%a = cast(%ids, dtype=i64)\nscatter(@kv, %a, %x)", "%x", "f32[N, 8]", "every row writes into memory"},
	{"scatter to other indices", "scatter(@kv, %ids, %x)", "%x", "f32[N, 8]", "scatter mixes rows of N: every row writes into memory that all rows share"},
	{"scatter to computed slots", "%a = add(%slots, 1)\nscatter(@kv, %a, %x)", "%x", "f32[N, 8]", "every row writes into memory"},
	{"scatter to unsigned slots", "%a = cast(%slots, dtype=u8)\nscatter(@kv, %a, %x)", "%x", "f32[N, 8]", "every row writes into memory"},
	{"scatter over rows", "%o = full(0, shape=[N, 8], dtype=f32)\nscatter(%o, %slots, %x)", "%o", "f32[N, 8]", "scatter mixes rows of N: it writes rows at indices from a tensor"},
	{"scatter columns", "%o = full(0, shape=[N, 9], dtype=f32)\nscatter(%o, %k, %c, axis=1)", "%o", "f32[N, 9]", ""},
	{"scatter uniform", "%o = full(0, shape=[9, 8], dtype=f32)\n%p = slice(%u, axis=0, start=0, end=4)\nscatter(%o, %k, %p)", "%o", "f32[9, 8]", ""},
	{"copy", "copy(%own, %x)", "%own", "f32[N, 8]", ""},
	{"copy of mixed", "%a = cumsum(%x, axis=0)\ncopy(%own, %a)\n%r = add(%own, 1)", "%r", "f32[N, 8]", "cumsum mixes rows"},

	// Indices in padded rows: %ids holds 0 there, %slots -1. @w has 8 rows, @experts 4.
	{"embedding before the first", "%p = sub(%ids, 1)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", "embedding: padded rows may have indices out of range (-1, extent 8)"},
	{"embedding last", "%p = add(%ids, 7)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", ""},
	{"embedding behind the last", "%p = add(%ids, 8)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", "(8, extent 8)"},
	{"embedding at slots", "%r = embedding(@w, %slots)", "%r", "f32[N, 8]", "(-1, extent 8)"},
	{"embedding at slots that are moved", "%p = add(%slots, 1)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", ""},
	{"embedding at bounded slots", "%p = maximum(%slots, 0)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", ""},
	{"embedding where there is a slot", "%b = compare(%slots, 0, dir=ge)\n%p = where(%b, %slots, 7)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", ""},
	{"embedding where there is none", "%b = compare(%slots, 0, dir=lt)\n%p = where(%b, %slots, 7)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", "(-1, extent 8)"},
	{"embedding where floats say", "%b = compare(%v, 0, dir=ge)\n%p = where(%b, 3, %slots)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", "(-1 to 3, extent 8)"},
	{"embedding where neither", "%b = compare(%slots, 0, dir=ge)\n%e = not(%b)\n%d = and(%b, %e)\n%p = where(%d, %slots, 7)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", ""},
	{"embedding at a cast bool", "%b = compare(%v, 0, dir=ge)\n%p = cast(%b, dtype=i32)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", ""},
	{"embedding at cast floats", "%p = cast(%v, dtype=i32)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", "(any, extent 8)"},
	{"embedding at clamped floats", "%p = cast(%v, dtype=i32)\n%q = clamp(%p, 0, 7)\n%r = embedding(@w, %q)", "%r", "f32[N, 8]", ""},
	{"embedding of all that a byte names", "%p = cast(%v, dtype=u8)\n%t = iota(shape=[256], dtype=f32)\n%r = embedding(%t, %p)", "%r", "f32[N]", ""},
	{"embedding after wrapping", "%a = add(%ids, 300)\n%p = cast(%a, dtype=u8)\n%t = iota(shape=[256], dtype=f32)\n%r = embedding(%t, %p)", "%r", "f32[N]", ""},
	{"embedding after overflow", "%a = mul(%ids, 2)\n%b = add(%a, 2147483647)\n%p = add(%b, 1)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", "(any, extent 8)"},
	{"embedding after products", "%a = sub(%ids, 3)\n%b = mul(%a, -5)\n%d = div(%b, 2)\n%p = rem(%b, 8)\n%q = minimum(%d, %p)\n%r = embedding(@w, %q)", "%r", "f32[N, 8]", ""},
	{"embedding after a remainder", "%a = sub(%ids, 3)\n%p = rem(%a, 8)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", "(-3 to 0, extent 8)"},
	{"embedding after truncation", "%a = sub(%ids, 3)\n%p = div(%a, 4)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", ""},
	{"embedding by an operand", "%a = gather(%k, %ids)\n%p = div(%a, %a)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", "(any, extent 8)"},
	{"embedding at the largest", "%p = argmax(%h, axis=2)\n%r = embedding(@w, %p)", "%r", "f32[N, 4, 8]", ""},
	{"embedding at the largest of more", "%a = concat(%x, %y, axis=1)\n%p = argmax(%a)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", "(0 to 15, extent 8)"},
	{"embedding at the largest of a symbol", "%a = linear(%x, %m)\n%p = argmax(%a)\n%q = reshape(%p, shape=[N, 1])\n%r = embedding(%m, %q)", "%r", "f32[N, 1, 8]", ""},
	{"embedding behind the largest of a symbol", "%a = linear(%x, %m)\n%p = argmax(%a)\n%q = add(%p, 0)\n%r = embedding(%m, %q)", "%r", "f32[N, 8]", "(0 to 15, extent M)"},
	{"embedding of a symbol", "%p = add(%ids, 1)\n%r = embedding(%m, %p)", "%r", "f32[N, 8]", "(1, extent M)"},
	{"embedding at the row", "%p = iota(shape=[N], dtype=i32)\n%r = embedding(@table, %p)", "%r", "f32[N, 4]", ""},
	{"embedding at more than rows", "%p = iota(shape=[2*N], dtype=i32)\n%r = embedding(@table, %p)", "%r", "f32[2*N, 4]", "(0 to 127, extent 100)"},
	{"embedding at what is found", "%t = const(values=[3, 7], dtype=i32)\n%p = embedding(%t, %ids)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", ""},
	{"embedding at an unknown find", "%p = embedding(%k, %ids)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", "(any, extent 8)"},
	{"embedding at what all rows take", "%p = broadcast_to(%k, shape=[N, 4])\n%q = add(%p, 1)\n%r = embedding(@w, %q)", "%r", "f32[N, 4, 8]", ""},
	{"embedding at what some rows take", "%p = add(%k, 1)\n%a = reshape(%ids, shape=[N, 1])\n%q = add(%p, %a)\n%r = embedding(@w, %q)", "%r", "f32[N, 4, 8]", "(any, extent 8)"},
	{"embedding at rows of a table", "%t = cast(@table, dtype=i32)\n%p = slice(%t, axis=0, start=0, end=N)\n%r = embedding(@w, %p)", "%r", "f32[N, 4, 8]", "(any, extent 8)"},
	{"embedding at real rows", "%a = slice(%ids, axis=0, start=0, end=1)\n%p = add(%a, %ids)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", "(any, extent 8)"},
	{"embedding at joined", "%a = reshape(%ids, shape=[N, 1])\n%p = pad(%a, 9, low=[0, 0], high=[0, 1])\n%r = embedding(@w, %p)", "%r", "f32[N, 2, 8]", "(0 to 9, extent 8)"},
	{"embedding at written", "%o = full(5, shape=[N], dtype=i32)\ncopy(%o, %slots)\n%r = embedding(@w, %o)", "%r", "f32[N, 8]", "(-1, extent 8)"},
	{"embedding at columns written", "%o = full(5, shape=[N, 9], dtype=i32)\n%s = reshape(%slots, shape=[N, 1])\n%z = full(0, shape=[1], dtype=i32)\nscatter(%o, %z, %s, axis=1)\n%r = embedding(@w, %o)", "%r", "f32[N, 9, 8]", "(-1 to 5, extent 8)"},
	{"embedding at columns added", "%o = full(5, shape=[N, 9], dtype=i32)\n%a = add(%ids, 1)\n%s = reshape(%a, shape=[N, 1])\n%z = full(0, shape=[1], dtype=i32)\nscatter(%o, %z, %s, axis=1, add=true)\nscatter(%o, %z, %s, axis=1, add=true)\nscatter(%o, %z, %s, axis=1, add=true)\n%r = embedding(@w, %o)", "%r", "f32[N, 9, 8]", "padded rows may have indices out of range (any, extent 8)"},
	{"embedding at a splitting op's", "%p = call \"s::fresh\"(%x) : i32[N]\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", ""},
	{"embedding before a splitting op's", "%a = call \"s::fresh\"(%x) : i32[N]\n%p = sub(%a, 1)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", "(-1, extent 8)"},
	{"embedding at what is not known is reported once", "%p = cumsum(%ids, axis=0)\n%r = embedding(@w, %p)", "%r", "f32[N, 8]", "cumsum mixes rows"},
	{"gather of columns before the first", "%p = sub(%k, 1)\n%r = gather(%x, %p, axis=1)", "%r", "f32[N, 4]", ""},
	{"gather behind the last", "%p = add(%ids, 4)\n%a = gather(@table, %p, axis=1)\n%r = transpose(%a, perm=[1, 0])", "%r", "f32[N, 100]", "gather: padded rows may have indices out of range (4, extent 4)"},
	{"linear_select behind the last", "%p = add(%ids, 4)\n%r = linear_select(%x, @experts, %p)", "%r", "f32[N, 8]", "linear_select: padded rows may have indices out of range (4, extent 4)"},
	{"linear_select by routing", "%l = linear(%x, %four)\n%t, %p = topk(%l, k=2)\n%a = reshape(%x, shape=[N, 1, 8])\n%r = linear_select(%a, @experts, %p)", "%r", "f32[N, 2, 8]", ""},

	// Layout.
	{"reshape groups", "%r = reshape(%x, shape=[4*N, 2])", "%r", "f32[4*N, 2]", ""},
	{"reshape ungroups", "%a = reshape(%g, shape=[2*N, 24])\n%r = reshape(%a, shape=[N, 6, 8])", "%r", "f32[N, 6, 8]", ""},
	{"reshape keeps what is before", "%t = transpose(%h, perm=[1, 0, 2])\n%a = reshape(%t, shape=[2, 2, 8*N])\n%b = reshape(%a, shape=[4, N, 8])\n%r = transpose(%b, perm=[1, 0, 2])", "%r", "f32[N, 4, 8]", ""},
	{"reshape merges an axis before", "%t = transpose(%x, perm=[1, 0])\n%r = reshape(%t, shape=[8*N])", "%r", "f32[8*N]", "reshape mixes rows of N: the axes before the rows have 8 elements in f32[8, N], but 1 in f32[8*N]"},
	{"reshape splits around", "%a = reshape(%x, shape=[2, 4*N])", "%u", "f32[8, 8]", "reshape mixes rows"},
	{"reshape uniform", "%r = reshape(%u, shape=[64])", "%r", "f32[64]", ""},
	{"reshape nothing", "%z = empty(shape=[N, 0], dtype=f32)\n%r = reshape(%z, shape=[0])", "%r", "f32[0]", "the rows do not stay an axis"},
	{"transpose", "%t = transpose(%h, perm=[2, 0, 1])\n%r = transpose(%t, perm=[1, 2, 0])", "%r", "f32[N, 4, 8]", ""},
	{"broadcast_to", "%r = broadcast_to(@n, shape=[N, 8])", "%r", "f32[N, 8]", ""},
	{"broadcast_to twice", "%r = broadcast_to(%v, shape=[N, N])", "%u", "f32[8, 8]", "N is in axes 0 and 1"},
	{"broadcast_to odd", "%r = broadcast_to(@n, shape=[N + 1, 8])", "%u", "f32[8, 8]", "extent N + 1 of axis 0 is no multiple of N"},
	{"slice columns", "%r = slice(%x, axis=1, start=2, end=8, step=3)", "%r", "f32[N, 2]", ""},
	{"slice first rows", "%r = slice(%x, axis=0, start=0, end=2)", "%r", "f32[2, 8]", ""},
	{"slice all rows", "%r = slice(%x, axis=0, start=0, end=N)", "%r", "f32[N, 8]", ""},
	{"slice last row", "%r = slice(%x, axis=0, start=N - 1, end=N)", "%r", "f32[1, 8]", "slice mixes rows of N: it does not take the same elements of each row"},
	{"slice all but first", "%r = slice(%x, axis=0, start=1, end=N)", "%u", "f32[8, 8]", "it does not take the same elements of each row"},
	{"slice half", "%r = slice(%x, axis=0, start=0, end=N - 1)", "%u", "f32[8, 8]", "its end depends on the number of rows"},
	{"slice in groups", "%r = slice(%g, axis=0, start=2, end=12*N, step=3)", "%r", "f32[4*N, 4]", ""},
	{"slice across groups", "%r = slice(%g, axis=0, start=3, end=12*N, step=3)", "%u", "f32[8, 8]", "it does not take the same elements of each row"},
	{"slice every fifth of groups of twelve", "%r = slice(%g, axis=0, start=0, end=12*N, step=5)", "%u", "f32[8, 8]", "it does not take the same elements of each row"},
	{"slice a table to the rows", "%r = slice(@table, axis=0, start=0, end=N)", "%r", "f32[N, 4]", ""},
	{"slice a table's end", "%r = slice(@table, axis=0, start=N, end=N + 4)", "%r", "f32[4, 4]", "its start depends on the number of rows"},
	{"split columns", "%r, %s = split(%x, axis=1, sizes=[2, 6])", "%r", "f32[N, 2]", ""},
	{"split rows", "%r, %s = split(%x, axis=0, sizes=[1, N - 1])", "%r", "f32[1, 8]", "split mixes rows of N: the sizes of parts depend on the number of rows"},
	{"split into groups of other rows", "%r, %s = split(%g, sizes=[4*N, 8*N])", "%r", "f32[4*N, 4]", "split mixes rows"},
	{"split whole", "%r = split(%x, sizes=[N])", "%r", "f32[N, 8]", ""},
	{"split a table by rows", "%r, %s = split(@table, sizes=[100 - N, N])", "%s", "f32[N, 4]", "split mixes rows"},
	{"concat columns", "%r = concat(%x, %y, axis=1)", "%r", "f32[N, 16]", ""},
	{"concat rows", "%r = concat(%x, %y)", "%r", "f32[2*N, 8]", "concat mixes rows of N: it joins along the rows"},
	{"concat rows and more", "%r = concat(%u, %x)", "%u", "f32[8, 8]", "concat mixes rows"},
	{"concat one", "%r = concat(%x)", "%r", "f32[N, 8]", ""},
	{"pad columns", "%r = pad(%x, 0, low=[0, 1], high=[0, H])", "%r", "f32[N, 9 + H]", ""},
	{"pad rows", "%r = pad(%x, 0, low=[0, 0], high=[1, 0])", "%u", "f32[8, 8]", "pad mixes rows of N: it pads axis 0"},
	{"pad rows by a symbol", "%r = pad(%x, 0, low=[0, 0], high=[H, 0])", "%u", "f32[8, 8]", "pad mixes rows"},
	{"pad rows by as many", "%r = pad(%x, 0, low=[N, 0], high=[0, 0])", "%r", "f32[2*N, 8]", "the number of elements that it adds depends on the number of rows"},
	{"pad uniform by rows", "%z = full(0, shape=[0, 8], dtype=f32)\n%r = pad(%z, 0, low=[0, 0], high=[N, 0])", "%r", "f32[N, 8]", "the number of elements that it adds depends on the number of rows"},

	// Collectives.
	{"all_reduce", "%r = all_reduce(%part, group=tp)", "%r", "f32[N, 8]", ""},
	{"broadcast", "%r = broadcast(%part2, group=tp)", "%r", "f32[N, 8]", ""},
	{"all_gather columns", "%r = all_gather(%part2, group=tp, axis=1)", "%r", "f32[N, 16]", ""},
	{"all_gather rows", "%r = all_gather(%part2, group=tp)", "%r", "f32[2*N, 8]", "all_gather mixes rows of N: it exchanges blocks of axis 0, which holds the rows"},
	{"reduce_scatter columns", "%s = reduce_scatter(%part, group=tp, axis=1)\n%r = all_gather(%s, group=tp, axis=1)", "%r", "f32[N, 8]", ""},
	{"reduce_scatter groups", "%a = reshape(%part, shape=[8*N])\n%s = reduce_scatter(%a, group=tp)\n%r = all_gather(%s, group=tp)", "%r", "f32[8*N]", "reduce_scatter mixes rows of N: it exchanges blocks of axis 0"},

	// Random numbers.
	{"uniform of rows", "%r = uniform(%rng, shape=[N, 8], dtype=f32)", "%r", "f32[N, 8]", ""},
	{"uniform of groups", "%a = uniform(%rng, shape=[1, 3*N, 2], dtype=bf16)\n%r = reshape(%a, shape=[N, 6])", "%r", "bf16[N, 6]", ""},
	{"uniform of columns", "%a = uniform(%rng, shape=[2, N], dtype=f32)\n%r = transpose(%a, perm=[1, 0])", "%r", "f32[N, 2]",
		"uniform mixes rows of N: random numbers depend on the element's index, which the number of rows in axis 1 changes"},
	{"uniform of none", "%r = uniform(%rng, shape=[8], dtype=f16)", "%r", "f16[8]", ""},
	{"dropout of rows", "%r = dropout(%x, %rng, p=0.5)", "%r", "f32[N, 8]", ""},
	{"dropout of columns", "%a = transpose(%x, perm=[1, 0])\n%b = dropout(%a, %rng, p=0.5)\n%r = transpose(%b, perm=[1, 0])", "%r", "f32[N, 8]",
		"dropout mixes rows of N: random numbers depend on the element's index"},
	{"dropout of mixed", "%a = cumsum(%x, axis=0)\n%r = dropout(%a, %rng, p=0.5)", "%r", "f32[N, 8]", "cumsum mixes rows"},
	{"philox", "%i = iota(shape=[N, 2], dtype=i64, axis=1)\n%r = philox(%i, 4, %i)", "%r", "f32[N, 2]", ""},

	// Creation.
	{"iota along rows", "%r = iota(shape=[N, 2], dtype=i32)", "%r", "i32[N, 2]", ""},
	{"iota of groups", "%r = iota(shape=[3*N], dtype=i32)", "%r", "i32[3*N]", ""},
	{"iota odd", "%r = iota(shape=[N / 2], dtype=i32)", "%u", "f32[8, 8]", "extent N / 2 of axis 0 is no multiple of N"},
	{"full", "%r = full(1, shape=[N], dtype=f32)", "%r", "f32[N]", ""},
	{"full square", "%r = full(1, shape=[N*N], dtype=f32)", "%u", "f32[8, 8]", "extent N*N of axis 0 is no multiple of N"},
	{"full of two symbols", "%r = full(1, shape=[N*H], dtype=f32)", "%r", "f32[H*N]", ""},
	{"empty", "%o = empty(shape=[N, 8], dtype=f32)\ncopy(%o, %x)", "%o", "f32[N, 8]", ""},
	{"empty_like of mixed", "%a = cumsum(%x, axis=0)\n%o = empty_like(%a)\ncall \"s::s\"(%x, %o)", "%o", "f32[N, 8]", "cumsum mixes rows"},
	{"const", "%r = const(values=[1, 2], dtype=f32)", "%r", "f32[2]", ""},

	// Extern ops.
	{"call split", "%o = empty_like(%x)\ncall \"s::s\"(%x, %o)", "%o", "f32[N, 8]", ""},
	{"call split, fresh", "%r = call \"s::fresh\"(%x) : f32[N, 8]", "%r", "f32[N, 8]", ""},
	{"call split, a result without rows", "%r = call \"s::fresh\"(%x) : f32[8]", "%r", "f32[8]", ""},
	{"call split, odd result", "%r = call \"s::fresh\"(%x) : f32[N + 1]", "%u", "f32[8, 8]", "extent N + 1 of axis 0"},
	{"call split of mixed", "%a = cumsum(%x, axis=0)\n%r = call \"s::fresh\"(%a) : f32[N, 8]\n%t = sum(%r, axes=[0])", "%t", "f32[8]", "cumsum mixes rows"},
	{"call capture", "%r = call \"my::op\"(%x) : f32[N, 8]", "%r", "f32[N, 8]", "my::op mixes rows of N: operand 0 has rows, and only an op declared split or rowwise promises to keep them apart"},
	{"call rowwise", "%r = call \"my::rows\"(%x, @n) : f32[N, 8]", "%r", "f32[N, 8]", ""},
	{"call rowwise, of rows alone", "%r = call \"my::rows\"(%x, @n) : f32[8]", "%r", "f32[8]", "my::rows mixes rows of N: result 0 (f32[8]) has no rows, but an operand does"},
	{"call rowwise, along another axis", "%z = transpose(%x, perm=[1, 0]) : f32[8, N]\n    %r = call \"my::rows\"(%z, @n) : f32[N, 8]", "%r", "f32[N, 8]", "operand 0 has its rows along axis 1"},
	{"call rowwise, told of rows", "%r = call \"my::rows\"(%x, @n, n=N) : f32[N, 8]", "%r", "f32[N, 8]", "attribute n tells it the number of rows"},
	{"call rowwise, that makes rows", "%r = call \"my::rows\"(@n, @n) : f32[N, 8]", "%r", "f32[N, 8]", "a result has rows, but no operand has rows along the first axis"},
	{"call rowwise, on shared memory", "call \"my::put\"(%x, @kv)", "%x", "f32[N, 8]", "operand 1 is written and has no rows, so a real row may read what a padded row writes"},
	{"call rowwise, on rows", "%e = empty_like(%x) : f32[N, 8] call \"my::put\"(%x, %e)", "%e", "f32[N, 8]", ""},
	{"call capture makes rows", "%r = call \"my::op\"(%u) : f32[N, 8]", "%r", "f32[N, 8]", "it makes rows"},
	{"call capture knows rows", "%r = call \"my::op\"(%u, rows=N) : f32[8]", "%r", "f32[8]", "attribute rows tells it the number of rows"},
	{"call capture knows rows in a list", "call \"my::log\"(%u, rows=[1, N])", "%u", "f32[8, 8]", "attribute rows tells it the number of rows"},
	{"call capture uniform", "%r = call \"my::op\"(%u) : f32[8, 8]", "%r", "f32[8, 8]", ""},

	// Results.
	{"return rows elsewhere", "%r = transpose(%x, perm=[1, 0])", "%r", "f32[8, N]", "result 0 (f32[8, N]) cannot be padded over N: its rows lie along axis 1"},
	{"return input", "%z = neg(%x)", "%x", "f32[N, 8]", ""},
}

func parse(t testing.TB, text string) *ir.Module {
	t.Helper()
	m, err := ir.Parse("case.ir", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestRules(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := parse(t, fmt.Sprintf(frame, c.types, c.body+"\n    return "+c.returns))
			found := padding.Check(m, m.Funcs[0], "N", "slots")
			if c.want == "" {
				for _, x := range found {
					t.Error(x.Err)
				}
				return
			}
			if len(found) != 1 || !strings.Contains(found[0].Err.Msg, c.want) {
				t.Fatalf("got %v, want one error with %q", messages(found), c.want)
			}
			if !found[0].Err.Pos.IsValid() || found[0].Node != found[0].Err.Node {
				t.Errorf("at %v, node %d", found[0].Err.Pos, found[0].Node)
			}
		})
	}
}

func messages(found []padding.Mixing) []string {
	out := make([]string, len(found))
	for i, x := range found {
		out[i] = x.Err.Error()
	}
	return out
}

// TestEveryOpHasACase checks that every op of the table is in a case that can be padded, so
// that a new op gets a case. It skips pointwise ops, which share one rule.
func TestEveryOpHasACase(t *testing.T) {
	clean := map[string]bool{}
	for _, c := range cases {
		if c.want != "" {
			continue
		}
		m := parse(t, fmt.Sprintf(frame, c.types, c.body+"\n    return "+c.returns))
		for _, n := range m.Funcs[0].Nodes {
			clean[n.Op.Name] = true
		}
	}
	for _, op := range ir.Ops() {
		if op.Class != ir.Pointwise && !clean[op.Name] {
			t.Errorf("no case shows %s with rows kept apart", op.Name)
		}
	}
}

// TestParams: a parameter that cannot be padded is reported, but values that are computed
// from it are not.
func TestParams(t *testing.T) {
	for params, want := range map[string]string{
		"%x: f32[N, 4]":           "",
		"%x: f32[12*N]":           "",
		"%x: f32[4], %y: f32[N]":  "",
		"%x: f32[3, N]":           "parameter 0 (%x, f32[3, N]) cannot be padded over N: its rows lie along axis 1",
		"%y: f32[], %x: i32[N+1]": "parameter 1 (%x, i32[N + 1]) cannot be padded over N: extent N + 1 of axis 0 is no multiple of N",
		"%x: f32[N, N]":           "N is in axes 0 and 1",
	} {
		m := parse(t, "pwc 1\nmodule \"p\" {\n  sym N in [1, 64] batch\n  func @f("+params+") {\n    %z = full(0, shape=[N], dtype=f32)\n    %a = add(%x, %x)\n  }\n}\n")
		found := padding.Check(m, m.Funcs[0], "N")
		if want == "" && len(found) == 0 {
			continue
		}
		if want == "" || len(found) != 1 || !strings.Contains(found[0].Err.Msg, want) || found[0].Node != -1 || found[0].Err.Pos.Line != 4 {
			t.Errorf("%s: got %v, want %q", params, messages(found), want)
		}
	}
}

// TestLocAndOrder checks that each of two nodes that mix rows is reported, in program order, with
// its loc.
func TestLocAndOrder(t *testing.T) {
	m := parse(t, fmt.Sprintf(frame, "f32[8], f32[8]", `%a = sum(%x, axes=[0]) loc("model.a")
    %d = add(%a, 1)
    %b = max(%y, axes=[0]) loc("model.b")
    return %d, %b`))
	found := padding.Check(m, m.Funcs[0], "N")
	if len(found) != 2 || found[0].Node != 0 || found[1].Node != 2 || found[0].Err.Loc != "model.a" || found[1].Err.Loc != "model.b" {
		t.Errorf("got %v", messages(found))
	}
}

func TestSizeSymbol(t *testing.T) {
	for _, c := range []struct{ params, results, returns, want string }{
		{"%x: f32[N]", "f32[N]", "%x", "N"},
		{"%x: f32[N], %m: i32[M]", "i32[M]", "%m", "M"},
		{"%x: f32[N], %m: i32[M]", "f32[N], i32[M]", "%x, %m", "N"},
		{"%x: f32[N], %m: i32[M]", "", "", "N"},
		{"%x: f32[4, N]", "f32[4, N]", "%x", "N"},
		{"%x: f32[K, N]", "f32[K, N]", "%x", "N"},
		{"%x: f32[4], %k: f32[K]", "f32[4]", "%x", ""},
		{"%x: f32[4, N], %m: i32[M]", "", "", "M"},
		{"%x: f32[12*N]", "f32[12*N]", "%x", "N"},
		{"%x: f32[N*M]", "f32[N*M]", "%x", "M"},
		{"%x: f32[], %k: f32[K]", "f32[], f32[K]", "%x, %k", ""},
		{"%k: f32[K], %n: f32[N]", "f32[K]", "%k", "N"},
		{"%n: f32[N], %o: f32[2*N]", "f32[N], f32[2*N]", "%n, %o", "N"},
	} {
		m := parse(t, fmt.Sprintf(`pwc 1
module "p" {
  sym N in [1, 64] batch
  sym M in [1, 64] batch
  sym K in [1, 64]
  func @f(%s) -> (%s) {
    return %s
  }
}
`, c.params, c.results, c.returns))
		got, ok := padding.SizeSymbol(m, m.Funcs[0])
		if ok != (c.want != "") || ok && got != c.want {
			t.Errorf("(%s) -> (%s): %q, %v; want %q", c.params, c.results, got, ok, c.want)
		}
	}
}

func TestNotABatchSymbol(t *testing.T) {
	m := parse(t, fmt.Sprintf(frame, "f32[N, 8]", "return %x"))
	for _, s := range []string{"H", "B", "nothing"} {
		if found := padding.Check(m, m.Funcs[0], s); len(found) != 1 || !strings.Contains(found[0].Err.Msg, s+" is no batch symbol") {
			t.Errorf("%s: %v", s, messages(found))
		}
	}
}
