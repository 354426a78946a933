package fake

import (
	"errors"
	"slices"
	"unsafe"

	"pwc/internal/cuda/driver"
	"pwc/internal/cuda/fake/ptx"
)

// Modules in PTX, whose kernels are executed by package ptx.

// load makes a module of PTX. Each text is parsed once. The module's variables get memory of
// the device.
func (f *Driver) load(image []byte) (*module, error) {
	m := f.texts[string(image)]
	if m == nil {
		var err error
		if m, err = ptx.Parse(string(image)); err != nil {
			return nil, err
		}
		f.texts[string(image)] = m
	}
	x := &module{text: m}
	if data := m.Data(); len(data) > 0 {
		x.data = f.space.add(f.thread().ctx, regionModule, append([]byte(nil), data...))
	}
	return x, nil
}

// entry finds a kernel of a module in PTX.
func (m *module) entry(name string) *function {
	e := m.text.Entry(name)
	if e == nil {
		return nil
	}
	return &function{module: m, entry: e, kernel: Kernel{Name: name, StaticShared: e.StaticShared, MaxThreads: e.MaxThreads}, sizes: e.ParamBytes}
}

// arguments copies a launch's arguments, each to a multiple of 8 bytes.
func arguments(sizes []int64, params *unsafe.Pointer) []uint64 {
	n := int64(0)
	for _, size := range sizes {
		n += (size + 7) / 8
	}
	args, at := make([]uint64, n), int64(0)
	for i, p := range unsafe.Slice(params, len(sizes)) {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&args[at])), sizes[i]), unsafe.Slice((*byte)(p), sizes[i]))
		at += (sizes[i] + 7) / 8
	}
	return args
}

// cluster returns the size of clusters of a launch; zero without the attribute.
func cluster(c *driver.LaunchConfig) (size [3]uint32) {
	for _, a := range unsafe.Slice(c.Attrs, c.NumAttrs) {
		if a.ID == driver.LaunchCluster {
			copy(size[:], a.Value[:])
		}
	}
	return size
}

// programmatic reports whether a launch may start before earlier kernels end.
func programmatic(c *driver.LaunchConfig) bool {
	return slices.ContainsFunc(unsafe.Slice(c.Attrs, c.NumAttrs), func(a driver.LaunchAttr) bool { return a.ID == driver.LaunchProgrammatic && a.Value[0] != 0 })
}

// interpret executes a launch of a kernel in PTX. chain has the launches that it may overlap. An
// error loses the device.
func (f *Driver) interpret(o *op, chain *ptx.Chain) {
	l := ptx.Launch{Grid: o.config.Grid, Block: o.config.Block, Cluster: o.cluster, Dynamic: o.config.Shared, Params: o.args, Memory: reach{f}, Early: o.early, Chain: chain}
	if d := o.fn.module.data; d != nil {
		l.Data = uint64(d.base)
	}
	if r := f.now; r != nil {
		l.Yield = r.pause
	}
	err := f.machine.Run(o.fn.entry, l)
	if err == nil || f.sticky != 0 {
		return // success, or the kernel was ended because the device is lost
	}
	var e *ptx.Error
	if !errors.As(err, &e) {
		return
	}
	f.faults = append(f.faults, err.Error())
	switch f.sticky = driver.LaunchFailed; e.Fault {
	case ptx.AddressFault:
		f.sticky = driver.IllegalAddress
	case ptx.AlignmentFault:
		f.sticky = driver.MisalignedAddress
	case ptx.WaitFault:
		f.sticky = driver.LaunchTimeout
	}
}

// Span returns the accessible bytes around an address, and their base address.
func (s *space) Span(address uint64) (base uint64, data []byte) {
	i := s.index(driver.Ptr(address))
	if i < 0 {
		return 0, nil
	}
	r := s.regions[i]
	if r.kind != regionReserved {
		return uint64(r.base), r.data
	}
	may := func(page int64) bool {
		return page >= 0 && page < int64(len(r.mapped)) && r.mapped[page] && r.access[page]
	}
	first := int64(driver.Ptr(address)-r.base) / Granularity
	if !may(first) {
		return 0, nil
	}
	end := first + 1
	for may(end) {
		end++
	}
	for may(first - 1) {
		first--
	}
	return uint64(r.base) + uint64(first*Granularity), r.data[first*Granularity : end*Granularity]
}
