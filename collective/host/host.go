// Package host computes the routines of package collective on host devices: sums in rank order,
// accumulated in f32 and rounded once. Ranks of one process read each other's memory; ranks of
// several processes send their data through rank 0.
package host

import (
	"fmt"

	"pwc/collective"
	"pwc/internal/elements"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// chunk is the most bytes that a rank gives to one exchange.
const chunk = 256 << 10

// Add adds the routines to a device, for groups that its rank has joined. The caller closes the
// groups after the device.
func Add(dev *host.Device, groups ...*collective.Group) error {
	joined := map[string]*collective.Group{}
	for _, g := range groups {
		if joined[g.Name()] != nil {
			return fmt.Errorf("collective: two groups are named %q", g.Name())
		}
		joined[g.Name()] = g
	}
	routines := device.OpSet{}
	for _, k := range collective.Kinds {
		routines[k.Name()] = &routine{k, dev, joined}
	}
	routines[program.CollectiveWait] = waiting{}
	return dev.AddLibrary(routines)
}

// waiting is program.CollectiveWait. It does nothing, because a call is done when it returns.
type waiting struct{}

var _ device.Op = waiting{}

// Signature implements [device.Op].
func (waiting) Signature() device.Signature { return collective.WaitSignature("1") }

// ScratchBytes implements [device.Op].
func (waiting) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

// Launch implements [device.Op].
func (waiting) Launch(*device.OpCall) error { return nil }

// routine is one of collective.Kinds on a device.
type routine struct {
	kind   collective.Kind
	dev    *host.Device
	groups map[string]*collective.Group // by name
}

var _ device.Op = (*routine)(nil)

// Signature implements [device.Op].
func (r *routine) Signature() device.Signature { return r.kind.Signature("1") }

// parse checks a call and finds its group.
func (r *routine) parse(args []device.Tensor, attrs []program.Attr) (collective.Call, *collective.Group, error) {
	c, err := collective.Parse(r.kind, args, attrs)
	if err != nil {
		return c, nil, err
	}
	g := r.groups[c.Group]
	return c, g, c.Check(g)
}

// ScratchBytes implements [device.Op]. It returns the bytes of the sums of a chunk, which cannot be
// written to a destination that is the source: other ranks may still read it.
func (r *routine) ScratchBytes(args []device.Tensor, attrs []program.Attr) (int64, error) {
	c, _, err := r.parse(args, attrs)
	if err != nil || r.kind != collective.AllReduce {
		return 0, err
	}
	return min(c.Bytes, chunk), nil
}

// Launch implements [device.Op]. The ranks exchange data when the call runs, and at every replay of a
// graph.
func (r *routine) Launch(oc *device.OpCall) error {
	s, ok := oc.Stream.(*host.Stream)
	if !ok || s.Device() != device.Device(r.dev) {
		return fmt.Errorf("%s: %w", r.kind.Name(), device.ErrForeignStream)
	}
	m, err := r.meeting(s, oc)
	if err != nil {
		return err
	}
	if s.Capturing() {
		return s.Call(m.run)
	}
	return m.run()
}

// meeting is a call bound to memory.
type meeting struct {
	call          collective.Call
	group         *collective.Group
	what          string
	stream        *host.Stream
	dst, src, sum []byte
}

func (r *routine) meeting(s *host.Stream, oc *device.OpCall) (*meeting, error) {
	c, g, err := r.parse(oc.Args, oc.Attrs)
	if err != nil {
		return nil, err
	}
	m := &meeting{call: c, group: g, what: c.String(), stream: s}
	for _, b := range []struct {
		to   *[]byte
		from device.Buffer
	}{{&m.dst, oc.Args[0].Buffer}, {&m.src, oc.Args[1].Buffer}, {&m.sum, oc.Scratch}} {
		if b.from.Size == 0 {
			continue
		}
		if *b.to, err = r.dev.Bytes(b.from); err != nil {
			return nil, fmt.Errorf("%s: %w", r.kind.Name(), err)
		}
	}
	return m, nil
}

// run makes the call with the other ranks. After an error the destination is undefined.
func (m *meeting) run() error {
	part, blocks := int(m.call.Bytes), 1
	if m.call.Kind == collective.ReduceScatter {
		blocks = m.call.Size
	}
	for at := 0; at < part; at += chunk {
		n := min(chunk, part-at)
		for block := range blocks {
			if err := m.exchange(block, at, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// exchange computes bytes [at, at+n) of a part; for a reduce-scatter, of the part of rank block.
func (m *meeting) exchange(block, at, n int) error {
	part, rank := int(m.call.Bytes), m.group.Rank()
	mine := m.src[block*part+at:][:n]
	if m.call.Kind == collective.Broadcast && rank != m.call.Root {
		mine = nil
	}
	err := m.group.Exchange(m.stream.Context(), m.what, mine, func(all [][]byte) error {
		switch m.call.Kind {
		case collective.AllReduce:
			return m.add(m.sum[:n], all)
		case collective.ReduceScatter:
			if block == rank {
				return m.add(m.dst[at:][:n], all)
			}
		case collective.AllGather:
			for from, data := range all {
				copy(m.dst[from*part+at:][:n], data)
			}
		case collective.Broadcast:
			if rank != m.call.Root {
				copy(m.dst[at:][:n], all[m.call.Root])
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case m.call.Kind == collective.AllReduce:
		copy(m.dst[at:][:n], m.sum)
	case m.call.Kind == collective.Broadcast && rank == m.call.Root:
		copy(m.dst[at:][:n], mine)
	}
	return nil
}

// add writes the sums of the numbers of all ranks, in rank order.
func (m *meeting) add(dst []byte, all [][]byte) error {
	view := func(b []byte) (elements.Slice, error) {
		return elements.View(&device.Tensor{DType: m.call.DType, Shape: []int64{m.count(len(dst))}}, b)
	}
	out, err := view(dst)
	if err != nil {
		return err
	}
	in := make([]elements.Slice, len(all))
	for i, b := range all {
		if in[i], err = view(b); err != nil {
			return err
		}
	}
	var sum, next [512]float32
	for at, n := 0, int(m.count(len(dst))); at < n; at += len(sum) {
		k := min(len(sum), n-at)
		in[0].Load(sum[:k], at)
		for _, x := range in[1:] {
			x.Load(next[:k], at)
			for i, v := range next[:k] {
				sum[i] += v
			}
		}
		out.Store(at, sum[:k])
	}
	return nil
}

// count returns how many elements of the call's dtype have so many bytes.
func (m *meeting) count(bytes int) int64 { return int64(bytes) * 8 / int64(m.call.DType.Bits()) }
