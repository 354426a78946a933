package cuda_test

import (
	"strings"
	"testing"

	"pwc/internal/cuda/fake"
	"pwc/program"
	"pwc/runtime/cuda"
)

// TestPeers: AddPeers sets the property that choices ask for, and its params count as arguments of kernels
// with the launch attribute. Without the group such a program is refused.
func TestPeers(t *testing.T) {
	r := fakeRig()
	d := open(t, newFake(t, fake.Options{}))
	p := r.addOf(t, program.Attr{Name: cuda.AttrPeers, Kind: program.AttrString, Str: "tp"})
	load := func(want string) {
		t.Helper()
		if _, err := d.Load(p, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load gives %v, want %q", err, want)
		}
	}
	load(`the device reaches no ranks of group "tp"`)
	before := d.Info().Properties
	if err := d.AddPeers("tp", 2, []uint64{1, 2, 3}, nil); err != nil {
		t.Fatal(err)
	}
	if n, ok := before[program.PeersProperty("tp")]; ok || d.Info().Properties[program.PeersProperty("tp")] != 2 {
		t.Errorf("property %s is %d before, and %d after", program.PeersProperty("tp"), n, d.Info().Properties[program.PeersProperty("tp")])
	}
	load("4 parameters, launched with 6") // three buffers and the group's
	if err := d.AddPeers("tp", 2, nil, nil); err == nil || !strings.Contains(err.Error(), `has group "tp"`) {
		t.Errorf("a second AddPeers gives %v", err)
	}
}
