package scenario_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	comphost "pwc/compile/host"
	"pwc/graphs"
	"pwc/graphs/scenario"
	"pwc/graphs/whole"
	"pwc/pieces"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// onHost runs scenarios on the host device.
func onHost(log *bytes.Buffer) scenario.Config {
	return scenario.Config{
		Open: func(string) (device.Device, error) { return host.Open(host.Options{Workers: 1}), nil },
		Compile: func(ctx context.Context, s *graphs.Session, f *scenario.File, name string) (scenario.Compiled, error) {
			return whole.Compile(ctx, s, f.Module, name, whole.Options{Compiler: pieces.Pipeline{Backend: comphost.New()}})
		},
		Log: log,
	}
}

// files returns the paths of all scenarios.
func files(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	return files
}

// hold runs a scenario and reports each expectation of the file that is not met.
func hold(t *testing.T, file string, config func(log *bytes.Buffer) scenario.Config) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := scenario.Parse(file, text)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	res, err := f.Run(context.Background(), config(&log))
	if err != nil {
		t.Errorf("%v", err)
	}
	if res != nil {
		for _, e := range res.Expects {
			if !e.OK {
				t.Errorf("%s:%d: got %s, want %s", file, e.Line, fmt.Sprint(e.Got), fmt.Sprint(e.Want))
			}
		}
	}
	if t.Failed() {
		t.Log(log.String())
	}
}

// TestOptionOutOfRange: an integer option above 32 bits is an error at its position.
func TestOptionOutOfRange(t *testing.T) {
	_, err := scenario.Parse("x.txtar", []byte("-- options --\nor-error rerecord-limit=4294967296\n-- steps --\nmark\n"))
	if want := "x.txtar:2:25: rerecord-limit is an integer of 32 bits, not 4294967296"; err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

// TestRefusedSteps: a comma that no name follows, and a count out of range, are errors at their positions.
func TestRefusedSteps(t *testing.T) {
	for line, want := range map[string]string{
		"drop a b, c = F(a)": "x.txtar:2:9: want a name after the comma; steps of one line are separated by ;",
		"drop a, mark":       "x.txtar:2:7: want a name after the comma; steps of one line are separated by ;",
		"drop a,":            "x.txtar:2:7: want a name after the comma; steps of one line are separated by ;",
		"repeat -1 { mark }": "x.txtar:2:8: repeat -1: want 0 to 1048576",
	} {
		_, err := scenario.Parse("x.txtar", []byte("-- steps --\n"+line+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %s", line, err, want)
		}
	}
}

// TestInputNameGivenAway: free of a name that was an input's releases the tensor that has the name now.
func TestInputNameGivenAway(t *testing.T) {
	file := filepath.Join(t.TempDir(), "given_away.txtar")
	text := `-- functions --
F(x) { y = clone x; x = clone y; free x; x = empty f32[4]; free x; return y }
-- steps --
a = tensor f32[4] fill=2
repeat 3 {
  mark
  b = F(a)
  check b = 2
  drop b
}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	hold(t, file, onHost)
}

// TestCallOfScript: a statement that calls one of the section functions is an error at its position.
func TestCallOfScript(t *testing.T) {
	f, err := scenario.Parse("x.txtar", []byte("-- functions --\nF(x) { return x }\nG(x) { y = @F(x); return y }\n-- steps --\na = tensor f32[4]\nG(a)\n"))
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	_, err = f.Run(context.Background(), onHost(&log))
	if want := "x.txtar:3:8: @F is one of the section functions"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

// TestScenarios runs every file of testdata on the host.
func TestScenarios(t *testing.T) {
	for _, file := range files(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { hold(t, file, onHost) })
	}
}
