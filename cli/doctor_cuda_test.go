//go:build !nocuda

package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/runtime/cuda"
	"pwc/runtime/cuda/topology"
	"pwc/runtime/device"
)

// Architectures below 80, which pwc does not support, do not count.
func TestLatestBefore(t *testing.T) {
	archs := []int{52, 75, 80, 89, 90}
	for arch, want := range map[int64]int{100: 90, 90: 89, 87: 80, 80: 0} {
		if got := latestBefore(archs, arch); got != want {
			t.Errorf("before %d: %d, want %d", arch, got, want)
		}
	}
}

// TestTopology prints a matrix of links and its legend.
func TestTopology(t *testing.T) {
	r := reportTopology(topology.Topology{
		GPUs: []topology.GPU{{PCI: "0000:06:00.0", NUMANode: 0, Processors: "0-31"}, {PCI: "0000:07:00.0", NUMANode: 0, Processors: "0-31"}, {PCI: "0000:87:00.0", NUMANode: -1}},
		Links: []topology.Link{
			{From: 0, To: 1, Path: topology.PHB, NVLinks: 18, BytesPerSecond: 18 * 26562e6, Access: true},
			{From: 0, To: 2, Path: topology.SYS}, {From: 1, To: 2, Path: topology.SYS},
		},
	})
	var b strings.Builder
	if err := r.write(&b); err != nil {
		t.Fatal(err)
	}
	const want = `
link   gpu 0  gpu 1  gpu 2  PCI           NUMA node  processors
gpu 0  -      NV18   SYS    0000:06:00.0  0          0-31
gpu 1  NV18   -      SYS    0000:07:00.0  0          0-31
gpu 2  SYS    SYS    -      0000:87:00.0  -          -
NV18: 18 NVLinks, 478 GB/s each way
SYS: PCIe and the links between NUMA nodes
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
}

// The legend has no bandwidth if pairs of a kind have different ones.
func TestTopologyOfUnequalLinks(t *testing.T) {
	r := reportTopology(topology.Topology{GPUs: make([]topology.GPU, 3), Links: []topology.Link{
		{From: 0, To: 1, NVLinks: 4, BytesPerSecond: 1e11}, {From: 0, To: 2, NVLinks: 4}, {From: 1, To: 2, NVLinks: 4, BytesPerSecond: 1e11},
	}})
	var b strings.Builder
	if err := r.write(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(b.String(), "\nNV4: 4 NVLinks\n") {
		t.Error(b.String())
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
