package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pwc/runner"
)

// asked is a request of the soak, and the answer to it while no other request runs.
type asked struct {
	fields, want string
}

// requests returns requests with their answers, which the runner computes one after the other.
func requests(t *testing.T, s *Server) []asked {
	rng := rand.New(rand.NewPCG(3, 4))
	var out []asked
	for i := range 24 {
		prompt := strings.Repeat("abcdefgh"[i%8:], 1+rng.IntN(5))
		n, temperature := 1+rng.IntN(50), float64(i%2)
		ids := s.o.Tokenizer.Encode(prompt, true)
		q, err := s.o.Runner.Submit(context.Background(), runner.Request{Prompt: ids, MaxNew: n, Sampling: runner.Sampling{Temperature: temperature, TopP: 1, Seed: uint64(i)}})
		must(t, err)
		all, err := q.Wait(context.Background())
		must(t, err)
		fields := fmt.Sprintf(`{"prompt": %q, "max_tokens": %d, "temperature": %g, "seed": %d, "ignore_eos": true`, prompt, n, temperature, i)
		out = append(out, asked{fields, s.o.Tokenizer.Decode(all[len(ids):], false)})
	}
	return out
}

// outcomes counts the outcomes of the clients' requests.
type outcomes struct{ complete, cut, refused, gone, stalled, garbage, large atomic.Int64 }

// all reports whether each outcome occurred.
func (o *outcomes) all() bool {
	for _, n := range []*atomic.Int64{&o.complete, &o.cut, &o.refused, &o.gone, &o.stalled, &o.garbage, &o.large} {
		if n.Load() == 0 {
			return false
		}
	}
	return true
}

// TestSoak starts servers on one runner, one after the other, and drains each while requests run.
// Clients ask, disconnect, stall, send garbage and send too much. An answer must equal the answer
// without other requests, or be a prefix of it if the drain cancels it. After each round no request or
// block may be left, at the end no goroutine and at most 8 MiB more memory than after the first round.
// PWC_SOAK sets the number of seconds, by default 2; up to 20 more pass until each outcome and a
// preemption have occurred.
func TestSoak(t *testing.T) {
	seconds := 2.0
	if text := os.Getenv("PWC_SOAK"); text != "" {
		var err error
		seconds, err = strconv.ParseFloat(text, 64)
		must(t, err)
	}
	r := engine(t, runner.Options{MaxSequences: 8, MaxTokens: 32, MaxLength: 128, Blocks: 10})
	first, _ := newServer(t, func(o *Options) { o.Runner = r })
	all := requests(t, first)
	goroutines, heap := runtime.NumGoroutine(), uint64(0)
	var met outcomes
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for round := uint64(0); time.Now().Before(end) || time.Now().Before(end.Add(20*time.Second)) && !(met.all() && r.Stats().Preempted > 0); round++ {
		soakRound(t, first.o, all, &met, round)
		await(t, "the end of all requests", func() bool {
			st := r.Stats()
			return st.Running+st.Waiting == 0 && st.UsedBlocks == 0
		})
		if heap == 0 {
			heap = heapInUse()
		}
	}
	await(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= goroutines })
	if now := heapInUse(); now > heap+8<<20 {
		t.Errorf("%d bytes in use, %d after the first round", now, heap)
	}
	if !met.all() || r.Stats().Preempted == 0 {
		t.Errorf("want at least one of each outcome and one preemption: %+v, %+v", &met, r.Stats())
	}
	t.Logf("%d answers, %d cut off by drains, %d refused, %d clients gone, %d stalled, %d of garbage, %d too large; %+v", met.complete.Load(), met.cut.Load(),
		met.refused.Load(), met.gone.Load(), met.stalled.Load(), met.garbage.Load(), met.large.Load(), r.Stats().Finished)
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// soakRound serves until 5 to 44 requests were answered, or for 2 seconds. It drains while clients go on,
// and closes the server.
func soakRound(t *testing.T, o Options, all []asked, met *outcomes, round uint64) {
	o.MaxRequests, o.MaxBody, o.WriteTimeout = 10, 2000, 100*time.Millisecond
	s, err := New(o)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	h := &http.Server{Handler: s, ReadTimeout: 2 * time.Second, ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		_ = c.(*net.TCPConn).SetWriteBuffer(4096) // so that writes to a client that reads nothing block
		return ctx
	}}
	var serving, clients sync.WaitGroup
	serving.Go(func() { _ = h.Serve(l) }) // ends with Close
	transport := &http.Transport{}
	c := &client{t: t, http: &http.Client{Transport: transport}, address: l.Addr().String(), all: all, met: met}
	var ended atomic.Bool
	for i, behave := range []func(*rand.Rand){c.ask, c.ask, c.ask, c.ask, c.vanish, c.stall, c.garbage, c.tooLarge} {
		rng := rand.New(rand.NewPCG(round, uint64(i)))
		clients.Go(func() {
			for !ended.Load() {
				behave(rng)
				time.Sleep(time.Duration(rng.IntN(5000)) * time.Microsecond)
			}
		})
	}
	enough := met.complete.Load() + 5 + rand.New(rand.NewPCG(round, 99)).Int64N(40)
	for end := time.Now().Add(2 * time.Second); met.complete.Load() < enough && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	_ = s.Drain(ctx) // cancels the requests that still run after 20 ms
	cancel()
	ended.Store(true)
	must(t, h.Close())
	clients.Wait()
	serving.Wait()
	transport.CloseIdleConnections()
}

// client sends the requests of the soak.
type client struct {
	t       *testing.T
	http    *http.Client
	address string
	all     []asked
	met     *outcomes
}

const drainingCode = `"code":"draining"`

// ask sends a request, for one answer or a stream, and compares the answer with the expected one.
func (c *client) ask(rng *rand.Rand) {
	q := c.all[rng.IntN(len(c.all))]
	stream := rng.IntN(2) == 0
	resp, err := c.http.Post("http://"+c.address+"/v1/completions", "application/json", strings.NewReader(q.fields+fmt.Sprintf(`, "stream": %t}`, stream)))
	if err != nil {
		return // the server has ended
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	text, whole := "", err == nil
	switch {
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusServiceUnavailable:
		c.met.refused.Add(1)
		return
	case resp.StatusCode != http.StatusOK:
		c.t.Errorf("%s: %d %s", q.fields, resp.StatusCode, body)
		return
	}
	for line := range strings.Lines(string(body)) {
		var a completionAnswer
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &a) == nil && len(a.Choices) == 1 {
			text += a.Choices[0].Text
		}
	}
	if strings.Contains(string(body), drainingCode) || stream && !strings.Contains(string(body), "[DONE]") {
		whole = false
	}
	switch {
	case whole && text != q.want:
		c.t.Errorf("%s: %q, alone %q", q.fields, text, q.want)
	case whole:
		c.met.complete.Add(1)
	case !strings.HasPrefix(q.want, text):
		c.t.Errorf("%s: cut off with %q, which is not how %q begins", q.fields, text, q.want)
	default:
		c.met.cut.Add(1)
	}
}

// dial opens a connection with a deadline.
func (c *client) dial() (*net.TCPConn, bool) {
	conn, err := net.DialTimeout("tcp", c.address, time.Second)
	if err != nil {
		return nil, false // the server has ended
	}
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	return conn.(*net.TCPConn), true
}

func postText(body string, length int) string {
	return fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: soak\r\nContent-Length: %d\r\n\r\n%s", length, body)
}

// vanish asks for a long stream, reads none or some of it, and closes the connection.
func (c *client) vanish(rng *rand.Rand) {
	conn, ok := c.dial()
	if !ok {
		return
	}
	defer conn.Close()
	body := `{"prompt": "vanish", "max_tokens": 110, "ignore_eos": true, "stream": true}`
	_, _ = io.WriteString(conn, postText(body, len(body)))
	lines := bufio.NewScanner(conn)
	for range rng.IntN(40) {
		if !lines.Scan() {
			return
		}
	}
	if rng.IntN(2) == 0 {
		_ = conn.SetLinger(0) // a reset
	}
	c.met.gone.Add(1)
}

// stall asks for much, and reads nothing for longer than the server's WriteTimeout.
func (c *client) stall(*rand.Rand) {
	conn, ok := c.dial()
	if !ok {
		return
	}
	defer conn.Close()
	_ = conn.SetReadBuffer(1)
	body := `{"prompt": "stall", "max_tokens": 110, "n": 2, "ignore_eos": true, "stream": true}`
	_, _ = io.WriteString(conn, postText(body, len(body)))
	time.Sleep(150 * time.Millisecond)
	c.met.stalled.Add(1)
}

// garbage sends noise, a body that is not JSON, a part of a body, or invalid values. Any answer but 200
// and 500 is right.
func (c *client) garbage(rng *rand.Rand) {
	conn, ok := c.dial()
	if !ok {
		return
	}
	defer conn.Close()
	noise := make([]byte, rng.IntN(300))
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	text := string(noise)
	switch rng.IntN(4) {
	case 0:
		text = postText(text, len(text))
	case 1:
		text = postText(`{"prompt": "abc"`, 500) // shorter than its Content-Length
	case 2:
		body := `{"prompt": [[1, 2], [-7]], "max_tokens": 1e9}`
		text = postText(body, len(body))
	}
	_, _ = io.WriteString(conn, text)
	_ = conn.CloseWrite()
	answer, _ := io.ReadAll(io.LimitReader(conn, 1<<16))
	if strings.HasPrefix(string(answer), "HTTP/1.1 200") || strings.HasPrefix(string(answer), "HTTP/1.1 500") {
		c.t.Errorf("%q is answered with %s", text, answer)
	}
	c.met.garbage.Add(1)
}

// tooLarge sends a body above the limit, or asks for more tokens than a sequence can have.
func (c *client) tooLarge(rng *rand.Rand) {
	body, want := `{"prompt": "`+strings.Repeat("a", 5000)+`"}`, http.StatusRequestEntityTooLarge
	if rng.IntN(2) == 0 {
		body, want = `{"prompt": "a", "max_tokens": 5000}`, http.StatusBadRequest
	}
	resp, err := c.http.Post("http://"+c.address+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return // the server has ended
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	switch resp.StatusCode {
	case want:
		c.met.large.Add(1)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		c.met.refused.Add(1)
	default:
		c.t.Errorf("%.40s: %d, want %d", body, resp.StatusCode, want)
	}
}
