package cuda_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pwc/collective"
	collectivecuda "pwc/collective/cuda"
	"pwc/collective/internal/cases"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/device"
)

// TestDeviceAsync: the results of calls with attribute async are complete after program.CollectiveWait, or after a
// call without the attribute, eagerly and in a graph. In the graph a step between calls and a wait depends on no
// call, and a step after the wait for the first call does not depend on the second.
func TestDeviceAsync(t *testing.T) {
	devices := cudatest.Several(t, 2, fake.Options{})
	must(t, eachRank(t, devices, collectivecuda.Options{}, func(r *rank) error {
		var calls []*call
		for i := range 4 {
			c := &call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.F32, N: int64(300 + i)}}
			if err := r.prepare(c); err != nil {
				return err
			}
			if i < 3 {
				c.oc.Attrs = append(c.oc.Attrs, program.Attr{Name: collective.AttrAsync, Kind: program.AttrBool, Bool: true})
			}
			calls = append(calls, c)
		}
		m, err := r.Alloc(64)
		if err != nil {
			return err
		}
		filled := device.Buffer{Memory: m, Size: 64}
		wait := r.Libraries()[program.CollectiveWait]
		launch := func(c *call) error { return r.stream.LaunchOp(c.op, c.oc) }
		enqueue := func() error {
			waits := &device.OpCall{Args: calls[0].oc.Args}
			return errors.Join(launch(calls[0]), launch(calls[1]), r.stream.Fill(filled, 7), r.stream.LaunchOp(wait, waits),
				r.stream.Fill(filled, 8), launch(calls[2]), launch(calls[3]))
		}
		if err := enqueue(); err != nil {
			return err
		}
		for _, c := range calls {
			if err := errors.Join(r.compare("eager", c), r.fill(c)); err != nil {
				return err
			}
		}
		g, err := r.record(enqueue)
		if err != nil {
			return err
		}
		nodes := g.Describe()
		fill := slices.IndexFunc(nodes, func(n device.Node) bool { return n.Kind == device.NodeFill })
		if fill < 1 || fill+1 == len(nodes) {
			return fmt.Errorf("the first fill is node %d of %d, want one between the calls", fill, len(nodes))
		}
		if deps := nodes[fill].Deps; len(deps) != 0 {
			return fmt.Errorf("the fill before the wait depends on nodes %v, want no dependency", deps)
		}
		if deps, want := nodes[fill+1].Deps, []int32{0, int32(fill)}; !slices.Equal(deps, want) {
			return fmt.Errorf("the fill after the wait for the first call depends on nodes %v, want %v", deps, want)
		}
		for range 2 {
			if err := r.stream.LaunchGraph(g); err != nil {
				return err
			}
			for _, c := range calls {
				if err := errors.Join(r.compare("replayed", c), r.fill(c)); err != nil {
					return err
				}
			}
		}
		return g.Close()
	}))
}
