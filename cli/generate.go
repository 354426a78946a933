package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/runner"
	"pwc/runner/metrics"
	"pwc/tokenizer"
)

// generateFlags are the flags of generate other than those of modelFlags and buildFlags. Other
// commands that run a runner use some of them.
type generateFlags struct {
	ids       idList
	file      string
	prompt    string
	tokenizer string // file or directory; "": the checkpoint's directory
	chat      bool
	system    string
	template  string // file or directory; "": the checkpoint's directory
	maxNew    int
	minNew    int
	bias      biasFlag
	stop      idList
	stopText  []string
	noEOS     bool
	sampling  runner.Sampling
	mode      string
	stats     bool

	sequences, tokens, blocks int
	length                    int // most tokens of a sequence; 0: the limits of the model and the cache
	memory                    int64
	fraction                  float64
	metrics                   string
	nvtx                      bool
}

// autoMode is the value of --mode for the best mode that the ops support.
const autoMode = "auto"

func (a *app) generateCommand() *cobra.Command {
	var f modelFlags
	var b buildFlags
	var g generateFlags
	cmd := &cobra.Command{
		Use:   "generate MODEL",
		Short: "generate tokens with a language model",
		Long: `Run requests through a language model together, with continuous batching over a
paged KV cache, and print the ids of the generated tokens. Without --json the
memory plan is printed before weights are loaded.

--ids gives one request. --prompt also gives one request: the checkpoint's tokenizer encodes
its text, and the answer is text, which ends before a string of --stop-text. --chat is a
conversation: each line of standard input is a message, and the checkpoint's chat template
makes a prompt of all messages so far. An interrupt ends the answer, the end of the
input ends the conversation. Each line of --ids-file is a request: a list of ids, or an
object {"ids": [5, 7], "request": "name", "max_new": 8, "stop": [2],
"ignore_eos": true, "temperature": 0.8, "top_k": 50, "top_p": 0.9, "seed": 1, "min_new": 4,
"min_p": 0.05, "repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.2,
"logit_bias": {"7": -2}, "allowed": [5, 7], "priority": 1}. Missing fields take the values
of the flags; the name defaults to the number of the request, from 0, the priority to 0, and
ids must be given. An answer ends at one of
the model's end-of-sequence ids (eos_token_id of generation_config.json, else of
config.json), unless --ignore-eos is given.

Answers are printed in the order of the requests, each on a line after its name; the answer
of a single request is printed token by token. With --json each answer is a line {"request", "ids",
"prompt_tokens", "finish_reason"}, where ids includes the prompt, also "text" with --prompt, and of
--chat a line {"role", "content", "prompt_tokens", "completion_tokens", "finish_reason"}; --stats
adds a line {"stats"}.
finish_reason is stop, length, max_position, canceled, failed or refused. A
request that is refused does not affect the others. A step that fails ends its requests, and
the others continue. The exit code is then 1. An interrupt ends all requests, and their tokens
so far are printed.`,
		Example: `  pwc generate models/llama --ids 5,7,9 --max-new 24
  pwc generate models/llama --prompt "The capital of France is"
  pwc generate models/llama --chat --system "Answer in one sentence."
  pwc generate models/llama --ids-file prompts.jsonl --json --stats
  pwc generate models/llama --ids 5,7,9 --temperature 0.8 --top-p 0.95 --seed 7
  pwc generate config.json --weights dummy --ids 1,2,3 --stats
  pwc generate models/llama --tp 2 --ids 5,7,9 --rank 1 --rendezvous file:meet &
  pwc generate models/llama --tp 2 --ids 5,7,9 --rank 0 --rendezvous file:meet`,
		Annotations: map[string]string{linesAnnotation: ""},
		Args:        exactly(1, "one module or checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(g.check(), g.checkRunner(cmd)); err != nil {
				return err
			}
			if g.chat {
				if !cmd.Flags().Changed("max-new") {
					g.maxNew = 0
				}
				return a.runChat(cmd.Context(), args[0], &f, &b, &g)
			}
			return a.runGenerate(cmd.Context(), args[0], &f, &b, &g)
		},
	}
	f.addImport(cmd, "auto")
	f.addWeights(cmd)
	b.add(cmd)
	b.addRunning(cmd)
	b.process.add(cmd, "--tp")
	b.addFrozen(cmd)
	b.addTraceOut(cmd)
	fl := cmd.Flags()
	fl.Var(&g.ids, "ids", "`ID`s of the prompt")
	fl.StringVar(&g.prompt, "prompt", "", "`TEXT` of the prompt")
	fl.BoolVar(&g.chat, "chat", false, "hold a conversation: each line of standard input is a message")
	fl.StringVar(&g.system, "system", "", "`TEXT` of the system message, the first message of --chat")
	fl.StringVar(&g.template, "template", "", "`FILE` or directory of the chat template of --chat (default: the one next to the weights)")
	fl.StringVar(&g.tokenizer, "tokenizer", "", "`FILE` or directory of the tokenizer of --prompt and --chat (default: the one next to the weights)")
	fl.StringVar(&g.file, "ids-file", "", "`FILE` with a request on each line, in JSON; - is standard input")
	g.maxNew = 24
	fl.Var(&wholeNumber[int]{&g.maxNew, 0, maxNumber}, "max-new", "generate at most `N` tokens for a request; 0: until the sequence reaches the limit of the model or the cache (default of --chat: 0)")
	fl.Var(&g.stop, "stop", "`ID`s that end an answer, in addition to the model's end-of-sequence ids (eos)")
	fl.StringArrayVar(&g.stopText, "stop-text", nil, "`TEXT` that ends an answer of --prompt or --chat, and is not printed; may be repeated")
	fl.BoolVar(&g.noEOS, "ignore-eos", false, "do not end answers at the model's end-of-sequence ids (eos)")
	fl.Float64Var(&g.sampling.Temperature, "temperature", 0, "divide the logits by `T` and sample; 0: take the most probable token, and ignore --top-k, --top-p, --min-p and --seed")
	fl.Var(&wholeNumber[int]{&g.sampling.TopK, 0, maxNumber}, "top-k", "sample among the `K` most probable tokens; 0: all")
	fl.Float64Var(&g.sampling.TopP, "top-p", 1, "sample among the most probable tokens that sum to `P`, above 0; 1: all")
	fl.Uint64Var(&g.sampling.Seed, "seed", 0, "`SEED` of the random numbers of a request")
	fl.Float64Var(&g.sampling.MinP, "min-p", 0, "sample among the tokens that are at least `P` times as probable as the most probable one; 0: all")
	fl.Float64Var(&g.sampling.RepetitionPenalty, "repetition-penalty", 1, "divide the positive logits of tokens of prompt and answer by `R`, and multiply the negative ones; 1: none")
	fl.Float64Var(&g.sampling.FrequencyPenalty, "frequency-penalty", 0, "subtract `F` from a token's logit for each occurrence of the token in the answer")
	fl.Float64Var(&g.sampling.PresencePenalty, "presence-penalty", 0, "subtract `F` from the logits of the tokens in the answer")
	fl.Var(&g.bias, "logit-bias", "add BIAS to the logit of ID: `ID=BIAS`, as in 7=-2,9=1.5")
	fl.Var((*idList)(&g.sampling.Allowed), "allowed", "choose only among these `ID`s")
	fl.Var(&wholeNumber[int]{&g.minNew, 0, maxNumber}, "min-new", "generate at least `N` tokens before a token that ends the answer")
	fl.BoolVar(&g.stats, "stats", false, "print steps by mode and size, padding, and the time in pieces, attention and the host")
	g.addRunner(cmd)
	fl.StringVar(&g.metrics, "metrics", "", "serve Prometheus metrics at `ADDRESS`/metrics during the run, as in :9100")
	fl.BoolVar(&g.nvtx, "nvtx", false, "mark each piece as an NVTX range, for NVIDIA's profilers")
	return cmd
}

// check returns a usage error for flags that exclude or need each other, and for a wrong --top-p, --repetition-penalty
// or --temperature.
func (g *generateFlags) check() error {
	text := g.prompt != "" || g.chat
	switch {
	case g.ids != nil && g.file != "":
		return usagef("--ids and --ids-file exclude each other")
	case g.prompt != "" && (g.ids != nil || g.file != ""):
		return usagef("--prompt excludes --ids and --ids-file")
	case g.chat && (g.ids != nil || g.file != "" || g.prompt != ""):
		return usagef("--chat reads messages from standard input, and excludes --prompt, --ids and --ids-file")
	case g.chat && (g.stats || g.metrics != "" || g.nvtx):
		return usagef("--chat excludes --stats, --metrics and --nvtx")
	case g.tokenizer != "" && !text:
		return usagef("--tokenizer is for the text of --prompt and --chat")
	case g.stopText != nil && !text:
		return usagef("--stop-text is for the text of --prompt and --chat")
	case (g.system != "" || g.template != "") && !g.chat:
		return usagef("--system and --template are for --chat")
	case g.ids == nil && g.file == "" && !text:
		return usagef("give the prompt with --prompt TEXT or --ids 5,7,9, many with --ids-file F.jsonl, or --chat")
	case !(g.sampling.TopP > 0 && g.sampling.TopP <= 1):
		return usagef("--top-p %g: %w", g.sampling.TopP, errTopP)
	case !(g.sampling.RepetitionPenalty > 0):
		return usagef("--repetition-penalty %g: %w", g.sampling.RepetitionPenalty, errRepetition)
	case !(g.sampling.Temperature >= 0) || math.IsInf(g.sampling.Temperature, 0):
		return usagef("--temperature %g: want a number of at least 0", g.sampling.Temperature)
	}
	return nil
}

// addRunner adds the flags of a runner: the capture mode and the limits.
func (g *generateFlags) addRunner(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&g.mode, "mode", autoMode, "capture `MODE`: auto, none, piecewise, full, full-decode-only or full-and-piecewise; auto is full-and-piecewise if the ops allow it, else piecewise")
	fl.Var(&wholeNumber[int]{&g.sequences, 1, maxNumber}, "max-sequences", "at most `N` requests in a step (default 64)")
	fl.Var(&wholeNumber[int]{&g.tokens, 1, maxNumber}, "max-tokens", "at most `N` rows in a step; longer prompts run in chunks (default: 512, or --max-sequences if that is more)")
	fl.Var(&wholeNumber[int]{&g.length, 1, maxNumber}, "max-length", "at most `N` tokens of a prompt and its answer (default: the limit of the model and the cache; of a conversation and of a server at most 4096)")
	fl.Var(&wholeNumber[int]{&g.blocks, 1, maxNumber}, "blocks", "`N` blocks of the KV cache (default: as many as the requests can use, or as fit in the memory if those are fewer)")
	fl.Var(byteFlag{&g.memory, 1}, "memory", "use at most `BYTES` of the device's memory, as in 40GiB or 40GB")
	fl.Float64Var(&g.fraction, "memory-fraction", 0.9, "use at most this `PART` of the device's memory, if --memory is not given")
}

// checkRunner returns a usage error for flags of addRunner that have no effect, and for a --memory-fraction of 0, which
// package runner takes for an unset field.
func (g *generateFlags) checkRunner(cmd *cobra.Command) error {
	if g.fraction == 0 {
		return usagef("--memory-fraction 0: want a number above 0, and at most 1")
	}
	return refuse(cmd, noEffect{g.memory > 0, "memory-fraction", " with --memory, which sets the bytes"})
}

func (a *app) runGenerate(ctx context.Context, path string, f *modelFlags, bf *buildFlags, g *generateFlags) (err error) {
	requests, err := g.requests(a.in)
	if err != nil {
		return err
	}
	m, err := a.openLanguage(path, f)
	if err != nil {
		return err
	}
	var text *tokenizer.Tokenizer
	if g.prompt != "" {
		if text, err = openTokenizer(cmp.Or(g.tokenizer, m.weights, path)); err != nil {
			return err
		}
		requests[0].Prompt = text.Encode(g.prompt, true)
	}
	weights, t, w, closeAll, err := m.openOn(ctx, f, bf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	out := &generation{app: a, requests: requests, live: newLiveLine(a, len(requests) > 1), start: time.Now()}
	out.bound(runner.BoundsOf(m.module).Positions, g.length, longerHint(m.module))
	out.endAt(m.module.EOS)
	if text != nil {
		out.answer = newTextAnswer(text, g.stopText, requests[0].Stop)
	}
	if g.metrics != "" {
		stop, err := out.serveMetrics(g.metrics)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	r, err := a.newRunner(ctx, m.module, t, w, bf, g, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if bf.process.follows() {
		return a.runFollower(ctx, r, weights)
	}
	plan := r.Plan()
	if !a.json {
		fmt.Fprintf(a.err, "%s in %s on %s%s\n%s\n", m.path, modelDType(m.module), t.dev.Info().Name, w.text(), plan.String())
	}
	if out.submit(ctx, r) > 0 {
		t.bar.capturing(plan.Graphs)
		err = r.Load(ctx, weights)
		t.bar.end()
		if err != nil {
			return err
		}
	}
	if err := out.run(ctx, r); err != nil {
		return err
	}
	if g.stats {
		if err := out.printStats(r); err != nil {
			return err
		}
	}
	if out.failed {
		return errReported
	}
	return nil
}

// generation has the requests of one generate, and prints their answers.
type generation struct {
	app      *app
	requests []namedRequest
	live     *liveLine
	metrics  *metrics.Collector // nil: no --metrics
	ops      []*timedOp
	start    time.Time
	tokens   int64
	failed   bool

	answer *textAnswer // of --prompt; nil: the answers are ids
}

// namedRequest is a request with its name, which is JSON, and its state.
type namedRequest struct {
	runner.Request
	name    json.RawMessage
	seq     *runner.Sequence
	refused error // why there is no seq; nil: there is one, or Submit was not called yet
	atMost  int   // most tokens of the sequence, if MaxNew is 0
	stopped int   // ids of the answer up to its stop string; 0: no stop string ended it

	ignoreEOS bool // the model's end-of-sequence ids do not end the answer
}

// Stepped updates the live line and the metrics.
func (g *generation) Stepped(s runner.Step) {
	g.live.step(&s, g.tokens)
	if g.metrics != nil {
		g.metrics.Stepped(s)
	}
}

// Finished updates the metrics. It prints no answer: run prints them in the order of the requests.
func (g *generation) Finished(s *runner.Sequence) {
	if g.metrics != nil {
		g.metrics.Finished(s)
	}
}

// single reports whether the answer is printed token by token.
func (g *generation) single() bool { return len(g.requests) == 1 && !g.app.json }

// errTopP and errRepetition are the errors of a top-p out of range and of a repetition penalty that is not above 0. vLLM
// refuses 0 too; for package runner 0 means that the field is not set.
var (
	errTopP       = errors.New("want a number above 0, and at most 1, which leaves all tokens; --top-k 1 takes the most probable token")
	errRepetition = errors.New("want a number above 0; 1 changes no logit")
)

// refusedReason is the finish_reason of a request that never ran.
const refusedReason = "refused"

// finishReason returns the finish_reason of a request that has ended.
func (q *namedRequest) finishReason() string {
	switch {
	case q.seq == nil:
		return refusedReason
	case q.stopped > 0:
		return runner.Stopped.String()
	}
	return q.seq.Reason().String()
}

// incomplete returns a note to print after an answer that was cut off, else "".
func (q *namedRequest) incomplete() string {
	if r := q.seq.Reason(); q.stopped == 0 && (r == runner.Canceled || r == runner.Failed) {
		return fmt.Sprintf(" (incomplete: %s)", r)
	}
	return ""
}

// label returns the name as text, without quotes and with control sequences of terminals escaped.
func (q *namedRequest) label() string {
	return termsafe.Line(strings.Trim(string(q.name), `"`), termsafe.MaxLine)
}

// length returns the most tokens of the request's sequence.
func (q *namedRequest) length() int { return max(len(q.Prompt)+q.MaxNew, q.atMost) }

// bound refuses requests for more tokens than the model has positions, or than length, the value of
// --max-length; 0 means no bound. It sets atMost of requests with MaxNew 0, and refuses them if there is no
// bound. hint is advice for the error about positions.
func (g *generation) bound(positions int64, length int, hint string) {
	for i := range g.requests {
		q := &g.requests[i]
		q.boundBy(positions, "the model has %d positions", hint)
		q.boundBy(int64(length), "--max-length is %d", ": raise it, or shorten the request")
		if q.MaxNew == 0 && q.refused == nil && q.atMost == 0 {
			q.refused = errors.New("max_new is 0, but the model has no largest position: give max_new in the request, --max-new or --max-length")
		}
	}
}

// boundBy refuses a request for more than most tokens, and bounds atMost of a request with MaxNew 0, if most is
// not 0. format describes most in the error.
func (q *namedRequest) boundBy(most int64, format, hint string) {
	switch bound := fmt.Sprintf(format, most); {
	case most == 0 || q.refused != nil:
	case q.MaxNew == 0 && int64(len(q.Prompt)) >= most:
		q.refused = fmt.Errorf("the prompt has %d tokens, and %s, which leaves no room for an answer%s", len(q.Prompt), bound, hint)
	case q.MaxNew == 0 && (q.atMost == 0 || int64(q.atMost) > most):
		q.atMost = int(most)
	case q.MaxNew > 0 && int64(q.length()) > most:
		q.refused = fmt.Errorf("%d tokens of prompt and %d new ones are too many: %s%s", len(q.Prompt), q.MaxNew, bound, hint)
	}
}

// endAt adds the model's end-of-sequence ids to the stop ids of requests without ignore_eos.
func (g *generation) endAt(eos []int32) {
	for i := range g.requests {
		if q := &g.requests[i]; !q.ignoreEOS {
			q.Stop = append(slices.Clip(q.Stop), eos...)
		}
	}
}

// longerHint returns advice for sequences that are longer than a module's limit, or "" if there is no
// limit, or if the limit is the table of learned positions.
func longerHint(m *ir.Module) string {
	if b := runner.BoundsOf(m); b.Positions == 0 || b.Positions == b.Learned {
		return ""
	}
	return "; --context TOKENS serves longer sequences of a checkpoint"
}

// submit queues the requests and returns how many were accepted.
func (g *generation) submit(ctx context.Context, r *runner.Runner) (accepted int) {
	for i := range g.requests {
		q := &g.requests[i]
		if q.refused != nil {
			continue
		}
		first := true
		q.OnToken = func(id int32) {
			g.tokens++
			switch {
			case g.answer != nil:
				g.say(q, id)
			case g.single():
				if !first {
					fmt.Fprint(g.app.out, " ")
				}
				fmt.Fprint(g.app.out, id)
				first = false
			}
		}
		if q.seq, q.refused = r.Submit(ctx, q.Request); q.refused == nil {
			accepted++
		}
	}
	return accepted
}

// run steps until every request has ended, and prints their answers.
func (g *generation) run(ctx context.Context, r *runner.Runner) error {
	g.start = time.Now()
	g.live.start = g.start
	printed := 0
	printEnded := func() error {
		for ; printed < len(g.requests); printed++ {
			if q := &g.requests[printed]; q.refused == nil && q.seq.Reason() == runner.Unfinished {
				break
			}
			g.live.clear()
			if err := g.print(&g.requests[printed]); err != nil {
				return err
			}
		}
		return nil
	}
	err := printEnded() // requests that were refused
	for more := true; err == nil && more && printed < len(g.requests); {
		// The error of a step ends the requests of that step; the others continue. An
		// interrupt cancels the current step if possible, and the next step ends the
		// canceled requests, so that step needs a context that is not canceled.
		stepping := ctx
		if ctx.Err() != nil {
			stepping = context.WithoutCancel(ctx)
			g.cancel()
		}
		var failed error
		if more, failed = r.Step(stepping); failed != nil && ctx.Err() == nil {
			g.stepFailed(failed)
		}
		if err = printEnded(); err == nil && !more && printed < len(g.requests) {
			err = errors.Join(failed, fmt.Errorf("the runner has nothing left to do, but %s did not end", plural(int64(len(g.requests)-printed), "request")))
		}
	}
	if err != nil {
		return err
	}
	g.live.clear()
	took := time.Since(g.start).Seconds()
	if !g.app.json {
		fmt.Fprintf(g.app.err, "%s of %s in %.3f s: %.1f tokens/s\n", plural(g.tokens, "token"), plural(int64(len(g.requests)), "request"), took, float64(g.tokens)/took)
	}
	return context.Cause(ctx)
}

// cancel cancels all requests. The runner may not have noticed the end of their context yet.
func (g *generation) cancel() {
	for i := range g.requests {
		if s := g.requests[i].seq; s != nil {
			s.Cancel()
		}
	}
}

// stepFailed makes the command fail because a step failed. It prints the error, unless a request
// ended with the same error, which print prints.
func (g *generation) stepFailed(failed error) {
	g.failed = true
	for i := range g.requests {
		if s := g.requests[i].seq; s != nil && s.Err() != nil && errors.Is(failed, s.Err()) {
			return
		}
	}
	g.live.clear()
	fmt.Fprintf(g.app.err, "pwc: a step failed: %v\n", failed)
}

// say takes an id of the answer to --prompt, prints its text, and ends the answer at a stop string.
func (g *generation) say(q *namedRequest, id int32) {
	part := g.answer.next(id)
	if g.single() {
		fmt.Fprint(g.app.out, part)
	}
	if g.answer.stopped() {
		q.seq.Stop()
		q.stopped = g.answer.ids
	}
}

// answerText returns the text of an answer that has ended, nil without --prompt.
func (g *generation) answerText() *string {
	if g.answer == nil {
		return nil
	}
	text := g.answer.text.String()
	return &text
}

// print prints the answer of a request that has ended.
func (g *generation) print(q *namedRequest) error {
	err := q.refused
	ids, answer := q.Prompt, []int32(nil)
	if q.seq != nil {
		err, ids, answer = q.seq.Err(), q.seq.IDs(), q.seq.IDs()[len(q.Prompt):]
	}
	if q.stopped > 0 { // steps in flight may have added tokens after the stop string
		err, ids, answer = nil, ids[:len(q.Prompt)+q.stopped], answer[:q.stopped]
	}
	rest := ""
	if g.answer != nil {
		rest = g.answer.flush()
	}
	problem := ""
	if err != nil {
		problem, g.failed = err.Error(), true
	}
	// End the line of a streamed answer before anything else is printed.
	switch {
	case g.app.json:
		line, err := json.Marshal(struct {
			Request      json.RawMessage `json:"request"`
			IDs          []int32         `json:"ids"`
			Text         *string         `json:"text,omitempty"` // of the answer, with --prompt
			PromptTokens int             `json:"prompt_tokens"`  // the first of the ids
			FinishReason string          `json:"finish_reason"`
			Error        string          `json:"error,omitempty"`
		}{q.name, ids, g.answerText(), len(q.Prompt), q.finishReason(), problem})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(g.app.out, "%s\n", line); err != nil {
			return err
		}
	case q.seq == nil:
	case g.single():
		if _, err := fmt.Fprintln(g.app.out, rest+q.incomplete()); err != nil {
			return err
		}
	default:
		if _, err := fmt.Fprintf(g.app.out, "%s: %s%s\n", q.label(), idText(answer), q.incomplete()); err != nil {
			return err
		}
	}
	if err != nil && (q.seq == nil || q.seq.Reason() != runner.Canceled) { // run returns the cause of a cancellation
		fmt.Fprintf(g.app.err, "pwc: request %s: %v\n", q.label(), err)
	}
	return nil
}

func idText(ids []int32) string { return strings.Trim(fmt.Sprint(ids), "[]") }

// liveLine shows the state of a runner on a terminal.
type liveLine struct {
	statusLine
	last   time.Time
	start  time.Time
	rows   int64
	padded int64
}

func newLiveLine(a *app, many bool) *liveLine {
	// The line would overwrite tokens that are streamed to the same terminal.
	if many || terminalWidth(a.out) == 0 {
		return &liveLine{statusLine: statusLine{w: a.screen}}
	}
	return &liveLine{}
}

func (l *liveLine) step(s *runner.Step, tokens int64) {
	l.rows, l.padded = l.rows+int64(s.Rows), l.padded+s.Size-int64(s.Rows)
	now := time.Now()
	if s.Rows == 0 || now.Sub(l.last) < 100*time.Millisecond {
		return
	}
	l.last = now
	l.say("%.1f tokens/s  %d running, %d waiting  %s %d (%d rows, %.0f%% padding so far)  KV %d of %d blocks",
		float64(tokens)/now.Sub(l.start).Seconds(), s.Running, s.Waiting, s.Mode, s.Size, s.Rows, 100*float64(l.padded)/float64(max(1, l.rows+l.padded)), s.UsedBlocks, s.Blocks)
}
