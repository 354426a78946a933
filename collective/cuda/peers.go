package cuda

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"pwc/collective"
	"pwc/internal/openfile"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// offer describes a rank to the other ranks. A verdict, which a rank gives when it has read all offers, has only
// Err, Unreached and NVLinked.
type offer struct {
	Host    string            `json:"host"`    // the id of its boot
	Process string            `json:"process"` // on the host
	Ordinal int               `json:"ordinal"` // of the GPU, in the process
	PCI     string            `json:"pci"`     // address of the GPU
	Address uint64            `json:"address"` // of the receive buffer, in the process
	Handle  cuda.MemoryHandle `json:"handle"`  // of the receive buffer, for other processes of the host
	Err     string            `json:"err"`     // why the rank has no receive buffer, in a verdict why it cannot use the others'; "": it has one, or can

	NCCLBytes int64 `json:"nccl_bytes"` // of Options; rank 0's counts

	// Unreached is true if Err says that GPUs do not reach each other's memory.
	Unreached bool `json:"unreached"`

	// NVLinked is true if NVLink leads from the rank's GPU to those of all others.
	NVLinked bool `json:"nvlinked"`
}

// recvBuffers has the receive buffers of all ranks, by rank, and the resources that free releases.
type recvBuffers struct {
	address []uint64
	mine    device.Memory
	others  []device.Memory // of other processes

	ncclBytes int64 // Options.NCCLBytes of rank 0

	// nvlinked is whether NVLink leads from each GPU to each other one. PCIe may tear a line of LL128
	// (NCCL enables LL128 by default only with NVLink, src/graph/tuning.cc).
	nvlinked bool
}

// free releases the memory and the mappings.
func (b *recvBuffers) free() error {
	var errs []error
	for _, m := range b.others {
		errs = append(errs, m.Free())
	}
	if b.mine != nil {
		errs = append(errs, b.mine.Free())
	}
	return errors.Join(errs...)
}

// meet exchanges receive buffers with the other ranks. If one rank gets an error, all do. If the group has not ended,
// the errors of all ranks match errUnreached, or those of no rank do.
func meet(ctx context.Context, dev *cuda.Device, g *collective.Group, ncclBytes int64) (b *recvBuffers, err error) {
	b = &recvBuffers{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("collective: group %q over peer memory: %w", g.Name(), err), b.free())
		}
	}()
	o, err := b.offer(dev, g)
	if err != nil {
		o.Err = err.Error()
	}
	o.NCCLBytes = ncclBytes
	all, err := share(ctx, g, "receive buffers", o)
	if err == nil {
		b.ncclBytes = all[0].NCCLBytes
		err = b.open(dev, g, all)
	}
	verdict := offer{NVLinked: b.nvlinked}
	if err != nil {
		verdict.Err, verdict.Unreached = strings.TrimPrefix(err.Error(), errUnreached.Error()+": "), errors.Is(err, errUnreached)
	}
	if g.Err() != nil {
		return b, errors.Join(err, g.Err())
	}
	all, shareErr := share(ctx, g, "verdicts", verdict)
	if shareErr != nil {
		return b, errors.Join(err, shareErr)
	}
	for _, v := range all {
		b.nvlinked = b.nvlinked && v.NVLinked
	}
	return b, judge(all)
}

// judge returns the error of all verdicts.
func judge(all []offer) error {
	unreached := true
	var said []string
	for rank, v := range all {
		if v.Err != "" {
			said = append(said, fmt.Sprintf("rank %d: %s", rank, v.Err))
			unreached = unreached && v.Unreached
		}
	}
	switch text := strings.Join(said, "; "); {
	case len(said) == 0:
		return nil
	case unreached:
		return fmt.Errorf("%w: %s", errUnreached, text)
	default:
		return errors.New(text)
	}
}

// offer makes this rank's receive buffer, and describes it.
func (b *recvBuffers) offer(dev *cuda.Device, g *collective.Group) (o offer, err error) {
	if o.Host, o.Process, err = whereabouts(); err != nil {
		return o, err
	}
	o.Ordinal = dev.Ordinal()
	if o.PCI, err = dev.PCIAddress(); err != nil {
		return o, err
	}
	if b.mine, err = dev.Alloc(recvBufferBytes(g.Size())); err != nil {
		return o, err
	}
	buf := device.Buffer{Memory: b.mine, Size: b.mine.Size()}
	if o.Address, err = dev.Pointer(buf); err != nil {
		return o, err
	}
	if o.Handle, err = dev.ExportMemory(b.mine); err != nil {
		return o, err
	}
	s, err := dev.NewStream()
	if err != nil {
		return o, err
	}
	return o, errors.Join(s.Fill(buf, 0), s.Synchronize(), s.Close())
}

// open makes the receive buffers of the other ranks reachable.
func (b *recvBuffers) open(dev *cuda.Device, g *collective.Group, all []offer) error {
	b.address, b.nvlinked = make([]uint64, len(all)), true
	me := all[g.Rank()]
	for rank, o := range all {
		switch {
		case o.Err != "":
			return fmt.Errorf("rank %d has no receive buffer: %s", rank, o.Err)
		case rank == g.Rank():
			b.address[rank] = o.Address
		case o.Host != me.Host:
			return fmt.Errorf("%w: rank %d is on another host", errUnreached, rank)
		case o.Process == me.Process:
			if o.Ordinal == me.Ordinal {
				return fmt.Errorf("ranks %d and %d both use GPU %d; give each rank another GPU", g.Rank(), rank, o.Ordinal)
			}
			if can, err := dev.CanAccessPeer(o.Ordinal); err != nil {
				return err
			} else if !can {
				return fmt.Errorf("%w: GPU %d does not reach GPU %d", errUnreached, me.Ordinal, o.Ordinal)
			}
			if err := dev.EnablePeerAccess(o.Ordinal); err != nil {
				return err
			}
			b.address[rank] = o.Address
		default:
			m, err := dev.ImportMemory(o.Handle, recvBufferBytes(g.Size()))
			if err != nil {
				return fmt.Errorf("%w: cannot open the receive buffer of rank %d, on GPU %d of its process: %w", errUnreached, rank, o.Ordinal, err)
			}
			b.others = append(b.others, m)
			if b.address[rank], err = dev.Pointer(device.Buffer{Memory: m, Size: m.Size()}); err != nil {
				return err
			}
		}
		if rank != g.Rank() && b.nvlinked {
			var err error
			if b.nvlinked, err = dev.NVLinked(o.PCI); err != nil {
				return err
			}
		}
	}
	return nil
}

// whereabouts returns the host, by the id of its boot, and this process on it, by its pid and pid
// namespace: in containers processes may have equal pids.
func whereabouts() (host, process string, err error) {
	boot, err := openfile.Read("/proc/sys/kernel/random/boot_id", 64)
	if err != nil {
		return "", "", err
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", "", err
	}
	return strings.TrimSpace(string(boot)), fmt.Sprintf("%s %d", space, os.Getpid()), nil
}
