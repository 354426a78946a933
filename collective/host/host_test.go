package host_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pwc/collective"
	collectivehost "pwc/collective/host"
	"pwc/collective/internal/cases"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rank is one rank of a test.
type rank struct {
	group  *collective.Group
	dev    *host.Device
	stream device.Stream
}

// eachRank runs f on a goroutine for each rank of a group in one process, and returns their errors.
func eachRank(t *testing.T, size int, o collective.Options, f func(r *rank) error) []error {
	t.Helper()
	groups, err := collective.Local("tp", size, o)
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, size)
	var all sync.WaitGroup
	for i, g := range groups {
		all.Go(func() {
			errs[i] = func() (err error) {
				r := &rank{group: g, dev: host.Open(host.Options{Workers: 1})}
				defer func() { err = errors.Join(err, r.dev.Close()) }()
				if err := collectivehost.Add(r.dev, g); err != nil {
					return err
				}
				if r.stream, err = r.dev.NewStream(); err != nil {
					return err
				}
				if err := f(r); err != nil {
					return err
				}
				return g.Barrier(t.Context()) // nobody leaves while others still meet
			}()
		})
	}
	all.Wait()
	return errs
}

func must(t *testing.T, errs []error) {
	t.Helper()
	for rank, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
}

// bind loads and binds a program of one call.
func (r *rank) bind(c call) (device.BoundLaunch, []device.Buffer, error) {
	dstN, srcN := c.Counts()
	p := &program.Program{Target: host.Target,
		Params: []program.Param{{DType: c.DType, Shape: []dim.Dim{dim.Const(dstN)}, Mut: true}, {DType: c.DType, Shape: []dim.Dim{dim.Const(srcN)}}},
		Buffers: []program.Buffer{{Kind: program.BufferParam, DType: c.DType, Shape: []dim.Dim{dim.Const(dstN)}},
			{Kind: program.BufferParam, Index: 1, DType: c.DType, Shape: []dim.Dim{dim.Const(srcN)}}},
		Steps: []program.Step{{Kind: program.StepLibrary, Extern: c.Kind.Name(), Args: []int32{0, 1}, Attrs: c.Attrs()}}}
	if c.inPlace {
		p.Steps[0].Args[1] = 0
	}
	x, err := r.dev.Load(p, nil)
	if err != nil {
		return nil, nil, err
	}
	var mem []device.Buffer
	for _, n := range []int64{dstN, srcN} {
		m, err := r.dev.Alloc(max(c.DType.Bytes(n), 1))
		if err != nil {
			return nil, nil, err
		}
		mem = append(mem, device.Buffer{Memory: m, Size: c.DType.Bytes(n)})
	}
	args := device.Args{Params: mem}
	need, err := x.ScratchBytes(nil)
	if err != nil {
		return nil, nil, err
	}
	if need > 0 {
		m, err := r.dev.Alloc(need)
		if err != nil {
			return nil, nil, err
		}
		args.Scratch = device.Buffer{Memory: m, Size: need}
	}
	l, err := x.Bind(nil, args)
	return l, mem, err
}

// call is a call of a test.
type call struct {
	cases.Call
	inPlace bool
}

// check makes a call, eagerly and from a graph, and compares its destination.
func (r *rank) check(c call) error {
	launch, mem, err := r.bind(c)
	if err != nil {
		return err
	}
	src := mem[1]
	if c.inPlace {
		src = mem[0]
	}
	data, err := r.dev.Bytes(src)
	if err != nil {
		return err
	}
	got, err := r.dev.Bytes(mem[0])
	if err != nil {
		return err
	}
	fill := func() { // garbage in the destination, then the source, which may be the same memory
		for i := range got {
			got[i] = 0x55
		}
		c.Fill(data, r.group.Rank())
	}
	compare := func(how string) error {
		if err := c.Check(got, r.group.Rank()); err != nil {
			return fmt.Errorf("%s, in place %v: %w", how, c.inPlace, err)
		}
		return nil
	}
	fill()
	if err := r.stream.Launch(launch); err != nil {
		return err
	}
	if err := compare("eager"); err != nil {
		return err
	}
	if err := r.stream.BeginCapture(device.CaptureThreadLocal); err != nil {
		return err
	}
	err = r.stream.Launch(launch)
	g, endErr := r.stream.EndCapture()
	if err := errors.Join(err, endErr); err != nil {
		return err
	}
	for range 2 {
		fill()
		if err := r.stream.LaunchGraph(g); err != nil {
			return err
		}
		if err := compare("replayed"); err != nil {
			return err
		}
	}
	return g.Close()
}

// TestRoutines compares the results of all routines with the expected ones, for small integers, which every
// type holds exactly, eagerly and in graphs. The largest size is above a chunk for every type.
func TestRoutines(t *testing.T) {
	for _, size := range []int{1, 2, 3, 4} {
		must(t, eachRank(t, size, collective.Options{}, func(r *rank) error {
			for _, k := range collective.Kinds {
				for _, dt := range []dtype.DType{dtype.F32, dtype.F16, dtype.BF16, dtype.I8} {
					if k.Sums() && dt == dtype.I8 {
						continue
					}
					for _, n := range []int64{0, 1, 7, 515, 300_000} {
						for _, inPlace := range []bool{false, true} {
							if inPlace && k != collective.AllReduce {
								continue
							}
							if err := r.check(call{cases.Call{Kind: k, DType: dt, N: n, Size: size, Root: size - 1}, inPlace}); err != nil {
								return err
							}
						}
					}
				}
			}
			return nil
		}))
	}
}

// TestDelays holds that results do not depend on the order in which ranks come.
func TestDelays(t *testing.T) {
	must(t, eachRank(t, 3, collective.Options{}, func(r *rank) error {
		random := rand.New(rand.NewPCG(1, uint64(r.group.Rank())))
		for i := range 50 {
			time.Sleep(time.Duration(random.IntN(300)) * time.Microsecond)
			if err := r.check(call{Call: cases.Call{Kind: collective.Kinds[i%4], DType: dtype.F32, N: int64(i), Size: 3}}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// TestSumsHaveOneOrder: numbers whose sum depends on the order have the bits of the order of ranks.
func TestSumsHaveOneOrder(t *testing.T) {
	values := []float32{1 << 24, 1, 1, -(1 << 24)} // in rank order: ((2²⁴+1)+1)-2²⁴ = 0, as 2²⁴+1 rounds to 2²⁴
	must(t, eachRank(t, 4, collective.Options{}, func(r *rank) error {
		launch, mem, err := r.bind(call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.F32, N: 1, Size: 4}})
		if err != nil {
			return err
		}
		src, err := r.dev.Bytes(mem[1])
		if err != nil {
			return err
		}
		cases.Encode(dtype.F32, src, values[r.group.Rank()])
		if err := r.stream.Launch(launch); err != nil {
			return err
		}
		dst, err := r.dev.Bytes(mem[0])
		if err != nil {
			return err
		}
		if got := cases.Decode(dtype.F32, dst); got != 0 {
			return fmt.Errorf("the sum is %v, want 0", got)
		}
		return nil
	}))
}

// TestFailures pins the errors of both ranks if rank 0 reduces and rank 1 does something else.
func TestFailures(t *testing.T) {
	reduce := call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.F32, N: 4, Size: 2}}
	for _, c := range []struct {
		name string
		of1  func(r *rank) error // rank 1; rank 0 reduces
		want string
	}{
		{"missing", func(r *rank) error { time.Sleep(300 * time.Millisecond); return nil }, "rank 1 is lost in all_reduce of 16 bytes of f32 after a wait of 100ms: it did not come"},
		{"failed", func(r *rank) error { r.group.Fail(errors.New("out of memory")); return nil }, "rank 1 is lost: out of memory"},
		{"left", func(r *rank) error { return r.group.Close() }, "rank 1 is lost in all_reduce of 16 bytes of f32: it left the group"},
		{"another call", func(r *rank) error {
			c := reduce
			c.N = 8
			if err := r.check(c); err == nil {
				return errors.New("calls of two sizes met")
			}
			return nil
		}, "rank 0 calls all_reduce of 16 bytes of f32 while rank 1 calls all_reduce of 32 bytes of f32"},
	} {
		errs := eachRank(t, 2, collective.Options{Limit: 100 * time.Millisecond}, func(r *rank) error {
			if r.group.Rank() == 1 {
				return c.of1(r)
			}
			return r.check(reduce)
		})
		for rank, err := range errs {
			closed := rank == 1 && errors.Is(err, collective.ErrClosed)
			if !closed && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"tp"`)) {
				t.Errorf("%s: rank %d: %v, want %q", c.name, rank, err, c.want)
			}
		}
	}
}

// TestOtherGroups: a program for another group, or another number of ranks, is refused before it runs, and so is
// a program for a device without the routines.
func TestOtherGroups(t *testing.T) {
	must(t, eachRank(t, 2, collective.Options{}, func(r *rank) error {
		if _, _, err := r.bind(call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.F32, N: 4, Size: 4}}); err == nil || !strings.Contains(err.Error(), "compiled for 4 ranks, and group \"tp\" has 2") {
			return fmt.Errorf("another size: %v", err)
		}
		return nil
	}))
	d := host.Open(host.Options{Workers: 1})
	defer d.Close()
	r := &rank{dev: d}
	if _, _, err := r.bind(call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.F32, N: 4, Size: 4}}); err == nil || !strings.Contains(err.Error(), "AddLibrary") {
		t.Errorf("a device without the routines: %v", err)
	}
	if err := collectivehost.Add(d); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.bind(call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.F32, N: 4, Size: 4}}); err == nil || !strings.Contains(err.Error(), `has no group "tp"`) {
		t.Errorf("a device without the group: %v", err)
	}
}
