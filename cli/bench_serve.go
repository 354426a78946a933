package cli

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pwc/internal/openfile"
	"pwc/internal/termsafe"
	"pwc/loadtest"
	"pwc/runner"
)

// benchServeFlags are the flags of bench-serve other than those of modelFlags and buildFlags.
type benchServeFlags struct {
	load    loadtest.Options
	prompt  string
	output  string
	clients int
	warmup  int
	limits  loadtest.Limits
	svg     string
	csv     string

	model   string // the model's name in requests to a server
	keyFile string
	extra   string // more fields of requests to a server, a JSON object

	run generateFlags // of the runner, without a server
}

// servedOnly are the flags that only apply to a server.
var servedOnly = []string{"model", "key-file", "extra-body"}

func (a *app) benchServeCommand() *cobra.Command {
	var f modelFlags
	var b buildFlags
	var s benchServeFlags
	cmd := &cobra.Command{
		Use:   "bench-serve URL|MODEL",
		Short: "measure serving under load",
		Long: `Measure a server of language models under load, through streams of OpenAI's
/v1/completions; or a model in this process, without a server, with dummy weights
unless --weights is given.

With --rate requests arrive at random (a Poisson process), no matter how many still run.
Without --rate, --concurrency clients each send one request after the other. Prompts are random
ids. --seed determines arrivals, lengths and ids.

Four times of each request are measured: to the first token (TTFT), between tokens (ITL),
for each token after the first (TPOT), and to the end (E2E). Goodput counts the requests
within all --slo limits. Percentiles are interpolated between the closest values. For TTFT and ITL
each event of a server's stream is a token, except those with only the finish reason or the usage.
The number of tokens of an answer is that of these events, or the server's usage if it is larger.`,
		Example: `  pwc bench-serve http://127.0.0.1:8000 --rate 8 --requests 200 --prompt 64-512 --output 128
  pwc bench-serve models/llama --concurrency 16 --requests 64 --svg latency.svg
  pwc bench-serve http://127.0.0.1:8000 --rate 4 --slo-ttft 200ms --slo-tpot 30ms --json
  pwc bench-serve http://127.0.0.1:8000 --extra-body '{"ignore_eos": true}' --csv requests.csv`,
		Args: exactly(1, "the address of a server, or one module or checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b.fix(cmd)
			if cmd.Flags().Changed("rate") && cmd.Flags().Changed("concurrency") {
				return usagef("--rate and --concurrency exclude each other: give a rate of arrivals, or a number of clients")
			}
			if s.load.Rate > 0 {
				s.clients = 0
			}
			if err := checkTarget(cmd, args[0]); err != nil {
				return err
			}
			if err := s.run.checkRunner(cmd); err != nil {
				return err
			}
			return a.runBenchServe(cmd.Context(), args[0], &f, &b, &s)
		},
	}
	f.addImport(cmd, "auto")
	f.addWeights(cmd)
	f.weights = "dummy"
	cmd.Flags().Lookup("weights").Usage = "`DIR` with the checkpoint's tensors (default: dummy weights)"
	b.add(cmd)
	b.addRunning(cmd)
	b.addTraceOut(cmd)
	s.run.addRunner(cmd)
	fl := cmd.Flags()
	fl.Var(&wholeNumber[int]{&s.load.Requests, 1, loadtest.MaxRequests}, "requests", "send `N` requests (default 64)")
	s.load.Requests = 64
	fl.Float64Var(&s.load.Rate, "rate", 0, "`N` requests arrive per second on average; 0: --concurrency clients send them")
	fl.Var(&wholeNumber[int]{&s.clients, 1, maxNumber}, "concurrency", "`N` clients that send one request after the other (default 8)")
	s.clients = 8
	fl.StringVar(&s.prompt, "prompt", "128", "`TOKENS` of prompts: a number, or a range such as 64-512")
	fl.StringVar(&s.output, "output", "64", "`TOKENS` of answers: a number, or a range")
	fl.Uint64Var(&s.load.Seed, "seed", 0, "`SEED` of arrivals, lengths and ids")
	fl.Var(&wholeNumber[int]{&s.warmup, 0, maxNumber}, "warmup", "send the first `N` requests once before the measurement (default 1)")
	s.warmup = 1
	fl.Var(&duration{&s.limits.TTFT, false}, "slo-ttft", "a good request has its first token within this `TIME` (default: no limit)")
	fl.Var(&duration{&s.limits.TPOT, false}, "slo-tpot", "a good request takes at most this `TIME` for each token after the first, on average (default: no limit)")
	fl.Var(&duration{&s.limits.E2E, false}, "slo-e2e", "a good request ends within this `TIME` (default: no limit)")
	fl.StringVar(&s.svg, "svg", "", "draw the distributions of the times to `FILE`")
	fl.StringVar(&s.csv, "csv", "", "write a line for each request to `FILE`")
	fl.StringVar(&s.model, "model", "", "`NAME` of the model in requests to a server (default: the first that the server lists)")
	fl.StringVar(&s.keyFile, "key-file", "", "`FILE` with the API key of a server")
	fl.StringVar(&s.extra, "extra-body", "", "more fields of the requests to a server, a `JSON` object")
	return cmd
}

// loadFlags are the flags that apply to a server and to a model.
var loadFlags = []string{"requests", "rate", "concurrency", "prompt", "output", "seed", "warmup", "slo-ttft", "slo-tpot", "slo-e2e", "svg", "csv", "json", "verbose"}

// checkTarget returns a usage error for flags that do not apply to the argument where: flags for a model if it is a
// server, and flags for a server if it is a model.
func checkTarget(cmd *cobra.Command, where string) error {
	if !isAddress(where) {
		if given := changedOf(cmd.Flags(), servedOnly); len(given) > 0 {
			return usagef("flags for a server, and %s is a model: --%s", where, strings.Join(given, ", --"))
		}
		return nil
	}
	var given []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains(loadFlags, f.Name) && !slices.Contains(servedOnly, f.Name) {
			given = append(given, f.Name)
		}
	})
	if len(given) > 0 {
		return usagef("flags for a model, and %s is a server: --%s", where, strings.Join(given, ", --"))
	}
	return nil
}

func isAddress(s string) bool {
	return strings.HasPrefix(s, "http://") || strings.HasPrefix(s, "https://")
}

// benchServeReport is the JSON of bench-serve.
type benchServeReport struct {
	Target      string  `json:"target"`
	Model       string  `json:"model"`
	Seed        uint64  `json:"seed"`
	Rate        float64 `json:"rate,omitempty"`
	Concurrency int     `json:"concurrency,omitempty"`
	PromptRange string  `json:"prompt"`
	OutputRange string  `json:"output"`
	*loadtest.Report
}

func (a *app) runBenchServe(ctx context.Context, where string, f *modelFlags, bf *buildFlags, s *benchServeFlags) (err error) {
	if s.load.Prompt, err = loadtest.ParseLengths(s.prompt); err != nil {
		return usagef("--prompt: %w", err)
	}
	if s.load.Output, err = loadtest.ParseLengths(s.output); err != nil {
		return usagef("--output: %w", err)
	}
	for _, path := range []string{s.svg, s.csv} {
		if path == "" {
			continue
		}
		if err := canWrite(path); err != nil {
			return err
		}
	}
	r := &benchServeReport{Target: where, Seed: s.load.Seed, Rate: s.load.Rate, Concurrency: s.clients, PromptRange: s.prompt, OutputRange: s.output}
	measure := a.benchServer
	if !isAddress(where) {
		measure = func(ctx context.Context, where string, s *benchServeFlags, r *benchServeReport) ([]loadtest.Measured, error) {
			return a.benchRunner(ctx, where, f, bf, s, r)
		}
	}
	measured, err := measure(ctx, where, s, r)
	if err != nil {
		return err
	}
	r.Report = loadtest.NewReport(measured, s.limits)
	if s.svg != "" {
		if err := writeFile(s.svg, r.SVG(r.title())); err != nil {
			return err
		}
	}
	if s.csv != "" {
		text, err := requestsCSV(measured)
		if err == nil {
			err = writeFile(s.csv, text)
		}
		if err != nil {
			return err
		}
	}
	if a.json {
		err = a.printJSON(r)
	} else {
		err = a.printBenchServe(r)
	}
	if err == nil && r.Failed > 0 {
		return errReported
	}
	return err
}

// servedVocabulary bounds the ids in requests to a server. The size of its vocabulary is not known,
// but tokenizers of language models have at least so many ids.
const servedVocabulary = 256

const maxKey = 1 << 16 // bytes of a file with a key

// benchServer measures a server.
func (a *app) benchServer(ctx context.Context, where string, s *benchServeFlags, r *benchServeReport) ([]loadtest.Measured, error) {
	o := loadtest.ClientOptions{Model: s.model}
	if s.keyFile != "" {
		key, err := openfile.Read(s.keyFile, maxKey)
		if err != nil {
			return nil, err
		}
		o.Key = strings.TrimSpace(string(key))
	}
	if s.extra != "" {
		if err := json.Unmarshal([]byte(s.extra), &o.Extra); err != nil {
			return nil, usagef("--extra-body: %w", err)
		}
	}
	s.load.Vocabulary = servedVocabulary
	schedule, err := s.schedule()
	if err != nil {
		return nil, err
	}
	c, err := loadtest.NewClient(ctx, where, o)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r.Model = c.Model()
	return s.measure(ctx, c, schedule)
}

func (s *benchServeFlags) schedule() ([]loadtest.Request, error) {
	schedule, err := loadtest.Schedule(s.load)
	if err != nil {
		return nil, &usageError{err}
	}
	return schedule, nil
}

// measure warms the target up and runs the schedule.
func (s *benchServeFlags) measure(ctx context.Context, t loadtest.Target, schedule []loadtest.Request) ([]loadtest.Measured, error) {
	if n := min(s.warmup, len(schedule)); n > 0 {
		warm, err := loadtest.Run(ctx, t, schedule[:n], max(s.clients, 1))
		if err != nil {
			return nil, err
		}
		for _, m := range warm {
			if m.Err != nil {
				return nil, fmt.Errorf("a warm-up request failed: %w", m.Err)
			}
		}
	}
	return loadtest.Run(ctx, t, schedule, s.clients)
}

// benchRunner measures a model in the process.
func (a *app) benchRunner(ctx context.Context, path string, f *modelFlags, bf *buildFlags, s *benchServeFlags, r *benchServeReport) (measured []loadtest.Measured, err error) {
	m, err := a.open(path, f)
	if err != nil {
		return nil, err
	}
	if !isLanguageModel(m.module) {
		return nil, fmt.Errorf("%s is not a language model: bench-serve needs one with @forward(ids, positions) and @logits(hidden states, rows)", path)
	}
	r.Model = m.module.Name
	s.load.Vocabulary = int(vocabulary(m.module))
	schedule, err := s.schedule()
	if err != nil {
		return nil, err
	}
	weights, t, w, closeAll, err := m.openOn(ctx, f, bf)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	out := &generation{app: a, live: newLiveLine(a, true), start: time.Now()}
	for i, q := range schedule {
		out.requests = append(out.requests, namedRequest{Request: runner.Request{Prompt: q.Prompt, MaxNew: q.Output}, name: json.RawMessage(strconv.Itoa(i))})
	}
	out.bound(runner.BoundsOf(m.module).Positions, s.run.length, longerHint(m.module))
	if err := out.firstRefused(); err != nil {
		return nil, err
	}
	rn, err := a.newRunner(ctx, m.module, t, w, bf, &s.run, out)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rn.Close()) }()
	if err := out.firstRefused(); err != nil { // newRunner refuses requests for more blocks than the cache can have
		return nil, err
	}
	plan := rn.Plan()
	t.bar.capturing(plan.Graphs)
	err = rn.Load(ctx, weights)
	t.bar.end()
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- rn.Run(running) }()
	measured, err = s.measure(ctx, runnerTarget{rn}, schedule)
	stop()
	if e := <-ended; e != nil && !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	out.live.clear()
	return measured, err
}

// firstRefused returns the error of the first request that was refused, or nil.
func (g *generation) firstRefused() error {
	for i := range g.requests {
		if err := g.requests[i].refused; err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
	}
	return nil
}

// runnerTarget is a runner that a load test sends requests to.
type runnerTarget struct{ r *runner.Runner }

// Complete submits a request and waits for its end.
func (t runnerTarget) Complete(ctx context.Context, q loadtest.Request, token func()) (int, error) {
	n := 0
	seq, err := t.r.Submit(ctx, runner.Request{Prompt: q.Prompt, MaxNew: q.Output, OnToken: func(int32) { token(); n++ }})
	if err != nil {
		return 0, err
	}
	<-seq.Done()
	return n, seq.Err()
}

// title describes the load, for the heading of the report.
func (r *benchServeReport) title() string {
	load := fmt.Sprintf("%d clients", r.Concurrency)
	if r.Rate > 0 {
		load = fmt.Sprintf("%g requests/s", r.Rate)
	}
	return fmt.Sprintf("%s: %s, prompts of %s tokens, outputs of %s, seed %d", termsafe.Line(r.Model, 80), load, r.PromptRange, r.OutputRange, r.Seed)
}

func (a *app) printBenchServe(r *benchServeReport) error {
	fmt.Fprintf(a.out, "%s\n%s\n\n", termsafe.Line(r.Target, termsafe.MaxLine), r.title())
	fmt.Fprintf(a.out, "requests    %d completed, %d failed in %.3f s: %.2f/s\n", r.Completed, r.Failed, r.Seconds, r.RequestRate)
	fmt.Fprintf(a.out, "tokens      %d of prompts, %d of outputs: %.1f output tokens/s, %.1f in all\n", r.Prompt, r.Output, r.OutputRate, r.TotalRate)
	fmt.Fprintf(a.out, "goodput     %d within the limits: %.2f requests/s\n\n", r.Good, r.Goodput)
	t := table{head: []string{"ms", ">mean", ">p50", ">p90", ">p95", ">p99", ">max", ">of"}}
	for _, s := range []struct {
		name string
		loadtest.Summary
	}{{"to the first token", r.TTFT}, {"between tokens", r.ITL}, {"per output token", r.TPOT}, {"end to end", r.E2E}} {
		row := []string{s.name}
		for _, v := range []float64{s.Mean, s.P50, s.P90, s.P95, s.P99, s.Max} {
			row = append(row, fmt.Sprintf("%.2f", v))
		}
		t.add(append(row, fmt.Sprint(s.Count))...)
	}
	if err := t.write(a.out, "  "); err != nil {
		return err
	}
	if r.Failed > 0 {
		fmt.Fprintf(a.err, "pwc: %s failed, the first: %s\n", plural(int64(r.Failed), "request"), termsafe.Line(r.Error, termsafe.MaxLine))
	}
	return nil
}

// requestsCSV returns a line for each request. Times are milliseconds from the start of the run.
func requestsCSV(measured []loadtest.Measured) ([]byte, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	number := func(d time.Duration) string {
		return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 3, 64)
	}
	rows := [][]string{{"request", "prompt_tokens", "output_tokens", "sent_ms", "first_token_ms", "end_ms", "error"}}
	for i, m := range measured {
		first, failed := "", ""
		if len(m.Tokens) > 0 {
			first = number(m.Tokens[0])
		}
		if m.Err != nil {
			failed = m.Err.Error()
		}
		rows = append(rows, []string{strconv.Itoa(i), strconv.Itoa(m.Prompt), strconv.Itoa(m.Output), number(m.Sent), first, number(m.End), failed})
	}
	err := w.WriteAll(rows)
	return b.Bytes(), err
}
