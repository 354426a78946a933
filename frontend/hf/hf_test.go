package hf

import (
	"testing"
)

func TestImportDir(t *testing.T) {
	for _, name := range []string{"llama", "qwen2", "qwen3"} {
		m, err := Builtin().ImportDir("../../testdata/hf/"+name, Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		t.Log(name, m.Architecture, len(m.Params), len(m.Module.Funcs[0].Nodes))
	}
}
