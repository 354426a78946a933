package topology_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/runtime/cuda"
	"pwc/runtime/cuda/nvml"
	"pwc/runtime/cuda/topology"
)

// machine makes the part of sysfs that has GPUs. gpus has the path of each GPU below sysfs/devices, and its NUMA node.
func machine(t *testing.T, gpus [][2]string) (m cuda.Machine, sysfs string) {
	t.Helper()
	sysfs = t.TempDir()
	links := filepath.Join(sysfs, "bus/pci/devices")
	if err := os.MkdirAll(links, 0o777); err != nil {
		t.Fatal(err)
	}
	for i, g := range gpus {
		dir := filepath.Join(sysfs, "devices", g[0])
		pci := filepath.Base(dir)
		if err := errors.Join(os.MkdirAll(dir, 0o777), os.WriteFile(filepath.Join(dir, "numa_node"), []byte(g[1]+"\n"), 0o666),
			os.WriteFile(filepath.Join(dir, "local_cpulist"), fmt.Appendf(nil, "%d-%d\n", 8*i, 8*i+7), 0o666), os.Symlink(dir, filepath.Join(links, pci))); err != nil {
			t.Fatal(err)
		}
		m.PCI = append(m.PCI, pci)
	}
	return m, sysfs
}

// TestPaths: the path through PCIe has the name that nvidia-smi topo defines.
func TestPaths(t *testing.T) {
	m, sysfs := machine(t, [][2]string{
		{"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", "0"},                           // port, switch upstream, switch downstream, GPU
		{"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", "0"},                           // the same switch
		{"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0", "0"}, // a switch behind it
		{"pci0000:00/0000:00:02.0/0000:08:00.0", "0"},
		{"pci0000:80/0000:80:01.0/0000:81:00.0", "0"},
		{"pci0000:c0/0000:c0:01.0/0000:c1:00.0", "1"},
	})
	m.Unreached = [][2]int{{5, 0}}
	got, err := topology.Of(m, sysfs, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[[2]int]string{
		{0, 1}: "PIX", {0, 2}: "PXB", {0, 3}: "PHB", {0, 4}: "NODE", {0, 5}: "SYS",
		{1, 2}: "PXB", {1, 3}: "PHB", {1, 4}: "NODE", {1, 5}: "SYS",
		{2, 3}: "PHB", {2, 4}: "NODE", {2, 5}: "SYS", {3, 4}: "NODE", {3, 5}: "SYS", {4, 5}: "SYS",
	}
	if len(got.Links) != len(want) {
		t.Errorf("%d links, want %d", len(got.Links), len(want))
	}
	for _, l := range got.Links {
		at := [2]int{l.From, l.To}
		if l.Kind() != want[at] || l.Access == (at == [2]int{0, 5}) {
			t.Errorf("%v: %s, access %v; want %s", at, l.Kind(), l.Access, want[at])
		}
	}
	if g, want := got.GPUs[5], (topology.GPU{PCI: "0000:c1:00.0", NUMANode: 1, Processors: "40-47"}); g != want {
		t.Errorf("%+v, want %+v", g, want)
	}
}

// TestNVLinks: links to the other GPU count, and links to switches up to the number that both GPUs have.
func TestNVLinks(t *testing.T) {
	m, sysfs := machine(t, [][2]string{{"pci0000:00/0000:00:06.0", "-1"}, {"pci0000:00/0000:00:07.0", "-1"}, {"pci0000:00/0000:00:08.0", "-1"}})
	direct := func(pci string) nvml.NVLink {
		return nvml.NVLink{Remote: nvml.RemoteGPU, PCI: pci, BytesPerSecond: 25e9}
	}
	through := nvml.NVLink{Remote: nvml.RemoteSwitch, BytesPerSecond: 25e9}
	links := map[string][]nvml.NVLink{
		"0000:00:06.0": {direct("0000:00:07.0"), direct("0000:00:07.0"), through, through, through, {Remote: nvml.RemoteCPU}},
		"0000:00:07.0": {direct("0000:00:06.0"), direct("0000:00:06.0")},
		"0000:00:08.0": {through, through},
	}
	got, err := topology.Of(m, sysfs, func(pci string) ([]nvml.NVLink, error) { return links[pci], nil })
	if err != nil {
		t.Fatal(err)
	}
	want := []topology.Link{
		{From: 0, To: 1, Path: topology.PHB, NVLinks: 2, BytesPerSecond: 50e9, Access: true},
		{From: 0, To: 2, Path: topology.PHB, NVLinks: 2, BytesPerSecond: 50e9, Access: true},
		{From: 1, To: 2, Path: topology.PHB, Access: true},
	}
	if d := cmp.Diff(want, got.Links); d != "" {
		t.Error(d)
	}
	if k := got.Links[0].Kind(); k != "NV2" {
		t.Errorf("kind %s", k)
	}
}

// TestUnknown: values that cannot be read are unknown, and the error wraps the causes.
func TestUnknown(t *testing.T) {
	m := cuda.Machine{PCI: []string{"0000:01:00.0", "0000:02:00.0"}}
	broken := errors.New("broken")
	got, err := topology.Of(m, t.TempDir(), func(string) ([]nvml.NVLink, error) { return nil, broken })
	if !errors.Is(err, broken) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if len(got.Links) != 1 || got.Links[0].Kind() != "?" || got.GPUs[1].NUMANode != -1 {
		t.Errorf("%+v", got)
	}
}
