package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pwc/cli"
	"pwc/runtime/device"
)

// The command that verify prints shows the departure, for an error that run allows by default. A shell
// reads its arguments as they were, and it has the options of the search.
func TestVerifyCaseCommand(t *testing.T) {
	t.Setenv("PWC_CACHE", "off")
	model := doubleModel(t, "sym B in [1, 4] load\n  state @s : f32[B]")
	const wrong, right = 2.0001, 2 // relative errors of 5e-5 and 0; run allows 1e-4
	for _, c := range []struct{ dir, printed string }{
		{"plain", "plain/case.ir"},
		{"-flag", "./-flag/case.ir"},
		{"a b(1);$x`y\\'\"*&|<>#~?", `'a b(1);$x` + "`" + `y\'\''"*&|<>#~?/case.ir'`},
		{"tab\there 'é'\nline\\", `$'tab\011here \'é\'\012line\\/case.ir'`},
	} {
		t.Chdir(t.TempDir())
		var stdout, stderr bytes.Buffer
		code := cli.Run(t.Context(), []string{"verify", model, "--rows", "3", "--bisect", "--dir=" + c.dir, "--json", "--capture-sizes", "", "--compile-sizes", "4", "--ranges", "6,7",
			"--max", "N=7", "--symbol", "B=2", "--split-on", "my::double", "--disable-pass", "fuse", "--matmul-precision", "f32", "--mode", "full"}, strings.NewReader(""), &stdout, &stderr, doubler(wrong))
		var report struct{ Cause struct{ Command string } }
		if err := json.Unmarshal(stdout.Bytes(), &report); code != 1 || err != nil || report.Cause.Command == "" {
			t.Fatalf("exit code %d, %v\n%s%s", code, err, &stdout, &stderr)
		}
		command := report.Cause.Command
		if !strings.HasPrefix(command, "pwc run "+c.printed+" ") {
			t.Errorf("the command is\n%s\nwant %s in it", command, c.printed)
		}
		for _, want := range []string{" --tol ", " --target host ", " --mode full ", " --capture-sizes ''", " --compile-sizes 4 ", " --ranges 6,7 ", " --max N=7 ", " --split-on my::double ", " --disable-pass fuse ", " --matmul-precision f32 "} {
			if !strings.Contains(command+" ", want) {
				t.Errorf("no%sin\n%s", want, command)
			}
		}
		if strings.Contains(command, "--symbol") {
			t.Errorf("the case does not have the symbol B:\n%s", command)
		}
		out, err := exec.Command("bash", "-c", `printf '%s\0' `+command).Output()
		if err != nil {
			t.Fatal(err)
		}
		args := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		if i := slices.Index(args, "--tol"); i < 0 {
			t.Fatalf("no --tol in %q", args)
		}
		for factor, want := range map[float32]int{wrong: 1, right: 0} {
			var stdout, stderr bytes.Buffer
			if code := cli.Run(t.Context(), args[1:], strings.NewReader(""), &stdout, &stderr, doubler(factor)); code != want || (code == 1) != strings.Contains(stdout.String(), "DIFFERS") {
				t.Errorf("%s\nexits with %d, want %d\n%s%s", command, code, want, &stdout, &stderr)
			}
		}
	}
}

// A frozen run whose result differs from the interpreter's names the first value that differs if it is a value between
// pieces, whose code is in the cache. If it is inside of a piece, the run says that the search would compile.
func TestFrozenSearch(t *testing.T) {
	t.Setenv("PWC_CACHE", "")
	t.Setenv("PWC_CACHE_DIR", t.TempDir())
	model := filepath.Join(t.TempDir(), "op.ir")
	text := `pwc 1
module "m" {
  sym N in [1, 8] batch
  op "my::double"(tensor, mut tensor) split
  func @f(%x: f32[N]) -> (f32[N]) {
    %o = empty_like(%x) : f32[N]
    call "my::double"(%x, %o)
    %a = add(%x, %x) : f32[N]
    %b = sub(%o, %a) : f32[N]
    return %b
  }
}
`
	if err := os.WriteFile(model, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"compile", model}, 0, ""},
		// The relative error is 5e-5 after the op and infinite after the difference, whose value should be 0.
		{[]string{"run", model, "--rows", "3", "--check", "--frozen", "--tol", "1e-6"}, 1, `the first value that differs is .*my::double`},
		{[]string{"run", model, "--rows", "3", "--check", "--frozen", "--tol", "1e-3"}, 1, "the first value that differs is not known"},
	} {
		var stdout, stderr bytes.Buffer
		code := cli.Run(t.Context(), c.args, strings.NewReader(""), &stdout, &stderr, doubler(2.0001))
		if all := stdout.String() + stderr.String(); code != c.code || !regexp.MustCompile(c.want).MatchString(all) || (code == 1) != strings.Contains(all, "DIFFERS") {
			t.Errorf("%v: exit code %d, want %d and %s\n%s", c.args, code, c.code, c.want, all)
		}
	}
}

// closedOp counts its closings.
type closedOp struct {
	device.Op
	closed *int
}

// Close implements io.Closer.
func (o closedOp) Close() error {
	*o.closed++
	return nil
}

// doubleModel writes a module that squares the result of my::double, with further declarations, and returns its file.
func doubleModel(t *testing.T, declarations string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "op.ir")
	text := `pwc 1
module "m" {
  sym N in [1, 8] batch
  ` + declarations + `
  op "my::double"(tensor, mut tensor) split
  func @f(%x: f32[N]) -> (f32[N]) {
    %o = empty_like(%x) : f32[N]
    call "my::double"(%x, %o)
    %c = mul(%o, %o) : f32[N]
    return %c
  }
}
`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// verify and run --check close all ops that they opened.
func TestVerifyClosesOps(t *testing.T) {
	t.Setenv("PWC_CACHE", "off")
	model := doubleModel(t, "")
	for _, args := range [][]string{{"verify", "--bisect", "--dir", t.TempDir()}, {"run", "--check"}} {
		opened, closed := 0, 0
		op := doubler(2.1)
		open := op.Open
		op.Open = func(s *cli.Site) (device.Op, error) {
			opened++
			o, err := open(s)
			return closedOp{o, &closed}, err
		}
		var out bytes.Buffer
		code := cli.Run(t.Context(), append(args, model, "--rows", "3"), strings.NewReader(""), &out, &out, op)
		if opened < 1 || closed != opened || code != 1 {
			t.Errorf("%v: exit code %d, %d ops opened, %d closed\n%s", args, code, opened, closed, &out)
		}
	}
}
