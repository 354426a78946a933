package cuda_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pwc/collective"
	collectivecuda "pwc/collective/cuda"
	"pwc/collective/cuda/peer"
	"pwc/collective/internal/cases"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// rank is one rank of a test.
type rank struct {
	*cudatest.Opened
	group  *collective.Group
	stream device.Stream
}

// eachRank runs f on a goroutine for each of some devices, and returns their errors.
func eachRank(t testing.TB, devices []*cudatest.Opened, o collectivecuda.Options, f func(r *rank) error) []error {
	t.Helper()
	groups, err := collective.Local("tp", len(devices), collective.Options{Limit: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if o.Code == nil {
		o.Code = code(devices[0].Compiler(t), devices[0].Info().Target)
	}
	errs := make([]error, len(devices))
	var all sync.WaitGroup
	for i, g := range groups {
		all.Go(func() {
			errs[i] = func() error {
				if err := collectivecuda.Add(t.Context(), devices[i].Device, o, g); err != nil {
					return err
				}
				s, err := devices[i].NewStream()
				if err != nil {
					return err
				}
				return f(&rank{devices[i], g, s})
			}()
			if errs[i] == nil {
				errs[i] = g.Barrier(t.Context()) // nobody closes while others work
			}
		})
	}
	all.Wait()
	return errs
}

// code compiles each variant once for all ranks.
func code(c collectivecuda.Compiler, target string) collectivecuda.Code {
	var mu sync.Mutex
	made := map[collectivecuda.Variant]*program.Program{}
	return func(ctx context.Context, v collectivecuda.Variant) (*program.Program, error) {
		mu.Lock()
		defer mu.Unlock()
		if p := made[v]; p != nil {
			return p, nil
		}
		p, err := collectivecuda.Compile(ctx, c, target, v)
		made[v] = p
		return p, err
	}
}

func must(t testing.TB, errs []error) {
	t.Helper()
	for rank, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// call is a call of a test, with its memory.
type call struct {
	cases.Call
	inPlace  bool
	shift    int64 // elements in front of destination and source
	op       device.Op
	oc       *device.OpCall
	dst, src device.Buffer
}

// prepare takes memory for a call and fills its source.
func (r *rank) prepare(c *call) error {
	width := c.DType.Bytes(1)
	c.Size = r.group.Size()
	dstN, srcN := c.Counts()
	take := func(n int64) (device.Buffer, error) {
		m, err := r.Alloc(max((n+c.shift)*width, 1))
		if err != nil {
			return device.Buffer{}, err
		}
		return device.Buffer{Memory: m, Offset: c.shift * width, Size: n * width}, nil
	}
	var err error
	if c.src, err = take(srcN); err != nil {
		return err
	}
	if c.dst = c.src; !c.inPlace {
		if c.dst, err = take(dstN); err != nil {
			return err
		}
	}
	c.op = r.Libraries()[c.Kind.Name()]
	c.oc = &device.OpCall{Attrs: c.Attrs(), Args: []device.Tensor{{Buffer: c.dst, DType: c.DType, Shape: []int64{dstN}}, {Buffer: c.src, DType: c.DType, Shape: []int64{srcN}}}}
	if _, err := c.op.ScratchBytes(c.oc.Args, c.oc.Attrs); err != nil {
		return err
	}
	return r.fill(c)
}

// fill writes the source of a call, and garbage to its destination.
func (r *rank) fill(c *call) error {
	data := make([]byte, c.src.Size)
	c.Fill(data, r.group.Rank())
	if len(data) == 0 {
		return nil
	}
	return errors.Join(r.stream.Fill(c.dst, 0x55), r.stream.CopyToDevice(c.src, data))
}

// compare compares a destination with the result of the call.
func (r *rank) compare(how string, c *call) error {
	got := make([]byte, c.dst.Size)
	if len(got) == 0 {
		return nil
	}
	if err := errors.Join(r.stream.CopyToHost(got, c.dst), r.stream.Synchronize()); err != nil {
		return err
	}
	if err := c.Check(got, r.group.Rank()); err != nil {
		return fmt.Errorf("%s, shifted by %d, in place %v: %w", how, c.shift, c.inPlace, err)
	}
	return nil
}

// run makes calls one after the other, eagerly and then in a graph, and compares all.
func (r *rank) run(calls []*call) error {
	for _, c := range calls {
		if err := r.prepare(c); err != nil {
			return err
		}
	}
	for _, c := range calls {
		if err := r.stream.LaunchOp(c.op, c.oc); err != nil {
			return err
		}
	}
	for _, c := range calls {
		if err := errors.Join(r.compare("eager", c), r.fill(c)); err != nil {
			return err
		}
	}
	if err := errors.Join(r.stream.Synchronize(), r.stream.BeginCapture(device.CaptureThreadLocal)); err != nil {
		return err
	}
	var errs []error
	for _, c := range calls {
		errs = append(errs, r.stream.LaunchOp(c.op, c.oc))
	}
	g, err := r.stream.EndCapture()
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	if err := r.stream.LaunchGraph(g); err != nil {
		return err
	}
	for _, c := range calls {
		if err := r.compare("replayed", c); err != nil {
			return err
		}
	}
	return g.Close()
}

// TestDeviceRoutines compares the results of all routines on 2 and 3 devices with those of integers, eagerly and in a
// graph, in one order of mixed sizes: sums aligned and not, copies of i8 one byte off; on 3 devices a two-shot, on GPUs
// sums of more than a round takes.
func TestDeviceRoutines(t *testing.T) {
	for _, size := range []int{2, 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			devices := cudatest.Several(t, size, fake.Options{})
			must(t, eachRank(t, devices, collectivecuda.Options{}, func(r *rank) error { return r.run(routineCalls(size, r.Emulated)) }))
		})
	}
}

// routineCalls are the calls of TestDeviceRoutines.
func routineCalls(size int, emulated bool) (calls []*call) {
	sizes := []int64{1, 3, 300, 5000}
	if !emulated {
		sizes = append(sizes, 40_000, 1_000_003)
	}
	for _, n := range sizes {
		for _, k := range collective.Kinds {
			for i, dt := range []dtype.DType{dtype.BF16, dtype.I8, dtype.F32, dtype.F16} {
				if k.Sums() == (dt == dtype.I8) || i >= 2 && (n >= 5000 || size > 2) && emulated {
					continue
				}
				calls = append(calls, &call{Call: cases.Call{Kind: k, DType: dt, N: n, Root: size - 1}, inPlace: k == collective.AllReduce && n != 300, shift: int64(i)})
			}
		}
	}
	if size > 2 { // a two-shot
		calls = append(calls, &call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.BF16, N: 400_001}})
	}
	return calls
}

// TestDeviceCleaning: rounds that send the whole region, as two of every 2²⁴ do, change no result. Here
// they are two of four.
func TestDeviceCleaning(t *testing.T) {
	devices := cudatest.Several(t, 2, fake.Options{})
	compiler, target := devices[0].Compiler(t), devices[0].Info().Target
	often := func(ctx context.Context, v collectivecuda.Variant) (*program.Program, error) {
		source := strings.Replace(v.Source(), "constexpr int CLEAN_BITS = 24;", "constexpr int CLEAN_BITS = 2;", 1)
		if source == v.Source() {
			return nil, errors.New("peer.cu does not define CLEAN_BITS as 24; change this test with it")
		}
		cubin, ptx, err := compiler.Compile(ctx, source, "peer.cu", strings.TrimPrefix(target, "cuda:"))
		if err != nil {
			return nil, err
		}
		k, err := program.CUDAKernel("peer", cubin, ptx)
		return program.Alone(target, k), err
	}
	must(t, eachRank(t, devices, collectivecuda.Options{Code: often}, func(r *rank) error {
		var calls []*call
		for _, n := range []int64{3, 5000, 1, 40_000, 300, 7, 5000} {
			calls = append(calls, &call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.BF16, N: n}}, &call{Call: cases.Call{Kind: collective.AllGather, DType: dtype.I8, N: n}})
		}
		return r.run(calls)
	}))
}

// TestDeviceDataIsNoFlag: data that an earlier call of the other protocol sent is not taken for a flag.
// The data of the first call, which uses LL128, are the number of the round in which block 0 computes the last call,
// which uses LL. Rank 0 begins the last call before rank 1 does.
func TestDeviceDataIsNoFlag(t *testing.T) {
	devices := cudatest.Several(t, 2, fake.Options{})
	must(t, eachRank(t, devices, collectivecuda.Options{}, func(r *rank) error {
		const lastRound = 4 // rounds count from 2
		large, small, last := gatherF32(peer.LatencyBytes/4+4), gatherF32(300), gatherF32(300)
		for _, c := range []*call{large, small, last} {
			if err := r.prepare(c); err != nil {
				return err
			}
		}
		data := make([]byte, 0, large.src.Size)
		for len(data) < cap(data) {
			data = binary.LittleEndian.AppendUint32(data, lastRound)
		}
		if err := r.stream.CopyToDevice(large.src, data); err != nil {
			return err
		}
		for _, c := range []*call{large, small} {
			if err := r.stream.LaunchOp(c.op, c.oc); err != nil {
				return err
			}
		}
		if err := r.stream.Synchronize(); err != nil {
			return err
		}
		if r.group.Rank() == 1 {
			time.Sleep(20 * time.Millisecond)
		}
		if err := r.stream.LaunchOp(last.op, last.oc); err != nil {
			return err
		}
		return r.compare("after data of another protocol", last)
	}))
}

func gatherF32(n int64) *call {
	return &call{Call: cases.Call{Kind: collective.AllGather, DType: dtype.F32, N: n}}
}

// TestDeviceMissingRank: a kernel that waits for a rank ends, and all ranks get an error that names the missing
// rank. The rank that waits gets it from Synchronize.
func TestDeviceMissingRank(t *testing.T) {
	devices := cudatest.Several(t, 2, fake.Options{})
	timeout := 50 * time.Millisecond
	if devices[0].Emulated {
		timeout = 100 * time.Microsecond // an instruction takes a nanosecond there
	}
	errs := eachRank(t, devices, collectivecuda.Options{Timeout: timeout}, func(r *rank) error {
		c := &call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.F32, N: 100}}
		if err := r.prepare(c); err != nil {
			return err
		}
		if r.group.Rank() == 1 {
			<-r.group.Done()
			if err := r.stream.LaunchOp(c.op, c.oc); !errors.Is(err, collective.ErrLost) {
				return fmt.Errorf("a call of a group that has ended: %w", err)
			}
			return r.group.Err()
		}
		if err := r.stream.LaunchOp(c.op, c.oc); err != nil {
			return err
		}
		return r.stream.Synchronize()
	})
	for rank, err := range errs {
		if !errors.Is(err, collective.ErrLost) || !strings.Contains(err.Error(), "rank 1 is lost in a kernel") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestDeviceEndedGroup: a kernel that waits ends when the group does, also if its timeout is an hour.
func TestDeviceEndedGroup(t *testing.T) {
	devices := cudatest.Several(t, 2, fake.Options{})
	holdEndedGroup(t, devices, collectivecuda.Options{Timeout: time.Hour}, cases.Call{Kind: collective.AllGather, DType: dtype.F32, N: 100})
}

// holdEndedGroup has rank 0 wait in a call for rank 1, which ends the group: both get its error.
func holdEndedGroup(t *testing.T, devices []*cudatest.Opened, o collectivecuda.Options, c cases.Call) {
	t.Helper()
	errs := eachRank(t, devices, o, func(r *rank) error {
		c := &call{Call: c}
		if err := r.prepare(c); err != nil {
			return err
		}
		if r.group.Rank() == 1 {
			time.Sleep(20 * time.Millisecond)
			r.group.Fail(errors.New("out of pages"))
			return r.group.Err()
		}
		if err := r.stream.LaunchOp(c.op, c.oc); err != nil {
			return err
		}
		return r.stream.Synchronize()
	})
	for rank, err := range errs {
		if !errors.Is(err, collective.ErrLost) || !strings.Contains(err.Error(), "rank 1 is lost: out of pages") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestDeviceOverPCIe: without NVLink all calls use LL, since PCIe may tear lines of LL128, and the device has no
// property device.peers.tp, so programs do not fuse an all_reduce.
func TestDeviceOverPCIe(t *testing.T) {
	for _, pcie := range []bool{false, true} {
		f := fake.New(fake.Options{Devices: 2, PCIePeers: pcie})
		var devices []*cudatest.Opened
		for i := range 2 {
			d, err := cuda.Open(cuda.Options{Ordinal: i, Driver: f})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			devices = append(devices, &cudatest.Opened{Device: d, Emulated: true})
		}
		compiled := code(devices[0].Compiler(t), devices[0].Info().Target)
		var lines atomic.Int32
		counting := func(ctx context.Context, v collectivecuda.Variant) (*program.Program, error) {
			if v.Protocol == collectivecuda.LL128 {
				lines.Add(1)
			}
			return compiled(ctx, v)
		}
		must(t, eachRank(t, devices, collectivecuda.Options{Code: counting}, func(r *rank) error {
			if got, want := r.Info().Properties[program.PeersProperty("tp")], int64(2); got != want != pcie {
				return fmt.Errorf("over PCIe %v: device.peers.tp is %d", pcie, got)
			}
			return r.run([]*call{gatherF32(peer.LatencyBytes/4 + 4), gatherF32(300)})
		}))
		if got := lines.Load() > 0; got == pcie {
			t.Errorf("over PCIe %v: LL128 is used: %v", pcie, got)
		}
	}
}

// TestWithoutPeers: if a device does not reach another's memory, all ranks get an error that says so.
func TestWithoutPeers(t *testing.T) {
	f := fake.New(fake.Options{Devices: 2, NoPeers: true})
	var devices []*cudatest.Opened
	for i := range 2 {
		d, err := cuda.Open(cuda.Options{Ordinal: i, Driver: f})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		devices = append(devices, &cudatest.Opened{Device: d, Emulated: true})
	}
	never := func(context.Context, collectivecuda.Variant) (*program.Program, error) { return nil, os.ErrNotExist }
	for rank, err := range eachRank(t, devices, collectivecuda.Options{Code: never}, func(*rank) error { return nil }) {
		if err == nil || !strings.Contains(err.Error(), "does not reach GPU") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}
