package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pwc/chat"
	"pwc/internal/openfile"
	"pwc/runner"
	"pwc/runner/metrics"
	"pwc/serve"
)

// serveFlags are the flags of serve other than those of modelFlags and buildFlags.
type serveFlags struct {
	listen    string
	name      string
	tokenizer string
	template  string
	keyFile   string
	cert, key string        // of TLS
	run       generateFlags // of the runner

	requests int
	body     int64
	timeout  time.Duration
	drain    time.Duration
	traces   string // the endpoint of OTLP; "": no traces
}

func (a *app) serveCommand() *cobra.Command {
	var f modelFlags
	var b buildFlags
	s := serveFlags{timeout: 10 * time.Minute, drain: 30 * time.Second}
	cmd := &cobra.Command{
		Use:   "serve MODEL",
		Short: "serve a language model over HTTP with OpenAI's API",
		Long: `Serve a language model: POST /v1/completions and /v1/chat/completions, as one answer or as
server-sent events; GET /v1/models; POST /tokenize and /detokenize; GET /health/live,
/health/ready and /metrics; and at / a page with a chat and the state of the
engine. A field that the server does not support is an error that names the field.

The tokenizer is the checkpoint's, or --tokenizer; the chat template is the
checkpoint's (chat_template.jinja, else tokenizer_config.json), or --template. Without a
template /v1/chat/completions is refused.

The server listens on the loopback address unless --listen is given. --key-file has the
key that clients must send; /health, /metrics and the page need none. --tls-cert and
--tls-key turn TLS on. On SIGTERM or an
interrupt /health/ready returns 503, new completions and chats are refused, and the server
waits up to --drain for running ones; a second signal ends the server at once.`,
		Example: `  pwc serve testdata/hf/llama --tokenizer testdata/tokenizers/bytes --template testdata/chat/plain.jinja
  pwc serve models/llama --listen 0.0.0.0:8000 --key-file key.txt --tls-cert cert.pem --tls-key key.pem
  pwc serve models/llama --max-sequences 256 --max-tokens 2048 --name my-model`,
		Annotations: map[string]string{linesAnnotation: ""},
		Args:        exactly(1, "one module or checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (s.cert == "") != (s.key == "") {
				return usagef("--tls-cert and --tls-key belong together")
			}
			if _, _, err := net.SplitHostPort(s.listen); err != nil {
				return usagef("--listen %s: want HOST:PORT, as in 127.0.0.1:8000 or :8000", s.listen)
			}
			if err := s.run.checkRunner(cmd); err != nil {
				return err
			}
			return a.runServe(cmd.Context(), args[0], &f, &b, &s)
		},
	}
	f.addImport(cmd, "auto")
	f.addWeights(cmd)
	b.add(cmd)
	b.addRunning(cmd)
	b.process.add(cmd, "--tp")
	b.addFrozen(cmd)
	fl := cmd.Flags()
	fl.StringVar(&s.listen, "listen", "127.0.0.1:8000", "`ADDRESS` to listen on; port 0: any free port")
	fl.StringVar(&s.name, "name", "", "`NAME` of the model in requests and answers (default: the name of its directory or file)")
	fl.StringVar(&s.tokenizer, "tokenizer", "", "`FILE` or directory of the tokenizer (default: the one next to the weights)")
	fl.StringVar(&s.template, "template", "", "`FILE` or directory of the chat template (default: the one next to the weights)")
	fl.StringVar(&s.keyFile, "key-file", "", "`FILE` with the key that clients send as Authorization: Bearer KEY")
	fl.StringVar(&s.cert, "tls-cert", "", "`FILE` with the certificates of TLS, in PEM")
	fl.StringVar(&s.key, "tls-key", "", "`FILE` with the private key of TLS, in PEM")
	s.run.addRunner(cmd)
	fl.Var(&wholeNumber[int]{&s.requests, 1, maxNumber}, "max-requests", "answer at most `N` completions and chats at once, and refuse more with 429 (default 1024)")
	fl.Var(byteFlag{&s.body, 1}, "max-body", "refuse request bodies of more than `BYTES` (default 4MiB)")
	fl.Var(&duration{&s.timeout, true}, "timeout", "`DURATION`, above 0, after which a completion or chat is ended")
	fl.StringVar(&s.traces, "otlp-traces-endpoint", "", "send spans of OpenTelemetry to `URL` (OTLP over HTTP), as in http://127.0.0.1:4318/v1/traces")
	fl.Var(&duration{&s.drain, false}, "drain", "`DURATION` to wait for running completions and chats at shutdown")
	return cmd
}

func (a *app) runServe(ctx context.Context, path string, f *modelFlags, bf *buildFlags, s *serveFlags) (err error) {
	secret, config, err := s.secrets()
	if err != nil {
		return err
	}
	tracer, endTracing, err := a.tracing(ctx, s.traces)
	if err != nil {
		return err
	}
	defer endTracing()
	m, err := a.openLanguage(path, f)
	if err != nil {
		return err
	}
	dir := cmp.Or(m.weights, path)
	text, err := openTokenizer(cmp.Or(s.tokenizer, dir))
	if err != nil {
		return err
	}
	template, err := openTemplate(s.template, dir)
	if err != nil && (s.template != "" || !errors.Is(err, chat.ErrNone)) { // a checkpoint may have no template
		return err
	}
	weights, t, w, closeAll, err := m.openOn(ctx, f, bf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	name := cmp.Or(s.name, modelName(path))
	collector := metrics.New("pwc")
	collector.SetModel(name)
	o := s.run.options()
	o.Observer = collector
	r, err := a.openRunner(ctx, m.module, t, w, bf, &s.run, o, &generation{app: a, metrics: collector})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if bf.process.follows() {
		return a.runFollower(ctx, r, weights)
	}
	plan := r.Plan()
	fmt.Fprintf(a.err, "%s in %s on %s%s\n%s\n", m.path, modelDType(m.module), t.dev.Info().Name, w.text(), plan.String())
	t.bar.capturing(plan.Graphs)
	err = r.Load(ctx, weights)
	t.bar.end()
	if err != nil {
		return err
	}
	server, err := serve.New(serve.Options{Model: name, Runner: r, Tokenizer: text, Template: template, EOS: m.module.EOS, Key: secret,
		MaxBody: s.body, MaxRequests: s.requests, Timeout: s.timeout, Metrics: collector, Logger: a.requestLogger(), Tracer: tracer})
	if err != nil {
		return err
	}
	return a.serveUntil(ctx, r, server, s, config)
}

// secrets reads the clients' API key, and the certificate and key of TLS.
func (s *serveFlags) secrets() (string, *tls.Config, error) {
	secret := ""
	if s.keyFile != "" {
		b, err := openfile.Read(s.keyFile, 4096)
		if err != nil {
			return "", nil, fmt.Errorf("--key-file: %w", err)
		}
		if secret = strings.TrimSpace(string(b)); secret == "" {
			return "", nil, fmt.Errorf("--key-file: %s has no key", s.keyFile)
		}
	}
	if s.cert == "" {
		return secret, nil, nil
	}
	pair, err := tls.LoadX509KeyPair(s.cert, s.key)
	if err != nil {
		return "", nil, fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	return secret, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

// modelName returns the name of a model's directory, or of its file without the extension .ir.
func modelName(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		path = full // the base of "." is no name
	}
	base := filepath.Base(path)
	if base == "config.json" {
		base = filepath.Base(filepath.Dir(path))
	}
	return strings.TrimSuffix(base, ".ir")
}

// requestLogger returns the logger for [serve.Options], on standard error: answered requests are logged only
// with --verbose.
func (a *app) requestLogger() *slog.Logger {
	level := slog.LevelWarn
	if a.verbose {
		level = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}))
}

// serveUntil answers requests until ctx ends, then drains.
func (a *app) serveUntil(ctx context.Context, r *runner.Runner, server *serve.Server, s *serveFlags, config *tls.Config) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	scheme := "http"
	if config != nil {
		l, scheme = tls.NewListener(l, config), "https"
	}
	// No WriteTimeout: answers are streams, and package serve bounds each write.
	h := &http.Server{Handler: server, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(a.logger().Handler(), slog.LevelWarn)}
	stepping, endSteps := context.WithCancel(context.WithoutCancel(ctx))
	stepped := make(chan error, 1)
	go func() { stepped <- r.Run(stepping) }()
	served := make(chan error, 1)
	go func() { served <- h.Serve(l) }()
	url := scheme + "://" + l.Addr().String()
	if a.json {
		err = a.printJSON(struct {
			URL string `json:"url"`
		}{url})
	} else {
		_, err = fmt.Fprintf(a.out, "serving at %s\n", url)
	}
	var failed error
	if err == nil {
		select {
		case <-ctx.Done():
		case failed = <-stepped: // the runner has failed, for example because the device is lost
			stepped <- nil
		case failed = <-served:
			served <- nil
		}
	}
	release := hold(ctx) // the drain may take longer than the grace of other commands
	defer release()
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.drain)
	defer cancel()
	if failed == nil && err == nil {
		err = server.Drain(draining)
	}
	closed := h.Close()
	endSteps()
	ended, stopped := <-served, <-stepped
	if errors.Is(ended, http.ErrServerClosed) {
		ended = nil
	}
	if errors.Is(stopped, context.Canceled) {
		stopped = nil
	}
	return errors.Join(failed, err, closed, ended, stopped)
}
