package cuda

import (
	"fmt"

	"pwc/internal/cuda/driver"
	"pwc/program"
	"pwc/runtime/device"
)

// Machine describes the GPUs of a machine, as the driver shows them.
type Machine struct {
	Library      string        // path of the driver's library; a bare name was found by the loader's own rules
	Major, Minor int           // the newest CUDA that the driver supports
	Devices      []device.Info // by ordinal
	PCI          []string      // PCI addresses by ordinal, "0000:06:00.0"
	Unreached    [][2]int      // pairs of ordinals: kernels of the first cannot reach memory of the second
}

// Describe asks the driver for the machine's GPUs. It makes no context and allocates no
// memory. Options.Ordinal is ignored. Without a driver the error is that of Open.
func Describe(o Options) (Machine, error) {
	drv, err := o.driver()
	if err != nil {
		return Machine{}, err
	}
	m := Machine{Library: drv.Library()}
	fail := func(err error) (Machine, error) {
		return Machine{}, fmt.Errorf("cuda: describing the machine: %w", err)
	}
	version, err := drv.DriverGetVersion()
	if err != nil {
		return fail(err)
	}
	m.Major, m.Minor = version/1000, version%1000/10
	n, err := drv.DeviceGetCount()
	if err != nil {
		return fail(err)
	}
	for i := range n {
		info, err := describe(drv, driver.Device(i))
		if err != nil {
			return fail(err)
		}
		pci, err := pciAddress(drv, driver.Device(i))
		if err != nil {
			return fail(err)
		}
		m.Devices, m.PCI = append(m.Devices, info), append(m.PCI, pci)
	}
	for i := range n {
		for j := range n {
			if i == j {
				continue
			}
			if can, err := drv.DeviceCanAccessPeer(driver.Device(i), driver.Device(j)); err != nil {
				return fail(err)
			} else if !can {
				m.Unreached = append(m.Unreached, [2]int{i, j})
			}
		}
	}
	return m, nil
}

// pciAddress returns a device's address as sysfs writes it. GPUs are function 0.
func pciAddress(drv driver.Driver, ordinal driver.Device) (string, error) {
	var parts [3]any
	for i, a := range []driver.Attribute{driver.AttrPCIDomain, driver.AttrPCIBus, driver.AttrPCIDevice} {
		v, err := drv.DeviceGetAttribute(a, ordinal)
		if err != nil {
			return "", err
		}
		parts[i] = v
	}
	return fmt.Sprintf("%04x:%02x:%02x.0", parts[:]...), nil
}

// driver returns the driver that the options name.
func (o *Options) driver() (driver.Driver, error) {
	if o.Driver != nil {
		return o.Driver, nil
	}
	drv, err := driver.Open(o.LibraryPath)
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	return drv, nil
}

// properties pairs properties of devices with attributes of the driver.
var properties = [...]struct {
	name string
	attr driver.Attribute
}{
	{"sms", driver.AttrMultiprocessors},
	{"major", driver.AttrComputeMajor},
	{"minor", driver.AttrComputeMinor},
	{"warp", driver.AttrWarpSize},
	{"l2_bytes", driver.AttrL2Bytes},
	{"shared_bytes", driver.AttrSharedBytesPerBlock},
	{"shared_bytes_per_sm", driver.AttrSharedBytesPerSM},
	{"registers_per_sm", driver.AttrRegistersPerSM},
	{"threads_per_sm", driver.AttrThreadsPerSM},
	{"blocks_per_sm", driver.AttrBlocksPerSM},
}

// describe asks the driver for the properties of a device.
func describe(drv driver.Driver, ordinal driver.Device) (device.Info, error) {
	name, err := drv.DeviceGetName(ordinal)
	if err != nil {
		return device.Info{}, err
	}
	total, err := drv.DeviceTotalMem(ordinal)
	if err != nil {
		return device.Info{}, err
	}
	props := make(map[string]int64, len(properties))
	for _, p := range properties {
		v, err := drv.DeviceGetAttribute(p.attr, ordinal)
		if err != nil {
			return device.Info{}, err
		}
		props[program.PropertyPrefix+p.name] = int64(v)
	}
	target := Target(int(props[program.PropertyPrefix+"major"]), int(props[program.PropertyPrefix+"minor"]))
	return device.Info{Target: target, Name: name, MemoryBytes: total, Properties: props}, nil
}
