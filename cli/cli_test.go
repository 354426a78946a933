package cli_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"pwc/attention"
	"pwc/cli"
	"pwc/internal/elements"
	"pwc/ir/interp"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/nvrtc"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

var update = flag.Bool("update", false, "rewrite the expectations of the scripts")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"pwc":         func() { cli.Main() },
		"pwc-runner":  func() { cli.Main(doubler(2)) },
		"pwc-wrong":   func() { cli.Main(doubler(3)) },
		"safetensors": func() { makeTensors() },
	})
}

// TestScripts runs the scripts in testdata/script: valid and invalid calls of commands.
func TestScripts(t *testing.T) {
	data, err := filepath.Abs("../testdata")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: *update,
		Cmds:          map[string]func(*testscript.TestScript, bool, []string){"exec-code": execCode, "damage": damage},
		Condition:     condition,
		Setup: func(e *testscript.Env) error {
			e.Setenv("TESTDATA", data)
			e.Setenv("PWC_CACHE", "off") // a script that needs the cache sets its directory
			return nil
		},
	})
}

// condition reports whether the machine has "nvrtc" or "gpu". With PWC_REQUIRE_NVRTC=1 nvrtc is
// always true, so that scripts fail without it.
func condition(name string) (bool, error) {
	switch name {
	case "nvrtc":
		_, err := nvrtc.Open(nvrtc.Options{})
		return err == nil || os.Getenv("PWC_REQUIRE_NVRTC") == "1", nil
	case "gpu":
		dev, err := cuda.Open(cuda.Options{})
		if err != nil {
			return false, nil
		}
		return true, dev.Close()
	}
	return false, fmt.Errorf("unknown condition %q", name)
}

// doubler is an op of a runner, "my::double"(x, mut y). Its reference multiplies by 2, its
// implementation by factor, so a factor of 3 is a wrong implementation.
func doubler(factor float32) cli.Op {
	return cli.Op{
		Name: "my::double",
		Open: func(s *cli.Site) (device.Op, error) {
			d, ok := s.Device.(*host.Device)
			if !ok {
				return nil, fmt.Errorf("my::double runs on the host")
			}
			return &double{d, factor}, nil
		},
		Reference: func(func() *attention.Batch) interp.Extern {
			return func(c *interp.Call) error {
				for i := range c.Args[0].Len() {
					c.Args[1].Set(i, 2*c.Args[0].At(i))
				}
				return nil
			}
		},
	}
}

type double struct {
	dev    *host.Device
	factor float32
}

func (d *double) Signature() device.Signature {
	return device.Signature{Name: "my::double", Mut: []bool{false, true}}
}

func (d *double) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

func (d *double) Launch(c *device.OpCall) error {
	var t [2]elements.Slice
	for i := range t {
		b, err := d.dev.Bytes(c.Args[i].Buffer)
		if err != nil {
			return err
		}
		if t[i], err = elements.View(&c.Args[i], b); err != nil {
			return err
		}
	}
	row := make([]float32, c.Rows)
	t[0].Load(row, 0)
	for i := range row {
		row[i] *= d.factor
	}
	t[1].Zero(int(c.Rows), int(c.Size))
	t[1].Store(0, row)
	return nil
}

// execCode runs a program that must exit with a code: "exec-code 2 pwc …".
func execCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exec-code CODE PROGRAM ARG…")
	}
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
	case err != nil:
		ts.Fatalf("%v", err)
	default:
		ts.Fatalf("exit code 0, want %s", args[0])
	}
	if got := strconv.Itoa(exit.ExitCode()); got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

// damage flips a bit in the middle of one blob of a cache.
func damage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: damage DIR")
	}
	blobs, err := filepath.Glob(filepath.Join(ts.MkAbs(args[0]), "v1", "blobs", "*", "*"))
	ts.Check(err)
	if len(blobs) == 0 {
		ts.Fatalf("no blob in %s", args[0])
	}
	data, err := os.ReadFile(blobs[0])
	ts.Check(err)
	data[len(data)/2] ^= 1
	ts.Check(os.Chmod(blobs[0], 0o644))
	ts.Check(os.WriteFile(blobs[0], data, 0o644))
}
