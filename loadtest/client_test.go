package loadtest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// completions returns a server with the part of the API that the client uses.
func completions(t *testing.T, answer func(w http.ResponseWriter, fields map[string]any)) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object": "list", "data": [{"id": "tiny"}, {"id": "other"}]}`)
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		var fields map[string]any
		if err := json.NewDecoder(r.Body).Decode(&fields); err != nil {
			t.Error(err)
		}
		answer(w, fields)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func TestClient(t *testing.T) {
	s := completions(t, func(w http.ResponseWriter, fields map[string]any) {
		if fields["model"] != "tiny" || fields["stream"] != true || fields["max_tokens"] != 3.0 || fields["ignore_eos"] != true || len(fields["prompt"].([]any)) != 2 {
			t.Errorf("fields of the request: %v", fields)
		}
		for _, text := range []string{"a", "", "bc"} {
			fmt.Fprintf(w, ": a comment\r\ndata: {\"choices\": [{\"text\": %q}]}\n\n", text)
			w.(http.Flusher).Flush()
		}
		fmt.Fprint(w, "data: {\"choices\": [{\"text\": \"\", \"finish_reason\": \"length\"}]}\n\n") // an event with only a finish reason is not a token
		fmt.Fprint(w, "data: {\"choices\": [], \"usage\": {\"completion_tokens\": 3}}\n\ndata: [DONE]\n\n")
	})
	ctx := context.Background()
	for _, base := range []string{s.URL, s.URL + "/", s.URL + "/v1"} {
		c, err := NewClient(ctx, base, ClientOptions{Key: "secret", Extra: map[string]any{"ignore_eos": true}, HTTP: s.Client()})
		if err != nil {
			t.Fatal(err)
		}
		told := 0
		n, err := c.Complete(ctx, Request{Prompt: []int32{4, 5}, Output: 3}, func() { told++ })
		if err != nil || n != 3 || told != 3 {
			t.Errorf("%d tokens, %d calls of token, %v; want 3, 3 and no error", n, told, err)
		}
	}
}

// Invalid addresses are errors, and wrong answers of a server are errors that say what is wrong.
func TestClientErrors(t *testing.T) {
	ctx := context.Background()
	for _, address := range []string{"", "127.0.0.1:8000", "ftp://host", "http://"} {
		if _, err := NewClient(ctx, address, ClientOptions{Model: "m"}); err == nil {
			t.Errorf("address %q: no error", address)
		}
	}
	for want, answer := range map[string]string{
		"without [DONE]":         "data: {\"choices\": [{\"text\": \"a\"}]}\n\n",
		"an event of the stream": "data: {\n\n",
		"out of memory":          "data: {\"error\": {\"message\": \"out of memory\\u001b[2J\"}}\n\n",
		"token too long":         "data: " + strings.Repeat("x", maxEvent+1) + "\n",
	} {
		s := completions(t, func(w http.ResponseWriter, _ map[string]any) { fmt.Fprint(w, answer) })
		c, err := NewClient(ctx, s.URL, ClientOptions{Key: "secret", HTTP: s.Client()})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Complete(ctx, Request{Prompt: []int32{1}, Output: 1}, func() {})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%v, want %s", err, want)
		}
		wrong, err := NewClient(ctx, s.URL, ClientOptions{Model: "m", Key: "wrong", HTTP: s.Client()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wrong.Complete(ctx, Request{}, func() {}); err == nil || !strings.Contains(err.Error(), "401 Unauthorized: who are you?") {
			t.Error(err)
		}
	}
}

// closing counts calls of CloseIdleConnections.
type closing struct {
	http.RoundTripper
	calls int
}

func (c *closing) CloseIdleConnections() { c.calls++ }

// A client that gets no list of models leaves no connections.
func TestClientWithoutModels(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	transport := &closing{RoundTripper: s.Client().Transport}
	c, err := NewClient(context.Background(), s.URL, ClientOptions{HTTP: &http.Client{Transport: transport}})
	if err == nil || c != nil || transport.calls != 1 {
		t.Errorf("%v, %v; CloseIdleConnections was called %d times, want 1", c, err, transport.calls)
	}
}

// FuzzStream reads any bytes as the stream of a server.
func FuzzStream(f *testing.F) {
	f.Add("data: {\"choices\": [{\"text\": \"a\"}]}\n\ndata: [DONE]\n\n")
	f.Add("data: {\"error\": {}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		told := 0
		n, err := readStream(strings.NewReader(text), func() { told++ })
		if err == nil && n < told {
			t.Errorf("%d tokens, fewer than the %d calls of token", n, told)
		}
	})
}

// A second round of as many requests as a first uses its connections, also if they are more than net/http keeps by
// default: 2 of a host, and 100 in all.
func TestClientKeepsConnections(t *testing.T) {
	const running = 120
	var arrived sync.WaitGroup
	var opened atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived.Done()
		arrived.Wait()
		fmt.Fprint(w, "data: {\"choices\": [{\"text\": \"a\"}]}\n\ndata: [DONE]\n\n")
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	ctx := context.Background()
	c, err := NewClient(ctx, s.URL, ClientOptions{Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		arrived.Add(running)
		var done sync.WaitGroup
		for range running {
			done.Go(func() {
				if _, err := c.Complete(ctx, Request{Prompt: []int32{1}, Output: 1}, func() {}); err != nil {
					t.Error(err)
				}
			})
		}
		done.Wait()
	}
	if n := opened.Load(); n > running {
		t.Errorf("%d connections for two rounds of %d requests", n, running)
	}
}
