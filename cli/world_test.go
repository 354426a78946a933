package cli

import (
	"context"
	"strings"
	"testing"

	"pwc/ir"
	"pwc/runtime/host"
)

// TestMissingDevice: joinWorld returns an error, without a panic, if another device cannot be opened.
func TestMissingDevice(t *testing.T) {
	m, err := ir.Parse("m.ir", []byte(`pwc 1
module "m" {
  group tp in 2
  func @f(%x: f32[2]) -> (f32[2]) {
    return %x
  }
}
`))
	if err != nil {
		t.Fatal(err)
	}
	first, err := openHost(0, &buildFlags{target: host.Target}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer first.close()
	if _, err := first.joinWorld(context.Background(), m, &buildFlags{target: "nosuch"}); err == nil || !strings.Contains(err.Error(), "device 1 of 2: --target nosuch") {
		t.Errorf("%v, want an error about device 1", err)
	}
}
