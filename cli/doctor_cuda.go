//go:build !nocuda

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	compilecuda "pwc/compile/cuda"
	"pwc/internal/openfile"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/cublaslt"
	"pwc/runtime/cuda/nccl"
	"pwc/runtime/cuda/nvml"
	"pwc/runtime/cuda/nvrtc"
	"pwc/runtime/cuda/topology"
)

// checkGPUs looks for the libraries that GPUs need, and runs the demonstration on every GPU. links is nil if there are
// fewer than two GPUs.
func (a *app) checkGPUs(ctx context.Context) (out []doctorCheck, links *doctorTopology) {
	driver, machine := checkDriver()
	compiler, library := checkNVRTC()
	collectives := checkNCCL()
	out = []doctorCheck{driver, compiler, checkCuBLASLt(), collectives}
	if len(machine.Devices) > 1 {
		var topology doctorCheck
		topology, links = checkTopology(machine)
		out = append(out, topology, checkPeers(machine, collectives.State == "ok"))
	}
	for i := range machine.Devices {
		out = append(out, a.checkGPU(ctx, i, machine, library))
	}
	return out, links
}

// checkTopology reads the links between GPUs.
func checkTopology(m cuda.Machine) (doctorCheck, *doctorTopology) {
	c := doctorCheck{Name: "topology", State: "ok", Detail: "the table below has the links between GPUs"}
	library, err := nvml.Open(nvml.Options{})
	var links topology.NVLinks
	if err == nil {
		links = library.NVLinks
	}
	t, readErr := topology.Of(m, "/sys", links)
	err = errors.Join(err, readErr)
	if links != nil {
		err = errors.Join(err, library.Close())
	}
	if err != nil {
		c.State, c.Detail = "missing", err.Error()
		c.Advice = "the table below has only the links that are known; models run without this knowledge"
	}
	return c, reportTopology(t)
}

// reportTopology converts a topology to its JSON form.
func reportTopology(t topology.Topology) *doctorTopology {
	r := &doctorTopology{}
	for _, g := range t.GPUs {
		d := doctorGPU{PCI: g.PCI, Processors: g.Processors}
		if g.NUMANode >= 0 {
			d.NUMANode = &g.NUMANode
		}
		r.GPUs = append(r.GPUs, d)
	}
	for _, l := range t.Links {
		r.Links = append(r.Links, doctorLink{l.From, l.To, l.Kind(), string(l.Path), l.NVLinks, l.BytesPerSecond, l.Access})
	}
	return r
}

// kernelDriver is the file with the version of the kernel driver.
const kernelDriver = "/sys/module/nvidia/version"

func checkDriver() (doctorCheck, cuda.Machine) {
	c := doctorCheck{Name: "driver"}
	m, err := cuda.Describe(cuda.Options{})
	if err != nil {
		c.State, c.Detail = "missing", strings.TrimPrefix(err.Error(), "cuda: ")
		c.Advice = "install NVIDIA's driver to run on a GPU; compiling for a GPU (--target cuda:sm_90) works without it"
		if !errors.As(err, new(*nvrtc.NotFoundError)) { // the type for all libraries
			c.Advice = "a driver is installed, but cannot be used; compiling for a GPU (--target cuda:sm_90) works without it"
		}
		return c, m
	}
	c.State, c.Detail = "ok", m.Library
	if text, err := openfile.Read(kernelDriver, 1<<20); err == nil {
		c.Detail += " " + strings.TrimSpace(string(text))
	}
	c.Detail += fmt.Sprintf(", supports CUDA %d.%d, has %s", m.Major, m.Minor, plural(int64(len(m.Devices)), "GPU"))
	if len(m.Devices) == 0 {
		c.State, c.Advice = "missing", "check CUDA_VISIBLE_DEVICES and the settings of the container, which may hide GPUs"
	}
	return c, m
}

func checkNVRTC() (doctorCheck, *nvrtc.Library) {
	c := doctorCheck{Name: "nvrtc"}
	l, err := nvrtc.Open(nvrtc.Options{})
	if err != nil {
		c.State, c.Detail = "missing", strings.TrimPrefix(err.Error(), "nvrtc: ")
		c.Advice = "install it to compile for GPUs; models whose artifacts are in the cache run without it"
		return c, nil
	}
	major, minor := l.Version()
	var targets []string
	makes := l.Compiler().Supports
	for _, n := range l.Archs() {
		for _, arch := range []string{fmt.Sprintf("sm_%d", n), fmt.Sprintf("sm_%da", n)} {
			if n >= compilecuda.MinArch && makes(arch) {
				targets = append(targets, "cuda:"+arch)
			}
		}
	}
	c.State, c.Detail = "ok", fmt.Sprintf("%s %d.%d, compiles for %s", l.Path(), major, minor, strings.Join(targets, " "))
	if len(targets) == 0 {
		c.State, c.Detail = "missing", fmt.Sprintf("%s %d.%d compiles for no GPU from sm_%d on", l.Path(), major, minor, compilecuda.MinArch)
		c.Advice = "install NVRTC of CUDA 11.8 or later"
	}
	return c, l
}

func checkCuBLASLt() doctorCheck {
	c := doctorCheck{Name: "cublaslt"}
	path, version, err := cublaslt.Find(cublaslt.Options{})
	if err != nil {
		c.State, c.Detail = "missing", strings.TrimPrefix(err.Error(), "cublaslt: ")
		c.Advice = "without it, pwc's own kernels compute GEMMs of many rows"
		return c
	}
	c.State, c.Detail = "ok", fmt.Sprintf("%s %d.%d.%d, for GEMMs of many rows", path, version/10000, version/100%100, version%100)
	return c
}

func checkNCCL() doctorCheck {
	c := doctorCheck{Name: "nccl"}
	l, err := nccl.Open(nccl.Options{})
	if err != nil {
		c.State, c.Detail = "missing", strings.TrimPrefix(err.Error(), "nccl: ")
		c.Advice = "without it, only GPUs with access to each other's memory run a model together (--tp)"
		return c
	}
	c.State = "ok"
	c.Detail = fmt.Sprintf("%s %s, for collectives of GPUs without access to each other's memory", l.Path(), nccl.FormatVersion(l.Version()))
	return c
}

// checkPeers reports which GPUs have access to each other's memory. Collectives use peer access;
// without it they need NCCL.
func checkPeers(m cuda.Machine, nccl bool) doctorCheck {
	c := doctorCheck{Name: "peer access", State: "ok", Detail: fmt.Sprintf("all %d GPUs have access to each other's memory", len(m.Devices))}
	if len(m.Unreached) == 0 {
		return c
	}
	var pairs []string
	for _, p := range m.Unreached {
		pairs = append(pairs, fmt.Sprintf("%d to %d", p[0], p[1]))
	}
	c.State, c.Detail = "missing", "no access from GPU "+strings.Join(pairs, ", ")
	c.Advice = "these GPUs cannot run a model together (--tp) without NCCL"
	if nccl {
		c.Advice = "NCCL computes the collectives of a model that these GPUs run together (--tp)"
	}
	c.Advice += "; causes are an IOMMU, a container, or GPUs without NVLink behind different PCIe switches"
	return c
}

// checkGPU describes a GPU and runs the demonstration on it.
func (a *app) checkGPU(ctx context.Context, ordinal int, m cuda.Machine, compiler *nvrtc.Library) doctorCheck {
	info := m.Devices[ordinal]
	about := fmt.Sprintf("%s, %s, %s", info.Name, byteCount(info.MemoryBytes), info.Target)
	c := doctorCheck{Name: fmt.Sprintf("gpu %d", ordinal), State: "missing", Detail: about}
	if compiler == nil {
		c.Advice = "not tested, since NVRTC is missing"
		return c
	}
	t, err := openGPUOf(ordinal, &buildFlags{target: "cuda"}, true)
	if err != nil {
		c.State, c.Detail = "failed", about+": "+err.Error()
		if info.Properties["device.major"]*10+info.Properties["device.minor"] < compilecuda.MinArch {
			c.State, c.Advice = "missing", fmt.Sprintf("pwc supports GPUs from sm_%d on", compilecuda.MinArch)
		}
		return c
	}
	tried := a.selfTest(ctx, c.Name, t)
	if e := t.cuda.Err(); e != nil && tried.State == "failed" {
		var missing *nvrtc.NotFoundError
		if !errors.As(e, &missing) {
			tried.State, tried.Advice = "missing", "install a newer NVRTC, which compiles for this GPU"
			if earlier := latestBefore(compiler.Archs(), info.Properties["device.major"]*10+info.Properties["device.minor"]); earlier > 0 {
				tried.Advice += fmt.Sprintf("; until then use --target cuda:sm_%d: the driver compiles the PTX at each start", earlier)
			}
		}
	}
	tried.Detail = about + "; " + tried.Detail
	return tried
}

// latestBefore returns the latest architecture below arch that pwc supports, or 0. archs ascends.
func latestBefore(archs []int, arch int64) int {
	for _, n := range slices.Backward(archs) {
		if int64(n) < arch && n >= compilecuda.MinArch {
			return n
		}
	}
	return 0
}
