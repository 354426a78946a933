//go:build !nocuda

package cli

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

//go:embed meter.cu
var meterSource string

// gpuMeter measures a stream of a GPU with events.
type gpuMeter struct {
	dev    *cuda.Device
	stream *cuda.Stream
	module *cuda.Module
	events []device.Event
	marked int // events recorded since the last intervals
	times  []time.Duration
}

// newGPUMeter returns a meter for a stream, with kernels compiled for the target.
func (t *target) newGPUMeter(s device.Stream) (meter, error) {
	dev, isGPU := t.dev.(*cuda.Device)
	stream, isStream := s.(*cuda.Stream)
	if !isGPU || !isStream {
		return nil, fmt.Errorf("%s cannot be measured: its device is not a CUDA GPU", t.name)
	}
	code, err := t.compileKernel(context.Background(), Kernel{Name: "meter", Source: meterSource})
	if err != nil {
		return nil, err
	}
	m := &gpuMeter{dev: dev, stream: stream}
	m.module, err = dev.LoadModule(code)
	return m, err
}

func (m *gpuMeter) mark() error {
	if m.marked == len(m.events) {
		e, err := m.dev.NewTimedEvent()
		if err != nil {
			return err
		}
		m.events = append(m.events, e)
	}
	m.marked++
	return m.stream.Record(m.events[m.marked-1])
}

func (m *gpuMeter) intervals() ([]time.Duration, error) {
	if err := m.stream.Synchronize(); err != nil {
		return nil, err
	}
	m.times = m.times[:0]
	for i := 1; i < m.marked; i++ {
		d, err := m.dev.Elapsed(m.events[i-1], m.events[i])
		if err != nil {
			return nil, err
		}
		m.times = append(m.times, d)
	}
	m.marked = 0
	return m.times, nil
}

// call prepares a launch of one of the meter's kernels.
func (m *gpuMeter) call(kernel string, args ...uint64) (*cuda.KernelCall, error) {
	f, err := m.module.Function(kernel)
	if err != nil {
		return nil, err
	}
	c, err := f.NewCall(len(args), cuda.LaunchOptions{})
	if err != nil {
		return nil, err
	}
	for i, v := range args {
		c.SetArg(i, v)
	}
	return c, nil
}

func (m *gpuMeter) hold(d time.Duration) error {
	c, err := m.call("hold", uint64(d.Nanoseconds()))
	if err != nil {
		return err
	}
	c.Grid, c.Block = [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}
	return m.stream.LaunchKernel(c)
}

func (m *gpuMeter) free() (int64, bool, error) {
	n, err := m.dev.FreeBytes()
	return n, true, err
}

// bandwidth measures a read of 8 GiB, or of half the free memory if that is less. Like a decode step
// it reads once and in order.
func (m *gpuMeter) bandwidth() (float64, error) {
	free, err := m.dev.FreeBytes()
	if err != nil {
		return 0, err
	}
	bytes := min(8<<30, free/2) &^ 0xfffff
	mem, err := m.dev.Alloc(bytes)
	if err != nil {
		return 0, err
	}
	best, err := m.read(device.Buffer{Memory: mem, Size: bytes})
	if err = errors.Join(err, mem.Free()); err != nil {
		return 0, err
	}
	return float64(bytes) / best.Seconds(), nil
}

// read returns the shortest time in which a buffer was read.
func (m *gpuMeter) read(b device.Buffer) (time.Duration, error) {
	const (
		threads = 512
		tries   = 8
	)
	c, err := m.call("read", 0, uint64(b.Size/16), 0)
	if err != nil {
		return 0, err
	}
	for _, i := range []int{0, 2} { // argument 2 is for the result, which the kernel almost never writes: it may overlap the input
		if err := c.SetBuffer(i, b); err != nil {
			return 0, err
		}
	}
	sms := m.dev.Info().Properties["device.sms"]
	c.Grid, c.Block = [3]uint32{uint32(4 * sms), 1, 1}, [3]uint32{threads, 1, 1}
	if err := m.stream.Fill(b, 0x5a); err != nil {
		return 0, err
	}
	for range tries + 1 {
		if err := errors.Join(m.mark(), m.stream.LaunchKernel(c)); err != nil {
			return 0, err
		}
	}
	if err := m.mark(); err != nil {
		return 0, err
	}
	times, err := m.intervals()
	if err != nil {
		return 0, err
	}
	best := times[1] // the first is warm-up
	for _, d := range times[1:] {
		best = min(best, d)
	}
	return best, nil
}

func (m *gpuMeter) close() error {
	var errs []error
	for _, e := range m.events {
		errs = append(errs, e.Close())
	}
	return errors.Join(append(errs, m.module.Close())...)
}
