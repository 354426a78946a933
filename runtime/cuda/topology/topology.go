// Package topology reads the links between the GPUs of a machine: NVLinks, and paths through PCIe. It reads
// sysfs, and gets the answers of the driver and NVML from its caller. It makes no context on a GPU.
package topology

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"pwc/internal/openfile"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/nvml"
)

// Path is the kind of the path between two GPUs through PCIe. The names are those of nvidia-smi topo.
type Path string

const (
	PathUnknown Path = ""
	PIX         Path = "PIX"  // at most one PCIe switch
	PXB         Path = "PXB"  // several PCIe switches, no host bridge
	PHB         Path = "PHB"  // a host bridge of the processor
	NODE        Path = "NODE" // several host bridges of one NUMA node
	SYS         Path = "SYS"  // the links between NUMA nodes
)

// GPU is the place of a GPU in the machine.
type GPU struct {
	PCI        string // address, "0000:06:00.0"
	NUMANode   int    // -1: unknown, or the machine has one node
	Processors string // numbers of the CPUs near the GPU, "0-31"; "": unknown
}

// Link is the link between two GPUs.
type Link struct {
	From, To       int // ordinals, From < To
	Path           Path
	NVLinks        int   // NVLinks between the two, directly or by NVSwitch
	BytesPerSecond int64 // of all NVLinks together, in each direction; 0: no NVLinks, or unknown
	Access         bool  // kernels of each reach the memory of the other
}

// Kind returns the fastest connection in the terms of nvidia-smi topo: "NV18" for 18 NVLinks, else the path through
// PCIe; "?" if it is unknown.
func (l Link) Kind() string {
	if l.NVLinks > 0 {
		return "NV" + strconv.Itoa(l.NVLinks)
	}
	if l.Path == PathUnknown {
		return "?"
	}
	return string(l.Path)
}

// Topology is the GPUs of a machine and their links.
type Topology struct {
	GPUs  []GPU  // by ordinal
	Links []Link // of each pair, in order of From and To
}

// NVLinks returns the active NVLinks of the GPU at a PCI address, as nvml.Library.NVLinks does.
type NVLinks func(pci string) ([]nvml.NVLink, error)

// Of reads the topology of a machine. sysfs is the directory where sysfs is mounted, "/sys". If links is nil, no
// NVLinks are counted. The error joins all failures of reading; the other values of the topology are valid.
func Of(m cuda.Machine, sysfs string, links NVLinks) (Topology, error) {
	var t Topology
	var errs []error
	ways, nvlinks := make([][]string, len(m.PCI)), make([][]nvml.NVLink, len(m.PCI))
	for i, pci := range m.PCI {
		g, way, err := place(sysfs, pci)
		errs = append(errs, err)
		if links != nil {
			var err error
			nvlinks[i], err = links(pci)
			errs = append(errs, err)
		}
		t.GPUs, ways[i] = append(t.GPUs, g), way
	}
	for i := range t.GPUs {
		for j := i + 1; j < len(t.GPUs); j++ {
			l := Link{From: i, To: j, Path: path(ways[i], ways[j], t.GPUs[i].NUMANode == t.GPUs[j].NUMANode)}
			l.NVLinks, l.BytesPerSecond = shared(nvlinks[i], nvlinks[j], t.GPUs[j].PCI)
			l.Access = !slices.Contains(m.Unreached, [2]int{i, j}) && !slices.Contains(m.Unreached, [2]int{j, i})
			t.Links = append(t.Links, l)
		}
	}
	return t, errors.Join(errs...)
}

// place reads the place of a GPU, and the names of the host bridge and the PCIe devices on the path to it.
func place(sysfs, pci string) (GPU, []string, error) {
	g := GPU{PCI: pci, NUMANode: -1}
	dir, err := filepath.EvalSymlinks(filepath.Join(sysfs, "bus/pci/devices", pci))
	if err != nil {
		return g, nil, err
	}
	node, nodeErr := attribute(dir, "numa_node")
	if n, err := strconv.Atoi(node); err == nil {
		g.NUMANode = n
	}
	var listErr error
	g.Processors, listErr = attribute(dir, "local_cpulist")
	way := strings.Split(filepath.ToSlash(dir), "/")
	first := slices.IndexFunc(way, func(s string) bool { return strings.HasPrefix(s, "pci") && strings.Contains(s, ":") })
	if first < 0 {
		way = nil
	} else {
		way = way[first:]
	}
	return g, way, errors.Join(nodeErr, listErr)
}

// attribute reads a file of sysfs; "" if there is no such file.
func attribute(dir, name string) (string, error) {
	text, err := openfile.Read(filepath.Join(dir, name), 1<<16)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(text)), err
}

// path compares the paths to two GPUs.
func path(a, b []string, oneNode bool) Path {
	if len(a) == 0 || len(b) == 0 {
		return PathUnknown
	}
	common := 0
	for common < len(a) && common < len(b) && a[common] == b[common] {
		common++
	}
	switch left := max(len(a), len(b)) - common; {
	case common == 0 && oneNode:
		return NODE
	case common == 0:
		return SYS
	case common == 1:
		return PHB
	case left <= 2: // a port of the switch and the GPU
		return PIX
	default:
		return PXB
	}
}

// shared returns the number of NVLinks from a GPU to another one, and their speed in all: the links that lead directly
// to the other GPU, and as many links to switches as both GPUs have.
func shared(from, to []nvml.NVLink, pci string) (n int, bytesPerSecond int64) {
	switches := 0 // links of the other GPU to switches that were not counted yet
	for _, l := range to {
		if l.Remote == nvml.RemoteSwitch {
			switches++
		}
	}
	for _, l := range from {
		switch {
		case l.Remote == nvml.RemoteSwitch && switches > 0:
			switches--
		case l.Remote != nvml.RemoteGPU || l.PCI != pci:
			continue
		}
		n, bytesPerSecond = n+1, bytesPerSecond+l.BytesPerSecond
	}
	return n, bytesPerSecond
}
