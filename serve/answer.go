package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"pwc/runner"
)

// usage counts tokens.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// call is a valid request, and the functions that make the objects of the API's answer.
type call struct {
	prompts [][]int32
	request runner.Request // of each prompt, without its ids
	n       int            // choices of each prompt
	stops   []string
	stream  bool
	usage   bool // a stream has an event with the usage before [DONE]

	open  func(choice int) any                // the first event of a choice; nil: no such event
	event func(p part) []any                  // the events of a part
	total func(u usage) any                   // the event with the usage
	whole func(choices []result, u usage) any // the answer that is not streamed
}

// result is a choice of an answer that is not streamed.
type result struct {
	text   strings.Builder
	finish string
	scores []runner.TokenLogprobs // of the answer's tokens; nil unless the request has logprobs
	prompt []runner.TokenLogprobs // of the prompt's tokens
}

// answer generates and writes the response. If it returns an error, it has written nothing.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, c *call) error {
	ctx, end, err := s.begin(r)
	if err != nil {
		return err
	}
	defer end()
	began := time.Now()
	u := usage{}
	ctx, span := s.startSpan(ctx, r, w.Header().Get("X-Request-Id"), c)
	defer func() { endSpan(span, &u, err) }() // after all choices
	ctx, cancel := context.WithCancel(ctx)
	choices := len(c.prompts) * c.n
	g := &generation{parts: make(chan part, choices)}
	defer g.wait.Wait()
	defer cancel()
	for i, prompt := range c.prompts {
		u.Prompt += len(prompt)
		q := c.request
		q.Prompt = prompt
		if err = s.start(ctx, q, c.n, i*c.n, c.stops, g); err != nil {
			return s.failed(ctx, err)
		}
	}
	if c.stream {
		err = s.streamed(ctx, w, c, g, choices, &u)
	} else {
		err = s.collected(ctx, w, c, g, choices, &u)
	}
	level, outcome := slog.LevelInfo, "answered"
	if err != nil {
		outcome = "ended early"
	}
	if c.stream && err != nil && !disconnected(r, err) {
		level = slog.LevelWarn // guarded warns of errors of other answers
	}
	s.o.Logger.Log(r.Context(), level, outcome, "id", w.Header().Get("X-Request-Id"), "path", r.URL.Path, "prompt_tokens", u.Prompt, "completion_tokens", u.Completion, "choices", choices, "took", time.Since(began), "error", err)
	if c.stream {
		return nil // the status is written, and the stream has the error, unless the client does not take it
	}
	return err
}

// errWrite: the client disconnected, or did not read for Options.WriteTimeout.
var errWrite = errors.New("the client does not take the answer")

// disconnected reports whether an error only says that the client does not wait for the answer.
func disconnected(r *http.Request, err error) bool {
	return errors.Is(err, errWrite) || r.Context().Err() != nil && errors.Is(err, context.Canceled)
}

// collected writes the answer as one JSON object.
func (s *Server) collected(ctx context.Context, w http.ResponseWriter, c *call, g *generation, choices int, u *usage) error {
	results := make([]result, choices)
	for left := choices; left > 0; {
		select {
		case p := <-g.parts:
			if p.err != nil {
				return s.failed(ctx, p.err)
			}
			results[p.choice].text.WriteString(p.text)
			results[p.choice].scores = append(results[p.choice].scores, p.scores...)
			if p.finish != "" {
				results[p.choice].finish, results[p.choice].prompt = p.finish, p.prompt
				u.Completion += p.tokens
				left--
			}
		case <-ctx.Done():
			return s.failed(ctx, ctx.Err())
		}
	}
	u.Total = u.Prompt + u.Completion
	s.writeJSON(w, http.StatusOK, c.whole(results, *u))
	return nil
}

// failed returns the answer for a generation that ended early.
func (s *Server) failed(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &Error{Status: http.StatusGatewayTimeout, Type: "server_error", Code: "timeout", Message: fmt.Sprintf("the answer took longer than %v", s.o.Timeout)}
	case ctx.Err() != nil && s.draining.Load():
		return draining()
	}
	return err
}

// streamed answers with server-sent events. If one write takes longer than Options.WriteTimeout,
// the client counts as disconnected.
func (s *Server) streamed(ctx context.Context, w http.ResponseWriter, c *call, g *generation, choices int, u *usage) error {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // nginx then does not buffer events
	w.WriteHeader(http.StatusOK)
	e := events{w: w, server: s}
	for i := range choices {
		if c.open != nil {
			e.send(c.open(i))
		}
	}
	for left := choices; left > 0 && e.err == nil; {
		select {
		case p := <-g.parts:
			if p.err != nil {
				return e.fail(s.failed(ctx, p.err))
			}
			for _, v := range c.event(p) {
				e.send(v)
			}
			if p.finish != "" {
				u.Completion += p.tokens
				left--
			}
		case <-ctx.Done():
			return e.fail(s.failed(ctx, ctx.Err()))
		}
	}
	u.Total = u.Prompt + u.Completion
	if c.usage {
		e.send(c.total(*u))
	}
	e.done()
	return e.err
}

// events writes server-sent events (WHATWG HTML, section 9.2). It writes nothing after an error.
type events struct {
	w      http.ResponseWriter
	server *Server
	err    error
}

// send writes an event, and removes the deadline until the next event: a token may take longer than it.
func (e *events) send(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		e.err = errors.Join(e.err, err)
		return
	}
	if e.write(string(b)); e.err == nil {
		clearWriteDeadline(e.w)
	}
}

// done writes the last event. Its deadline stays for the end of the body, which the HTTP server writes.
func (e *events) done() { e.write("[DONE]") }

func (e *events) write(data string) {
	if e.err != nil {
		return
	}
	err := e.server.setWriteDeadline(e.w)
	if err == nil {
		_, err = fmt.Fprintf(e.w, "data: %s\n\n", data)
	}
	if err == nil {
		if err = http.NewResponseController(e.w).Flush(); errors.Is(err, http.ErrNotSupported) {
			e.err = err // of the program that embeds the server
			return
		}
	}
	if err != nil {
		e.err = fmt.Errorf("%w: %w", errWrite, err)
	}
}

// fail ends the stream with an event that has an error object, as vLLM does. It returns err, also if the
// event cannot be written.
func (e *events) fail(err error) error {
	e.send(struct {
		Error *Error `json:"error"`
	}{asError(err)})
	e.done()
	return err
}
