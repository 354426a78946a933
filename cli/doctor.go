package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"pwc/cache"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/piecewise"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "check what this machine can run, and print how to install missing libraries",
		Long: `Check the machine: the installed libraries for GPUs, with path and purpose; the links
between GPUs; and whether each device compiles, captures and replays the demonstration
module. For each missing library doctor prints what to do. The exit code is 1 if a check
fails; a missing library is not a failure.`,
		Example: `  pwc doctor
  pwc doctor --json`,
		Args: exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runDoctor(cmd.Context()) },
	}
}

type doctorReport struct {
	OK       bool            `json:"ok"`
	Checks   []doctorCheck   `json:"checks"`
	Topology *doctorTopology `json:"topology,omitempty"` // of several GPUs
}

type doctorCheck struct {
	Name   string `json:"name"`
	State  string `json:"state"` // ok, missing or failed
	Detail string `json:"detail"`
	Advice string `json:"advice,omitempty"`
}

func (a *app) runDoctor(ctx context.Context) error {
	r := doctorReport{OK: true}
	add := func(c doctorCheck) {
		r.Checks = append(r.Checks, c)
		r.OK = r.OK && c.State != "failed"
	}
	v := version()
	add(doctorCheck{Name: "pwc", State: "ok", Detail: strings.TrimSpace(v.Version+" "+v.Revision) + ", " + v.Go + ", " + v.Platform})
	processors := doctorCheck{Name: "processors", State: "ok", Detail: fmt.Sprintf("%d, GOMAXPROCS %d", runtime.NumCPU(), runtime.GOMAXPROCS(0))}
	if runtime.GOMAXPROCS(0) < runtime.NumCPU() {
		processors.Advice = "kernels use only GOMAXPROCS processors, by a limit of the container or by the environment variable GOMAXPROCS"
	}
	add(processors)
	add(temporaryFiles())
	add(checkCache())
	t, err := openHost(0, &buildFlags{target: host.Target}, true)
	if err != nil {
		return err
	}
	add(a.selfTest(ctx, host.Target, t))
	gpus, links := a.checkGPUs(ctx)
	for _, c := range gpus {
		add(c)
	}
	r.Topology = links
	if a.json {
		if err := a.printJSON(r); err != nil {
			return err
		}
	} else {
		list := table{head: []string{"", "check", "finding"}, width: terminalWidth(a.out)}
		for _, c := range r.Checks {
			text := c.Detail
			if c.Advice != "" {
				text += "; " + c.Advice
			}
			list.add(c.State, c.Name, text)
		}
		if err := list.write(a.out, ""); err != nil {
			return err
		}
		if links != nil {
			if err := links.write(a.out); err != nil {
				return err
			}
		}
	}
	if !r.OK {
		return errReported
	}
	return nil
}

func temporaryFiles() doctorCheck {
	c := doctorCheck{Name: "temporary files", State: "ok", Detail: os.TempDir()}
	if err := tryFile(""); err != nil {
		c.State, c.Detail, c.Advice = "failed", err.Error(), "set TMPDIR to a writable directory"
	}
	return c
}

// tryFile creates a file in a directory and removes it. "" is the directory of temporary files.
func tryFile(dir string) error {
	f, err := os.CreateTemp(dir, "pwc-doctor-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// checkCache reports the directory of the cache, and whether it is writable. It creates the directory. The check fails
// if the cache cannot be opened, because then no model can be compiled.
func checkCache() doctorCheck {
	c := doctorCheck{Name: "cache", State: "missing"}
	o, off, err := cache.FromEnv()
	if err == nil && !off {
		c.Detail = o.Dir
		if err = os.MkdirAll(o.Dir, 0o777); err == nil {
			err = tryFile(o.Dir)
		}
	}
	switch {
	case off:
		c.State, c.Detail = "ok", cache.EnvMode+" is off: compiled models are not kept"
	case err != nil && o.Dir == "" && !errors.Is(err, cache.ErrNoDir): // a wrong variable or trust file, as for openStore
		c.State, c.Detail, c.Advice = "failed", err.Error(), "commands that compile end with this error; "+cache.EnvMode+"=off turns the cache off"
	case err != nil:
		c.Detail, c.Advice = err.Error(), "newly compiled models are not kept; set "+cache.EnvDir+" to a writable directory"
	default:
		c.State = "ok"
	}
	return c
}

// selfTest runs the demonstration on a target, f(x) = 9x + 19: f(1) = 28 and
// f(2) = 37.
func (a *app) selfTest(ctx context.Context, name string, t *target) doctorCheck {
	c := doctorCheck{Name: name, State: "failed", Advice: "this may be a bug in pwc: please report it"}
	out, counts, err := a.demonstrate(ctx, t)
	switch {
	case err != nil:
		c.Detail = err.Error()
		if errors.As(err, new(*device.MemoryError)) {
			c.Advice = "the device has too little free memory: end other programs that use it, and run pwc doctor again"
		}
	case fmt.Sprint(out) != "[28 37]":
		c.Detail = fmt.Sprintf("the demonstration returns %v for [1 2], want [28 37]", out)
	default:
		c.State, c.Advice = "ok", ""
		c.Detail = fmt.Sprintf("compiled %d pieces, captured %d graphs, and replays f(x) = 9x + 19", counts.BackendCompilations, counts.GraphsCaptured)
	}
	return c
}

// demonstrate runs the demonstration on a target and closes the target.
func (a *app) demonstrate(ctx context.Context, t *target) (values []float64, counts piecewise.Stats, err error) {
	defer func() { err = errors.Join(err, t.close()) }()
	text, err := examples.ReadFile("examples/nineteen.ir")
	if err != nil {
		return nil, counts, err
	}
	m, err := ir.Parse("nineteen.ir", text)
	if err != nil {
		return nil, counts, err
	}
	x, err := interp.FromF32([]int64{2}, []float32{1, 2})
	if err != nil {
		return nil, counts, err
	}
	quiet := &app{in: a.in, out: a.out, err: io.Discard, ops: a.ops}
	flags := &buildFlags{captureSizes: "1,2", uncached: true}
	t.configure(flags)
	s := &session{app: quiet, target: t, world: &world{}, build: flags, mode: piecewise.Piecewise, work: &single{steps: newSteps(m, 2, flags), args: []value{hostValue{x}}}}
	var report runReport
	out, err := s.run(ctx, m, &report)
	if err != nil {
		return nil, counts, err
	}
	return out[0].tensor.Float64s(), report.Stats, nil
}
