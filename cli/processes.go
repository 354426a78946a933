package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pwc/collective"
	"pwc/ir"
	"pwc/runner"
	"pwc/safetensors"
)

// processFlags say which rank of a divided model a process runs.
type processFlags struct {
	rank       int
	device     int
	rendezvous string // "": one process runs all ranks
	token      string
}

func (f *processFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.Var(&wholeNumber[int]{&f.rank, 0, collective.MaxSize - 1}, "rank", "run rank `R` of the --tp or --dp devices alone; each other rank is a process with the same command, here or on another host (default: one process runs all)")
	fl.StringVar(&f.rendezvous, "rendezvous", "", "`ADDRESS` where the processes of --rank meet: host:port of rank 0, which takes the port behind it, too, or file:PATH in a directory that all of them see")
	fl.StringVar(&f.token, "rendezvous-token", "", "`SECRET` that the processes of --rank show each other")
	fl.Var(&wholeNumber[int]{&f.device, 0, maxNumber}, "local-rank", "use GPU `N` of this host (default: that of the number of --rank)")
	fromEnv(cmd, "rendezvous-token", "PWC_RENDEZVOUS_TOKEN")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if given := fl.Changed("rank"); given != (f.rendezvous != "") {
			return usagef("--rank R and --rendezvous ADDRESS belong together")
		}
		if fl.Changed("local-rank") && f.rendezvous == "" {
			return usagef("--local-rank is for processes of --rank")
		}
		if !fl.Changed("local-rank") {
			f.device = f.rank
		}
		_, err := f.behind()
		return err
	}
}

// apart reports whether the process runs one rank of several.
func (f *processFlags) apart() bool { return f.rendezvous != "" }

// follows reports whether another process decides what runs.
func (f *processFlags) follows() bool { return f.rank > 0 }

// controlLimit is how long a process waits for news of rank 0, which compiles and captures in
// between.
const controlLimit = 10 * time.Minute

// joinProcess joins the process's device, and the runner's own group, to the other processes.
func (w *world) joinProcess(ctx context.Context, m *ir.Module, t *target, f *processFlags) error {
	n := m.World()
	switch {
	case n == 1:
		return usagef("--rank %d: the model is for one device; --tp N divides it, and --dp N trains it on several", f.rank)
	case f.rank >= n:
		return usagef("--rank %d: the model is for %d devices, whose ranks count from 0", f.rank, n)
	}
	own := make([]*collective.Group, len(m.Groups))
	w.groups = [][]*collective.Group{own[:0]}
	var err error
	if w.process, err = collective.Join(ctx, "pwc", f.rank, n, f.rendezvous, collective.Options{Token: f.token, Limit: controlLimit}); err != nil {
		return explainJoin(err)
	}
	for i, g := range m.Groups {
		address, err := f.addressOf(m, i)
		if err != nil {
			return err
		}
		joined, err := collective.Join(ctx, g.Name, m.GroupRank(g, f.rank), int(g.Size), address, collective.Options{Token: f.token})
		if err != nil {
			return err
		}
		w.groups[0] = append(w.groups[0], joined)
	}
	return t.join(ctx, largestCollective(m), w.groups[0]...)
}

// explainJoin adds where the token comes from.
func explainJoin(err error) error {
	if strings.Contains(err.Error(), "the token differs") {
		return fmt.Errorf("%w\nOn the command line: --rendezvous-token SECRET or PWC_RENDEZVOUS_TOKEN, the same on all ranks", err)
	}
	return err
}

// addressOf returns where the members of the module's group i meet that the rank is in: behind
// the address of all.
func (f *processFlags) addressOf(m *ir.Module, i int) (string, error) {
	if strings.HasPrefix(f.rendezvous, collective.FileScheme) {
		address := f.rendezvous + "." + m.Groups[i].Name
		for _, other := range m.Groups { // one group for each choice of ranks in the others
			if other != m.Groups[i] {
				address += fmt.Sprintf(".%d", m.GroupRank(other, f.rank))
			}
		}
		return address, nil
	}
	if len(m.Groups) > 1 {
		return "", usagef("--rendezvous %s: the model has %d groups, whose first ranks are on several hosts: give file:PATH", f.rendezvous, len(m.Groups))
	}
	return f.behind()
}

// behind returns the address behind that of --rendezvous: the next port, or the same file.
func (f *processFlags) behind() (string, error) {
	if !f.apart() || strings.HasPrefix(f.rendezvous, collective.FileScheme) {
		return f.rendezvous, nil
	}
	host, text, err := net.SplitHostPort(f.rendezvous)
	port, wrong := strconv.ParseUint(text, 10, 16)
	if err = errors.Join(err, wrong); err != nil || port == 0 || port == 1<<16-1 {
		return "", usagef("--rendezvous %s: want host:port, whose port and the next one are free at rank 0, or file:PATH", f.rendezvous)
	}
	return net.JoinHostPort(host, strconv.FormatUint(port+1, 10)), nil
}

// rank is that of the first device of this process.
func (w *world) rank() int {
	if w.process != nil {
		return w.process.Rank()
	}
	return 0
}

// ranks are those of the devices of this process.
func (w *world) ranks() []int {
	out := []int{w.rank()}
	for i := range w.peers {
		out = append(out, i+1)
	}
	return out
}

// numbers gives a number of each process to all, in rank order.
func (w *world) numbers(ctx context.Context, what string, mine int64) ([]int64, error) {
	if w.process == nil {
		return []int64{mine}, nil
	}
	out := make([]int64, w.process.Size())
	err := w.process.Exchange(ctx, what, binary.LittleEndian.AppendUint64(nil, uint64(mine)), func(all [][]byte) error {
		for rank, text := range all {
			if len(text) != 8 {
				return fmt.Errorf("rank %d gave %d bytes: all ranks have the same version of pwc", rank, len(text))
			}
			out[rank] = int64(binary.LittleEndian.Uint64(text))
		}
		return nil
	})
	return out, err
}

// agreeRuns returns what has all processes run something as often as rank 0.
func (w *world) agreeRuns(ctx context.Context) func(runs int) (int, error) {
	return func(runs int) (int, error) {
		all, err := w.numbers(ctx, "number of runs", int64(runs))
		return int(all[0]), err
	}
}

// meet returns when all processes have come so far. Rank 0 may compile and load meanwhile, which takes longer than a
// collective waits.
func (w *world) meet(ctx context.Context, what string) error {
	_, err := w.numbers(ctx, what, 0)
	return err
}

// settings describe what processes with the same command compile and capture alike.
func (f *buildFlags) settings() string {
	return fmt.Sprintf("--target %s, --capture-sizes %s, --compile-sizes %v, --ranges %v, --max %v, --symbol %v, --split-on %v, --disable-pass %v, --matmul-precision %v",
		f.target, f.captureSizes, f.compileSizes, f.ranges, f.max, f.symbols, f.splitOn, f.disable, f.matmul.Precision)
}

// agree returns an error if processes have other settings, which they describe by text, than rank 0 has.
func (w *world) agree(ctx context.Context, settings string) error {
	if w.process == nil {
		return nil
	}
	return w.process.Exchange(ctx, "settings", []byte(settings), func(all [][]byte) error {
		for rank, text := range all {
			if !bytes.Equal(text, all[0]) {
				mine, other := differing(string(text), string(all[0]))
				return fmt.Errorf("rank %d has %q, rank 0 has %q: give all ranks the same command", rank, mine, other)
			}
		}
		return nil
	})
}

// differing returns the parts of two settings, between commas, that differ.
func differing(a, b string) (ofA, ofB string) {
	x, y := strings.Split(a, ", "), strings.Split(b, ", ")
	if len(x) != len(y) {
		return a, b
	}
	var p, q []string
	for i := range x {
		if x[i] != y[i] {
			p, q = append(p, x[i]), append(q, y[i])
		}
	}
	return strings.Join(p, ", "), strings.Join(q, ", ")
}

// leave leaves the other processes when all are done: they may still write to memory of this one.
func (w *world) leave() error {
	p := w.process
	if p == nil {
		return nil
	}
	w.process = nil
	var err error
	if p.Err() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err = p.Barrier(ctx)
		cancel()
	}
	return errors.Join(err, p.Close())
}

// runFollower loads a rank that is not the first, and runs what rank 0 does until that ends.
func (a *app) runFollower(ctx context.Context, r *runner.Runner, weights safetensors.Source) error {
	if err := r.Load(ctx, weights); err != nil {
		return err
	}
	return r.Run(ctx)
}
