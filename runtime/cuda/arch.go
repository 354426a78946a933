package cuda

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"pwc/program"
)

// arch is the architecture of a target: the GPUs that code was compiled for.
type arch struct {
	target       string
	major, minor int  // compute capability
	only         byte // 'a': only for this compute capability; 'f': also for later minor versions; 0: as PTX for all later GPUs
}

var archPattern = regexp.MustCompile(`^cuda:sm_([1-9][0-9]*)([0-9])([af]?)$`)

// archOf reads a target such as "cuda:sm_90".
func (d *Device) archOf(target string) (arch, error) {
	a := arch{target: target}
	m := archPattern.FindStringSubmatch(target)
	if m == nil {
		return a, d.notFor(a)
	}
	var err error
	if a.major, err = strconv.Atoi(m[1]); err != nil {
		return a, d.notFor(a)
	}
	a.minor = int(m[2][0] - '0')
	if m[3] != "" {
		a.only = m[3][0]
	}
	return a, nil
}

func (d *Device) notFor(a arch) error {
	return fmt.Errorf("the code is for target %q, the device is %q", a.target, d.info.Target)
}

// programmatic reports whether the code can use programmatic dependent launch:
// architectures before sm_90 lack griddepcontrol.
func (a arch) programmatic() bool { return a.major >= 9 }

// cubinRuns reports whether the device runs machine code for architecture a. A GPU runs the
// code of earlier minor versions of its major version, unless the code is arch-specific. Tegra GPUs
// run only code for their own version, which no other GPU runs (CUDA C++ Programming Guide,
// "Binary Compatibility").
func (d *Device) cubinRuns(a arch) bool {
	switch {
	case a.major != d.major:
		return false
	case a.minor == d.minor:
		return true
	}
	return a.minor < d.minor && a.only != 'a' && !tegra(a.major, a.minor) && !tegra(d.major, d.minor)
}

// tegra reports whether GPUs of a compute capability, 8.0 or later, are parts of Tegra chips: Orin, and Thor by the
// number of CUDA 12. CUDA 13 calls Thor 11.0, the only version of its major version.
func tegra(major, minor int) bool { return major == 8 && minor == 7 || major == 10 && minor == 1 }

// ptxRuns reports whether the device takes PTX for an architecture: its own or an earlier one,
// without suffix a or f.
func (d *Device) ptxRuns(a arch) bool {
	return a.only == 0 && (a.major < d.major || a.major == d.major && a.minor <= d.minor)
}

// image is the form in which the device takes a kernel.
type image uint8

const (
	imageCubin image = iota
	imagePTX         // the driver compiles it
)

// imageOf returns how the device takes a kernel that was made for architecture a: its cubin
// if that runs here, else its PTX.
func (d *Device) imageOf(a arch, k *program.Kernel) (image, error) {
	switch {
	case k.Format != program.KernelCUDA:
		return 0, errors.New("its code is not for GPUs")
	case len(k.Code) > 0 && d.cubinRuns(a):
		return imageCubin, nil
	case len(k.PTX) > 0 && d.ptxRuns(a):
		return imagePTX, nil
	case d.ptxRuns(a):
		return 0, fmt.Errorf("%w, and the kernel has no PTX", d.notFor(a))
	}
	return 0, d.notFor(a)
}

// Takes implements [device.TargetChecker]. compiles is true if the target's machine code does not
// run here, such as that of an earlier major version: then the driver compiles the PTX of kernels
// in Load. A kernel without a cubin is compiled in any case. [Device.PTXCompiled] counts both.
func (d *Device) Takes(target string) (compiles bool, err error) {
	a, err := d.archOf(target)
	if err != nil {
		return false, err
	}
	both := program.Kernel{Format: program.KernelCUDA, Code: []byte{0}, PTX: []byte{0}}
	im, err := d.imageOf(a, &both)
	return im == imagePTX, err
}

// CompilesAtLoad implements [device.LoadCompiler].
func (d *Device) CompilesAtLoad(p *program.Program) string {
	a, err := d.archOf(p.Target)
	if err != nil || p.Validate() != nil {
		return ""
	}
	compiles := false
	x := &Executable{dev: d, program: p}
	for i := range x.kernels() {
		im, err := d.imageOf(a, &p.Kernels[i])
		if err != nil {
			return ""
		}
		compiles = compiles || im == imagePTX
	}
	if !compiles {
		return ""
	}
	return fmt.Sprintf("PTX of %s for %s", p.Target, d.info.Target)
}
