package cli_test

import (
	"os/exec"
	"strings"
	"testing"
)

// With -tags nocuda pwc has no package whose path contains cuda, and not purego, which opens libraries.
func TestNoCUDA(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	list := func(tags string) string {
		out, err := exec.Command("go", "list", "-deps", "-tags", tags, "pwc/cmd/pwc").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	with, without := list(""), list("nocuda")
	for _, name := range []string{"purego", "cuda"} {
		if !strings.Contains(with, name) {
			t.Errorf("%s is not part of pwc", name)
		}
		if strings.Contains(without, name) {
			t.Errorf("%s is part of pwc with -tags nocuda", name)
		}
	}
	if out, err := exec.Command("go", "vet", "-tags", "nocuda", "pwc/cli").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
