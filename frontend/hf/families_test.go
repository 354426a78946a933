package hf

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir"
	"pwc/ir/padding"
)

// published is a published config.json, with the number of parameters, and the type of a layer's KV cache. The number is
// from the model card or the checkpoint's index, or counted by hand where a comment has the sum.
type published struct {
	name   string
	config settings
	params int64
	layers int
	kv     string
}

// check imports the model from its config, without tensors.
func (p published) check(t *testing.T, o Options) {
	t.Helper()
	m, err := Builtin().Import(p.config.json(t), o)
	if err != nil {
		t.Errorf("%s: %v", p.name, err)
		return
	}
	var total int64
	last := "" // name of the last vector, such as the scale of the final norm
	for _, param := range m.Params {
		n := int64(1)
		for _, d := range param.Shape {
			n *= d
		}
		total += n
		if len(param.Shape) == 1 {
			last = param.Name
		}
	}
	if total != p.params {
		t.Errorf("%s: %d parameters, want %d", p.name, total, p.params)
	}
	calls := 0
	for _, n := range m.Module.Func("forward").Nodes {
		if n.Name() == AttentionOp {
			calls++
		}
	}
	if calls != p.layers || len(m.Module.States) != p.layers {
		t.Errorf("%s: %d attentions and %d states, want %d", p.name, calls, len(m.Module.States), p.layers)
	}
	for _, s := range m.Module.States {
		if got := s.Type.String(); got != p.kv {
			t.Errorf("%s: @%s is %s, want %s", p.name, s.Name, got, p.kv)
			break
		}
	}
	// Steps are padded to capture sizes, so rows must be independent: along N in @forward, along M in @logits.
	for fn, size := range map[string]string{"forward": "N", "logits": "M"} {
		f := m.Module.Func(fn)
		if got, ok := padding.SizeSymbol(m.Module, f); !ok || got != size {
			t.Errorf("%s: @%s runs over %q, want %s", p.name, fn, got, size)
		}
		for _, mix := range padding.Check(m.Module, f, size) {
			t.Errorf("%s: %v", p.name, mix.Err)
		}
	}
	// The dummy computes one tensor without the gigabytes of the others.
	src := Dummy(m.Params)
	if err := m.Check(src); err != nil {
		t.Errorf("%s: %v", p.name, err)
	}
	if x, err := src.Tensor(last); err != nil || int64(len(x.Data)) != x.DType.Bytes(x.Shape[0]) {
		t.Errorf("%s: %s: %v", p.name, last, err)
	}
}

// sameModules requires that all edits of an architecture's base config give the same module.
func sameModules(t *testing.T, arch string, edits ...settings) {
	t.Helper()
	var want string
	for i, e := range edits {
		m, err := Builtin().Import(base(arch).with(e).json(t), Options{Context: 64})
		if err != nil {
			t.Errorf("%s, spelling %d: %v", arch, i, err)
			continue
		}
		if got := ir.Print(m.Module); want == "" {
			want = got
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: spelling %d differs from the first:\n%s", arch, i, diff)
		}
	}
}

// otherModules requires that each edit of an architecture's base config changes the module, so the key is honoured.
func otherModules(t *testing.T, arch string, edits ...settings) {
	t.Helper()
	seen := map[string]int{importText(t, base(arch), Options{Context: 64}): -1}
	for i, e := range edits {
		text := importText(t, base(arch).with(e), Options{Context: 64})
		if j, dup := seen[text]; dup {
			t.Errorf("%s: edits %d and %d (-1: the base config) give the same module", arch, i, j)
		}
		seen[text] = i
	}
}

// refused is an edit of a base config, with a part of the error that it must give.
type refused struct {
	edits settings
	want  string
}

// refuse requires that importing each edit of an architecture's base config fails with its error.
func refuse(t *testing.T, arch string, cases ...refused) {
	t.Helper()
	for _, c := range cases {
		_, err := Builtin().Import(base(arch).with(c.edits).json(t), Options{})
		var ce *ConfigError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v: error %v, want …%s…", arch, c.edits, err, c.want)
		}
	}
}
