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

// TestDeviceAsync: calls with attribute async have their sums once they are waited for, by the routine or by a call
// without the attribute, eagerly and in a graph. In the graph the step between does not depend on them, and the step behind a wait does not
// depend on later calls.
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
		between := device.Buffer{Memory: m, Size: 64}
		wait := r.Libraries()[program.CollectiveWait]
		launch := func(c *call) error { return r.stream.LaunchOp(c.op, c.oc) }
		enqueue := func() error {
			waits := &device.OpCall{Args: calls[0].oc.Args}
			return errors.Join(launch(calls[0]), launch(calls[1]), r.stream.Fill(between, 7), r.stream.LaunchOp(wait, waits),
				r.stream.Fill(between, 8), launch(calls[2]), launch(calls[3]))
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
		if fill < 1 || len(nodes[fill].Deps) != 0 {
			return fmt.Errorf("the fill is node %d of %d, behind nodes %v", fill, len(nodes), nodes[fill].Deps)
		}
		// The fill behind the wait for the first call does not wait for the second.
		if want := []int32{0, int32(fill)}; !slices.Equal(nodes[fill+1].Deps, want) {
			return fmt.Errorf("the fill behind the wait is behind nodes %v, want %v of %d", nodes[fill+1].Deps, want, len(nodes))
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
