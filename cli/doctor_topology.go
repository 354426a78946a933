package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// doctorTopology is how GPUs are linked.
type doctorTopology struct {
	GPUs  []doctorGPU  `json:"gpus"`  // by ordinal
	Links []doctorLink `json:"links"` // of each pair
}

type doctorGPU struct {
	PCI        string `json:"pci"`
	NUMANode   *int   `json:"numa_node,omitempty"`
	Processors string `json:"processors,omitempty"` // near to the GPU
}

type doctorLink struct {
	From           int    `json:"from"`
	To             int    `json:"to"`   // above From
	Kind           string `json:"kind"` // NV and the number of NVLinks; without NVLink the value of pcie, or "?"
	PCIe           string `json:"pcie"` // PIX, PXB, PHB, NODE or SYS; "": unknown
	NVLinks        int    `json:"nvlinks"`
	BytesPerSecond int64  `json:"nvlink_bytes_per_second"` // of all NVLinks together, in each direction
	Access         bool   `json:"access"`                  // to each other's memory
}

// pcieKinds describes the kinds of PCIe paths, by their names in nvidia-smi topo.
var pcieKinds = map[string]string{
	"PIX": "PCIe through at most one switch", "PXB": "PCIe through several switches", "PHB": "PCIe through a host bridge",
	"NODE": "PCIe through host bridges of one NUMA node", "SYS": "PCIe and the links between NUMA nodes", "?": "unknown",
}

// means describes the kind of a link.
func (l *doctorLink) means() string {
	if l.NVLinks == 0 {
		return pcieKinds[l.Kind]
	}
	text := plural(int64(l.NVLinks), "NVLink")
	if l.BytesPerSecond > 0 {
		text += fmt.Sprintf(", %.0f GB/s each way", float64(l.BytesPerSecond)/1e9)
	}
	return text
}

// between returns the link of two GPUs; nil if there is none, as for i = j.
func (t *doctorTopology) between(i, j int) *doctorLink {
	at := slices.IndexFunc(t.Links, func(l doctorLink) bool { return l.From == min(i, j) && l.To == max(i, j) })
	if at < 0 {
		return nil
	}
	return &t.Links[at]
}

// write prints the links as a matrix, and a legend of the kinds in it.
func (t *doctorTopology) write(w io.Writer) error {
	list := table{head: []string{"link"}}
	for i := range t.GPUs {
		list.head = append(list.head, fmt.Sprintf("gpu %d", i))
	}
	list.head = append(list.head, "PCI", "NUMA node", "processors")
	kinds := map[string]string{}
	for i, g := range t.GPUs {
		row := []string{fmt.Sprintf("gpu %d", i)}
		for j := range t.GPUs {
			l := t.between(i, j)
			if l == nil {
				row = append(row, "-")
				continue
			}
			row = append(row, l.Kind)
			text := l.means()
			if other, ok := kinds[l.Kind]; ok && other != text { // other bandwidth
				text = plural(int64(l.NVLinks), "NVLink")
			}
			kinds[l.Kind] = text
		}
		node := "-"
		if g.NUMANode != nil {
			node = fmt.Sprint(*g.NUMANode)
		}
		list.add(append(row, g.PCI, node, cmp.Or(g.Processors, "-"))...)
	}
	_, err := fmt.Fprintln(w)
	errs := []error{err, list.write(w, "")}
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		_, err := fmt.Fprintf(w, "%s: %s\n", k, kinds[k])
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
