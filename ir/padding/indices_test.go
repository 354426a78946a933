package padding_test

import (
	"fmt"
	"strings"
	"testing"

	"pwc/ir/padding"
)

// With trusted indices, gather and embedding take real rows of a parameter, or of a value that
// is computed from it row by row. A gather along another axis or of grouped rows, and a sum
// over rows, still mix them.
func TestCheckIndices(t *testing.T) {
	for _, c := range []struct{ body, returns, types, want string }{
		{"%r = gather(%x, %k)", "%r", "f32[4, 8]", ""},
		{"%r = embedding(%x, %k)", "%r", "f32[4, 8]", ""},
		{"%a = neg(%x); %r = gather(%a, %k)", "%r", "f32[4, 8]", ""},
		{"%a = gather(%x, %k); %r = matmul(%a, %u); %s = sum(%r, axes=[0])", "%s", "f32[8]", ""},
		{"%a = cast(%k, dtype=i64); %r = gather(%x, %a)", "%r", "f32[4, 8]", ""},
		{"%r = gather(%g, %k)", "%r", "f32[4, 4]", "gather mixes rows of N"}, // twelve elements of the axis for each row
		{"%r = gather(%x, %ids)", "%r", "f32[N, 8]", ""},
		{"%a = transpose(%x, perm=[1, 0]); %r = gather(%a, %k, axis=1)", "%r", "f32[8, 4]", "gather mixes rows of N"},
		{"%a = gather(%ids, %ids); %r = embedding(@w, %a)", "%r", "f32[N, 8]", "indices out of range (any, extent 8)"}, // a padded row takes a real row, which may hold anything
		{"%r = sum(%x, axes=[0])", "%r", "f32[8]", "sum mixes rows of N"},
		{"%a = gather(%x, %k); %b = transpose(%x, perm=[1, 0]); %p = matmul(%a, %b); %r = sum(%p, axes=[1])", "%r", "f32[4]", "sum mixes rows of N"},
	} {
		text := fmt.Sprintf(frame, c.types, strings.ReplaceAll(c.body, "; ", "\n    ")+"\n    return "+c.returns)
		m := parse(t, text)
		mix := padding.CheckIndices(m, m.Funcs[0], "N")
		switch {
		case c.want == "" && len(mix) > 0:
			t.Errorf("%s: %v", c.body, mix[0].Err)
		case c.want != "" && (len(mix) == 0 || !strings.Contains(mix[0].Err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.body, mix, c.want)
		}
	}
}
