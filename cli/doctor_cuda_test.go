//go:build !nocuda

package cli

import (
	"strings"
	"testing"

	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

func TestLatestBefore(t *testing.T) {
	archs := []int{52, 75, 80, 89, 90}
	for arch, want := range map[int64]int{100: 90, 90: 89, 87: 80, 80: 0} {
		if got := latestBefore(archs, arch); got != want {
			t.Errorf("before %d: %d, want %d", arch, got, want)
		}
	}
}

func TestCheckPeers(t *testing.T) {
	m := cuda.Machine{Devices: make([]device.Info, 2)}
	if c := checkPeers(m, false); c.State != "ok" || c.Detail != "all 2 GPUs have access to each other's memory" {
		t.Errorf("%+v", c)
	}
	m.Unreached = [][2]int{{0, 1}, {1, 0}}
	for nccl, want := range map[bool]string{false: "cannot run a model together (--tp) without NCCL", true: "NCCL computes"} {
		if c := checkPeers(m, nccl); c.State != "missing" || c.Detail != "no access from GPU 0 to 1, 1 to 0" || !strings.Contains(c.Advice, want) {
			t.Errorf("%+v", c)
		}
	}
}
