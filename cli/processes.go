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

// processFlags are the flags of a process that runs one rank of a model.
type processFlags struct {
	rank       int
	device     int
	rendezvous string // "": one process runs all ranks
	token      string
	divides    string // the flags of the command that divide a model among devices
}

// add adds the flags. divides names the flags of the command that divide a model among devices.
func (f *processFlags) add(cmd *cobra.Command, divides string) {
	f.divides = divides
	fl := cmd.Flags()
	fl.Var(&wholeNumber[int]{&f.rank, 0, collective.MaxSize - 1}, "rank", "run only rank `R` of the "+divides+" devices; each other rank is a process with the same command, on this or another host (default: one process runs all ranks)")
	fl.StringVar(&f.rendezvous, "rendezvous", "", "`ADDRESS` where the processes of --rank meet: host:port of rank 0, which also uses the next port, or file:PATH in a directory that all processes share")
	fl.StringVar(&f.token, "rendezvous-token", "", "`SECRET` with which the processes of --rank authenticate each other")
	fl.Var(&wholeNumber[int]{&f.device, 0, maxNumber}, "local-rank", "use GPU `N` of this host (default: the value of --rank)")
	fromEnv(cmd, "rendezvous-token", "PWC_RENDEZVOUS_TOKEN")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if given := fl.Changed("rank"); given != (f.rendezvous != "") {
			return usagef("--rank R and --rendezvous ADDRESS belong together")
		}
		if err := refuse(cmd, noEffect{f.rendezvous == "", "local-rank rendezvous-token", " without --rank and --rendezvous: one process runs all ranks"}); err != nil {
			return err
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

// follows reports whether the process follows rank 0, which decides what runs.
func (f *processFlags) follows() bool { return f.rank > 0 }

// controlLimit is how long a process waits for a message of rank 0, which may compile and capture
// before it sends.
const controlLimit = 10 * time.Minute

// joinProcess joins the group of all processes, and the process's device to the module's groups.
func (w *world) joinProcess(ctx context.Context, m *ir.Module, t *target, f *processFlags) error {
	n := m.World()
	switch {
	case n == 1:
		return usagef("--rank %d: the model is for one device; %s", f.rank, f.several())
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

// several says how a model gets several devices.
func (f *processFlags) several() string {
	if f.divides == "--dp" {
		return "--dp N trains on N devices"
	}
	return "--tp N divides a checkpoint among N devices, and a module for several declares a group"
}

// explainJoin adds the flag of the token to an error about tokens.
func explainJoin(err error) error {
	if strings.Contains(err.Error(), "the token differs") {
		return fmt.Errorf("%w\nOn the command line: --rendezvous-token SECRET or PWC_RENDEZVOUS_TOKEN, the same on all ranks", err)
	}
	return err
}

// addressOf returns the address where the members of the rank's group i meet. It is derived from
// --rendezvous, where all ranks meet.
func (f *processFlags) addressOf(m *ir.Module, i int) (string, error) {
	if strings.HasPrefix(f.rendezvous, collective.FileScheme) {
		address := f.rendezvous + "." + m.Groups[i].Name
		for _, other := range m.Groups { // group i exists once for each combination of ranks in the other groups
			if other != m.Groups[i] {
				address += fmt.Sprintf(".%d", m.GroupRank(other, f.rank))
			}
		}
		return address, nil
	}
	if len(m.Groups) > 1 {
		return "", usagef("--rendezvous %s: the model has %d groups, whose first ranks may be on several hosts: give file:PATH", f.rendezvous, len(m.Groups))
	}
	return f.behind()
}

// behind returns the address of the module's only group if --rendezvous is host:port: the same host and the next port.
// It returns any other --rendezvous unchanged.
func (f *processFlags) behind() (string, error) {
	if !f.apart() || strings.HasPrefix(f.rendezvous, collective.FileScheme) {
		return f.rendezvous, nil
	}
	host, text, err := net.SplitHostPort(f.rendezvous)
	port, wrong := strconv.ParseUint(text, 10, 16)
	if err = errors.Join(err, wrong); err != nil || port == 0 || port == 1<<16-1 {
		return "", usagef("--rendezvous %s: want host:port, with this port and the next one free on the host of rank 0, or file:PATH", f.rendezvous)
	}
	return net.JoinHostPort(host, strconv.FormatUint(port+1, 10)), nil
}

// rank returns the rank of the first device of this process.
func (w *world) rank() int {
	if w.process != nil {
		return w.process.Rank()
	}
	return 0
}

// ranks returns the ranks of the devices of this process.
func (w *world) ranks() []int {
	out := []int{w.rank()}
	for i := range w.peers {
		out = append(out, i+1)
	}
	return out
}

// numbers sends mine to all processes, and returns the numbers of all of them in rank order.
func (w *world) numbers(ctx context.Context, what string, mine int64) ([]int64, error) {
	if w.process == nil {
		return []int64{mine}, nil
	}
	out := make([]int64, w.process.Size())
	err := w.process.Exchange(ctx, what, binary.LittleEndian.AppendUint64(nil, uint64(mine)), func(all [][]byte) error {
		for rank, text := range all {
			if len(text) != 8 {
				return fmt.Errorf("rank %d sent %d bytes, want 8: run the same version of pwc on all ranks", rank, len(text))
			}
			out[rank] = int64(binary.LittleEndian.Uint64(text))
		}
		return nil
	})
	return out, err
}

// agreeRuns returns repeats.agree: a function that returns rank 0's number of runs on all ranks.
func (w *world) agreeRuns(ctx context.Context) func(runs int) (int, error) {
	return func(runs int) (int, error) {
		all, err := w.numbers(ctx, "number of runs", int64(runs))
		return int(all[0]), err
	}
}

// meet waits for all processes. Compiling and loading may take longer than the timeout of a collective, so processes
// meet before the first collective.
func (w *world) meet(ctx context.Context, what string) error {
	_, err := w.numbers(ctx, what, 0)
	return err
}

// settings describes the flags that must be equal in all processes, because they determine the compiled programs and
// the captured graphs.
func (f *buildFlags) settings() string {
	return fmt.Sprintf("--target %s, --capture-sizes %s, --compile-sizes %v, --ranges %v, --max %v, --symbol %v, --split-on %v, --padded-slots %v, --disable-pass %v, --matmul-precision %v",
		f.target, f.captureSizes, f.compileSizes, f.ranges, f.max, f.symbols, f.splitOn, f.paddedSlots, f.disable, f.matmul.Precision)
}

// agree returns an error if the settings of a process differ from those of rank 0.
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

// differing returns the comma-separated parts in which two settings differ.
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

// leave waits until all processes are done, for at most 10 seconds, and leaves their group. Before that, other processes
// may still write to memory of this process. If the group has failed, leave does not wait.
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

// runFollower loads a rank other than 0 and follows the steps of rank 0 until rank 0 ends.
func (a *app) runFollower(ctx context.Context, r *runner.Runner, weights safetensors.Source) error {
	if err := r.Load(ctx, weights); err != nil {
		return err
	}
	return r.Run(ctx)
}
