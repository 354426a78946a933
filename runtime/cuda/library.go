package cuda

import (
	"errors"
	"fmt"
	"maps"
	"sync/atomic"

	"pwc/internal/cuda/driver"
	"pwc/program"
	"pwc/runtime/device"
)

// AddLibrary gives the device routines that StepLibrary may name, in addition to those of
// Options.Libraries. It is an error if the device has a routine of the same name. All
// routines share one workspace on each stream, of at least workspace bytes. Unless the
// device is lost, Close calls done, with the context current.
func (d *Device) AddLibrary(routines device.OpSet, workspace int64, done func() error) error {
	const what = "library"
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.usable(what); err != nil {
		return err
	}
	d.mu.Lock()
	all := maps.Clone(d.libraries)
	if all == nil {
		all = device.OpSet{}
	}
	for name, op := range routines {
		if all[name] != nil {
			d.mu.Unlock()
			return fmt.Errorf("cuda: library: the device has a routine %s", name)
		}
		all[name] = op
	}
	d.libraries = all
	d.workspace = max(d.workspace, workspace)
	d.mu.Unlock()
	d.adopt(&addedLibrary{done})
	return nil
}

// AddPeers sets the last parameters, all of 8 bytes, of kernels with the launch attribute [AttrPeers]
// of a group. The device gets the property program.PeersProperty, the number of ranks, so that choices
// take such kernels. Either all ranks of the group call it, before they load programs, or no rank.
// launches counts the kernels that are enqueued or captured; nil: they are not counted.
func (d *Device) AddPeers(group string, ranks int, params []uint64, launches *atomic.Int64) error {
	if err := d.usable("peers"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.peers[group]; ok {
		return fmt.Errorf("cuda: peers: the device has group %q", group)
	}
	if d.peers == nil {
		d.peers = map[string]peers{}
	}
	d.peers[group] = peers{params, launches}
	properties := maps.Clone(d.info.Properties) // others read the map
	properties[program.PeersProperty(group)] = int64(ranks)
	d.info.Properties = properties
	return nil
}

// peers has the arguments of AddPeers for a group.
type peers struct {
	params   []uint64
	launches *atomic.Int64 // nil: not counted
}

// peersOf returns the peers of a group; ok is false if AddPeers was not called for it.
func (d *Device) peersOf(group string) (p peers, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok = d.peers[group]
	return p, ok
}

// addedLibrary is a library as a resource of the device.
type addedLibrary struct{ done func() error }

func (l *addedLibrary) destroy() error { return l.done() }

// Libraries returns the routines that programs may name.
func (d *Device) Libraries() device.OpSet {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.libraries
}

// WorkspaceBytes returns the largest workspace of the added libraries, in bytes.
func (d *Device) WorkspaceBytes() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.workspace
}

// UseWorkspace sets the workspace of routines that are called on the stream. Captured calls
// keep the workspace that they were captured with.
func (s *Stream) UseWorkspace(b device.Buffer) error {
	const what = "workspace"
	if err := s.notCapturing(what); err != nil {
		return err
	}
	if want := s.dev.WorkspaceBytes(); b.Size < want {
		return fmt.Errorf("cuda: %s of %d bytes, want at least %d", what, b.Size, want)
	}
	p, m, err := s.dev.memory(b)
	if err != nil {
		return refuse(what, err)
	}
	s.workspace = workspace{uint64(p), b.Size, m}
	return nil
}

// workspace is memory of a stream for routines.
type workspace struct {
	ptr    uint64
	bytes  int64
	memory *memory
}

// Workspace returns the address and size of the stream's workspace; 0 bytes if the stream
// has no workspace.
func (s *Stream) Workspace() (address uint64, bytes int64) {
	return s.workspace.ptr, s.workspace.bytes
}

// Do calls f with the context current, for libraries that use it.
func (d *Device) Do(f func() error) error {
	const what = "library call"
	if err := d.usable(what); err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return d.wrap(what, err)
	}
	defer d.leave()
	return f()
}

// WarmLibraries implements [device.LibraryStream]. It is refused while capturing.
func (s *Stream) WarmLibraries(l device.BoundLaunch) error {
	const what = "warm-up"
	if err := s.notCapturing(what); err != nil {
		return err
	}
	b, err := s.own(what, l)
	if err != nil {
		return err
	}
	for i := range b.steps {
		st := &b.steps[i]
		if w, ok := st.op.(device.Warmer); ok && st.kind == stepOp {
			st.call.Stream = s
			if err := w.Warm(st.call); err != nil {
				return fmt.Errorf("cuda: %s: %s: %w", what, st.label(), err)
			}
		}
	}
	return nil
}

// LibraryNodes are the nodes of a library's call in a graph.
type LibraryNodes struct {
	Kernels, Copies, Fills int

	// Open allows any number of further kernels, host functions, empty nodes, and records of and
	// waits for events, with which NCCL orders the calls of a communicator.
	Open bool
}

// openTypes are the nodes that a call with LibraryNodes.Open may add.
var openTypes = [...]driver.NodeType{driver.NodeKernel, driver.NodeHost, driver.NodeEmpty, driver.NodeWait, driver.NodeRecord}

// ProbeLibrary captures a call of a library on a stream of its own, drops the recording, and
// returns its nodes. If the call records other nodes than kernels, copies and fills, or does not
// join a stream that it forks, the error matches device.ErrNotCapturable. f gets the stream's
// handle; the context is current.
func (d *Device) ProbeLibrary(f func(stream uintptr) error) (LibraryNodes, error) {
	const what = "probe of a library"
	stream, err := d.NewStream()
	if err != nil {
		return LibraryNodes{}, err
	}
	s := stream.(*Stream)
	if err := s.BeginCapture(device.CaptureThreadLocal); err != nil {
		return LibraryNodes{}, errors.Join(err, s.Close())
	}
	err = f(s.Handle())
	raw, c, stopErr := s.stop(s.branch, true)
	stopErr = errors.Join(c.spoiled, stopErr)
	var types []driver.NodeType
	if raw != 0 {
		var probeErr error
		types, probeErr = d.probed(raw)
		stopErr = errors.Join(stopErr, probeErr)
	}
	if err = errors.Join(err, stopErr, s.Close()); err != nil {
		return LibraryNodes{}, d.wrap(what, err)
	}
	var n LibraryNodes
	for _, t := range types {
		switch t {
		case driver.NodeKernel:
			n.Kernels++
		case driver.NodeMemcpy:
			n.Copies++
		case driver.NodeMemset:
			n.Fills++
		default:
			return LibraryNodes{}, fmt.Errorf("cuda: %s: %w: it records a %s node", what, device.ErrNotCapturable, t)
		}
	}
	return n, nil
}

// probed returns the node types of a recording, and drops the recording as a resource: if it
// cannot be destroyed now, Close destroys it.
func (d *Device) probed(raw driver.Graph) ([]driver.NodeType, error) {
	types, err := d.nodeTypes(raw)
	return types, errors.Join(d.check(err), d.release("drop of a probe", newRecording(d, raw)))
}

func (d *Device) nodeTypes(g driver.Graph) ([]driver.NodeType, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	return d.drv.GraphNodeTypes(g)
}

// CallLibrary calls a library that enqueues on the stream. f gets the stream's handle; the
// context is current. planned are the nodes that the call records while capturing, as
// ProbeLibrary returns them. If the call records other nodes, and planned.Open does not allow
// them, the end of the capture fails.
func (s *Stream) CallLibrary(planned LibraryNodes, f func(stream uintptr) error) error {
	const what = "library call"
	if err := s.usable(what); err != nil {
		return err
	}
	if m := s.workspace.memory; m != nil && m.freed.Load() {
		return refuse(what, device.ErrFreed)
	}
	if err := s.begin(); err != nil {
		return s.dev.wrap(what, err)
	}
	defer s.end()
	if err := f(s.Handle()); err != nil {
		return s.issued(what, err)
	}
	c := s.recording()
	if c == nil {
		return nil
	}
	c.reach.memory(s.workspace.memory)
	c.planned[driver.NodeMemcpy] += planned.Copies
	c.planned[driver.NodeMemset] += planned.Fills
	c.open = c.open || planned.Open
	return s.record(c, operation{kind: device.NodeLibrary}, driver.NodeKernel, planned.Kernels)
}
