package loop

import (
	"fmt"
	"strings"

	"pwc/ir/dim"
)

// Attention is op attention of the tensor IR, or its gradient, for each batch of
// Kernel.Rows. Accesses have one entry in Rows for each batch axis. Cols has three entries
// for queries, keys, values, outputs and their gradients: the strides of the sequence, of the
// heads and of the elements of a head. For LSE and Delta it has the first two.
type Attention struct {
	Queries, Keys dim.Dim // length of the sequences
	Heads, Groups int64   // heads of the queries, and of keys and values: head h reads h/(Heads/Groups)
	Size          int64   // elements of a head
	Scale         float64 // of the scores
	Causal        bool    // query t sees keys 0 to t

	Q, K, V Access
	Out     Access // the result; in a gradient the cotangent of the result, which is read
	LSE     Access // f32: the logarithms of sums of exponentials, by query and head; in a gradient they are read

	Grad *AttentionGrad // nil: forward
}

// AttentionGrad has the accesses that only the gradient has.
type AttentionGrad struct {
	Delta      Access // f32, by query and head: subtracted from the cotangents of the probabilities
	DQ, DK, DV Access // the results
}

// Each calls f for every access, with the length of its sequence, in the order of the fields.
func (a *Attention) Each(f func(x *Access, length dim.Dim)) {
	f(&a.Q, a.Queries)
	f(&a.K, a.Keys)
	f(&a.V, a.Keys)
	f(&a.Out, a.Queries)
	f(&a.LSE, a.Queries)
	if g := a.Grad; g != nil {
		f(&g.Delta, a.Queries)
		f(&g.DQ, a.Queries)
		f(&g.DK, a.Keys)
		f(&g.DV, a.Keys)
	}
}

func (a *Attention) text(k *Kernel) string {
	var b strings.Builder
	mask := ""
	if a.Causal {
		mask = " causal"
	}
	fmt.Fprintf(&b, "  attention queries=%s keys=%s heads=%d/%d size=%d scale=%g%s\n", a.Queries, a.Keys, a.Heads, a.Groups, a.Size, a.Scale, mask)
	names := []string{"q", "k", "v", "out", "lse", "delta", "dq", "dk", "dv"}
	a.Each(func(x *Access, _ dim.Dim) {
		fmt.Fprintf(&b, "    %s=%s\n", names[0], k.access(x))
		names = names[1:]
	})
	return b.String()
}
