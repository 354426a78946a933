package cli

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lines are the writes to a log, which may come from several goroutines.
type lines chan string

func (w lines) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}

// The server ends although the collector does not answer, and the log says that the last spans may be lost.
func TestLastSpansAreLost(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for lastSpans")
	}
	t.Parallel()
	done := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-done }))
	defer silent.Close()
	defer close(done)
	log := make(lines, 10)
	tracer, end, err := (&app{err: log}).tracing(t.Context(), silent.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, span := tracer.Start(t.Context(), "span")
	span.End()
	end()
	found := false
	for len(log) > 0 {
		found = strings.Contains(<-log, "the last spans may be lost") || found
	}
	if !found {
		t.Error("the log has no warning")
	}
}

// TestModelName: the name is that of the directory, also if the path is "." or a file in it.
func TestModelName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tiny")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, path := range []string{".", "config.json", dir, filepath.Join(dir, "config.json"), filepath.Join("..", "tiny.ir")} {
		if got := modelName(path); got != "tiny" {
			t.Errorf("%s: %q, want tiny", path, got)
		}
	}
}
