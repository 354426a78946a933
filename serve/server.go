package serve

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"pwc/chat"
	"pwc/runner"
	"pwc/tokenizer"
)

// Options configure a server.
type Options struct {
	Model     string               // the served name
	Runner    *runner.Runner       // loaded; the caller runs Run
	Tokenizer *tokenizer.Tokenizer // of the model
	Template  *chat.Template       // nil: the server refuses chat completions
	EOS       []int32              // ids that end the model's answers

	Key string // the header "Authorization: Bearer KEY" that all endpoints except /health/…, /metrics and the page require; "": no key

	MaxBody      int64         // bytes of a request body; 0: 4 MiB
	MaxRequests  int           // concurrent completions and chats, each with all of its choices; 0: 1024. Further ones get 429
	Timeout      time.Duration // from the end of the checks of a completion or chat to the end of its answer; 0: 10 minutes
	WriteTimeout time.Duration // longest time of the write of an event or a whole answer, after which the client counts as disconnected; 0: 30 seconds

	Metrics http.Handler // answers /metrics; nil: 404
	Logger  *slog.Logger // gets a line for each completion and chat, and for each refused request except those with a wrong key or path; the level of refusals and failures is Warn, but Info if the client disconnected; nil: no log
	Tracer  trace.Tracer // of OpenTelemetry: a span for each request that generates, and one for each choice; nil: no spans
}

// Server is an http.Handler. It is safe for concurrent use. No goroutine that it starts outlives
// its request.
type Server struct {
	o        Options
	mux      *http.ServeMux
	slots    chan struct{}
	draining atomic.Bool
	started  time.Time

	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc // of running requests
	last    uint64
	idle    chan struct{} // closed when no request runs any more; nil if no Drain waits
}

// New returns a server. Runner, Tokenizer and Model are required. An error lists all options that are missing or
// negative.
func New(o Options) (*Server, error) {
	var wrong []string
	for name, absent := range map[string]bool{"Runner": o.Runner == nil, "Tokenizer": o.Tokenizer == nil, "Model": o.Model == ""} {
		if absent {
			wrong = append(wrong, name+" is missing")
		}
	}
	for name, v := range map[string]int64{"MaxBody": o.MaxBody, "MaxRequests": int64(o.MaxRequests), "Timeout": int64(o.Timeout), "WriteTimeout": int64(o.WriteTimeout)} {
		if v < 0 {
			wrong = append(wrong, name+" is negative")
		}
	}
	if wrong != nil {
		slices.Sort(wrong)
		return nil, fmt.Errorf("serve: options: %s", strings.Join(wrong, ", "))
	}
	o.MaxBody = cmp.Or(o.MaxBody, 4<<20)
	o.MaxRequests = cmp.Or(o.MaxRequests, 1024)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Minute)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Tracer == nil {
		o.Tracer = noop.NewTracerProvider().Tracer("")
	}
	s := &Server{o: o, mux: http.NewServeMux(), slots: make(chan struct{}, o.MaxRequests), started: time.Now(), cancels: map[uint64]context.CancelFunc{}}
	s.routes()
	return s, nil
}

func (s *Server) routes() {
	for pattern, handler := range map[string]func(http.ResponseWriter, *http.Request) error{
		"POST /v1/completions":      s.completions,
		"POST /v1/chat/completions": s.chatCompletions,
		"POST /tokenize":            s.tokenize,
		"POST /detokenize":          s.detokenize,
		"GET /v1/models":            s.models,
		"GET /v1/models/{model...}": s.model,
		"GET /live":                 s.live,
	} {
		s.mux.Handle(pattern, s.guarded(handler))
	}
	s.mux.HandleFunc("GET /health/live", func(w http.ResponseWriter, _ *http.Request) {
		s.writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	s.mux.HandleFunc("GET /health/ready", s.ready)
	s.mux.HandleFunc("GET /{$}", page)
	if s.o.Metrics != nil {
		s.mux.Handle("GET /metrics", s.o.Metrics)
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.writeError(w, &Error{Status: http.StatusNotFound, Type: "invalid_request_error", Message: fmt.Sprintf("the server has no %s %s", r.Method, r.URL.Path)})
	})
}

// setWriteDeadline ends writes of the answer that have not completed Options.WriteTimeout from now, if the writer
// supports deadlines. HTTP/2 resets a stream at its deadline, also without a write. An error means that the connection
// is closed.
func (s *Server) setWriteDeadline(w http.ResponseWriter) error {
	err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.o.WriteTimeout))
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

// clearWriteDeadline undoes setWriteDeadline.
func clearWriteDeadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // the next write reports a closed connection
}

// ServeHTTP implements http.Handler. An answer has the X-Request-Id of its request if
// requestID accepts it, otherwise a new id.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Request-Id", requestID(r))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_ = s.setWriteDeadline(w) // for answers of the page, of the metrics and of s.mux; guarded handlers set it when they write
	s.mux.ServeHTTP(w, r)
}

// requestID returns the client's id if it is valid in a header and a log, otherwise a random one.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	fit := id != "" && len(id) <= 128
	for _, c := range id {
		fit = fit && c > ' ' && c < 0x7f
	}
	if fit {
		return id
	}
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return "req-" + hex.EncodeToString(b[:])
}

// guarded checks the key, and answers and logs errors of f. WriteTimeout does not count before f writes.
func (s *Server) guarded(f func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		clearWriteDeadline(w)
		given, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if s.o.Key != "" && (!found || subtle.ConstantTimeCompare([]byte(given), []byte(s.o.Key)) != 1) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			s.writeError(w, &Error{Status: http.StatusUnauthorized, Type: "authentication_error", Code: "invalid_api_key", Message: "the key is missing or wrong: send Authorization: Bearer KEY"})
			return
		}
		if err := f(w, r); err != nil {
			e := asError(err)
			s.writeError(w, e)
			level := slog.LevelWarn
			if disconnected(r, err) {
				level = slog.LevelInfo
			}
			s.o.Logger.Log(r.Context(), level, "refused", "id", w.Header().Get("X-Request-Id"), "path", r.URL.Path, "status", e.Status, "error", e.Message)
		}
	})
}

// begin takes a slot for a request. It returns the request's context, and a function that ends both. The
// context also ends when the client disconnects, after Options.Timeout, or when a drain cancels.
func (s *Server) begin(r *http.Request) (context.Context, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining.Load() {
		return nil, nil, draining()
	}
	select {
	case s.slots <- struct{}{}:
	default:
		return nil, nil, &Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "too_many_requests", Message: fmt.Sprintf("%d requests are running, which is the limit; send the request again later", s.o.MaxRequests)}
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.o.Timeout)
	s.last++
	id := s.last
	s.cancels[id] = cancel
	return ctx, func() {
		cancel()
		<-s.slots
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.cancels, id)
		if s.idle != nil && len(s.cancels) == 0 {
			close(s.idle)
			s.idle = nil
		}
	}, nil
}

// Drain makes the server refuse new completions and chats, and waits for running ones. If ctx ends, Drain cancels them,
// waits for their end, and returns an error that wraps that of ctx. /health/ready is 503 from the start of the drain
// on. A second call returns nil at once.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	if s.draining.Swap(true) || len(s.cancels) == 0 {
		s.mu.Unlock()
		return nil
	}
	idle := make(chan struct{})
	s.idle = idle
	s.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	n := len(s.cancels)
	for _, cancel := range s.cancels {
		cancel()
	}
	s.mu.Unlock()
	<-idle
	if n == 0 {
		return nil // the last request ended with ctx
	}
	return fmt.Errorf("serve: %d requests were canceled: %w", n, ctx.Err())
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if s.draining.Load() {
		s.writeJSON(w, http.StatusServiceUnavailable, map[string]string{"status": "draining"})
		return
	}
	s.writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// checkModel refuses a request for another model.
func (s *Server) checkModel(name string) error {
	if name != "" && name != s.o.Model {
		return &Error{Status: http.StatusNotFound, Type: "invalid_request_error", Param: "model", Code: "model_not_found", Message: fmt.Sprintf("the model %q is not served here; %q is", name, s.o.Model)}
	}
	return nil
}
