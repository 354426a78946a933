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

// hold runs a file of testdata, which has its expectations.
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

// TestScenarios runs every file of testdata on the host.
func TestScenarios(t *testing.T) {
	for _, file := range files(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { hold(t, file, onHost) })
	}
}
