package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"pwc/cli"
)

// serveArgs are the arguments to serve the checkpoint of testdata, as in docs/serving.md.
var serveArgs = []string{"serve", "../testdata/hf/llama", "--tokenizer", "../testdata/tokenizers/bytes", "--template", "../testdata/chat/plain.jinja", "--listen", "127.0.0.1:0", "--max-sequences", "4", "--blocks", "64"}

// A server answers at the address that it prints, requires the key, ends when its context ends, and has then sent the
// spans of the answered request.
func TestServe(t *testing.T) {
	t.Setenv("PWC_CACHE", "off")
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sent := make(chan []byte, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("spans at %s, %v: %v", r.URL.Path, r.Header, err)
		}
		sent <- body
	}))
	defer collector.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	var stderr bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Run(ctx, append(serveArgs, "--key-file", key, "--otlp-traces-endpoint", collector.URL), strings.NewReader(""), in, &stderr)
		in.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	url, found := strings.CutPrefix(strings.TrimSpace(line), "serving at ")
	if err != nil || !found {
		t.Fatalf("%q, %v\n%s", line, err, &stderr)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(key string) (int, string) {
		q, err := http.NewRequest("POST", url+"/v1/chat/completions", strings.NewReader(`{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0}`))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer "+key)
		r, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(b)
	}
	if status, answer := ask("secret"); status != http.StatusOK || !strings.Contains(answer, `"completion_tokens":3`) || !strings.Contains(answer, `"model":"llama"`) {
		t.Errorf("%d: %s", status, answer)
	}
	if status, answer := ask("guess"); status != http.StatusUnauthorized {
		t.Errorf("with a wrong key: %d: %s", status, answer)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("the server ended with %d\n%s", code, &stderr)
	}
	close(sent) // the server has sent all
	var spans []string
	for body := range sent {
		var q collectortrace.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &q); err != nil {
			t.Fatal(err)
		}
		for _, resource := range q.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				for _, span := range scope.Spans {
					spans = append(spans, span.Name)
				}
			}
		}
	}
	if slices.Sort(spans); !slices.Equal(spans, []string{"choice", "llm_request"}) {
		t.Errorf("spans %q were sent", spans)
	}
}

// Invalid flags and files of serve are errors that name them.
func TestServeRefusals(t *testing.T) {
	t.Setenv("PWC_CACHE", "off")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte(" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		more []string
		code int
		want string
	}{
		{[]string{"--listen", "here"}, 2, "--listen here: want HOST:PORT"},
		{[]string{"--tls-cert", empty}, 2, "--tls-cert and --tls-key belong together"},
		{[]string{"--tls-cert", empty, "--tls-key", empty}, 1, "--tls-cert, --tls-key"},
		{[]string{"--key-file", empty}, 1, "has no key"},
		{[]string{"--key-file", "none"}, 1, "--key-file"},
		{[]string{"--template", "none.jinja"}, 1, "none.jinja"},
		{[]string{"--otlp-traces-endpoint", "collector:4318"}, 2, "--otlp-traces-endpoint collector:4318: want a URL"},
		{[]string{"--max-requests", "0"}, 2, "--max-requests"},
		{[]string{"--timeout", "0s", "--key-file", "none"}, 2, "--timeout 0s: want a duration above 0"},
		{[]string{"--timeout", "-1s", "--key-file", "none"}, 2, "--timeout -1s: want a duration above 0"},
		{[]string{"--drain", "-1s", "--key-file", "none"}, 2, "--drain -1s: want a duration of 0 or more"},
		{[]string{"--max-body", "0", "--key-file", "none"}, 2, "--max-body 0: want at least 1 byte"},
		{[]string{"--memory", "0.5", "--key-file", "none"}, 2, "--memory 0.5: want at least 1 byte"},
	} {
		var stdout, stderr bytes.Buffer
		if code := cli.Run(t.Context(), append(serveArgs[:len(serveArgs):len(serveArgs)], c.more...), strings.NewReader(""), &stdout, &stderr); code != c.code || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%q: %d, %s, want %d and %q", c.more, code, &stderr, c.code, c.want)
		}
	}
}
