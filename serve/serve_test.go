package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"go.uber.org/goleak"

	attnhost "pwc/attention/host"
	"pwc/chat"
	"pwc/compile/host"
	"pwc/frontend/hf"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runner"
	"pwc/runner/metrics"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
	"pwc/safetensors"
	"pwc/tokenizer"
)

// The goroutine of regexp2's clock ends some time after the last match, so goleak ignores it.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/dlclark/regexp2.runClock"))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// template writes all texts of a conversation.
const template = `{%- if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no such role') }}{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}`

// engine is a runner of a small model in f32, which runs until the test ends.
func engine(t testing.TB, o runner.Options) *runner.Runner {
	t.Helper()
	dir := filepath.Join("..", "testdata", "hf", "llama")
	src, err := safetensors.OpenDir(dir)
	must(t, err)
	m, err := hf.Builtin().ImportDir(dir, hf.Options{DType: dtype.F32})
	must(t, err)
	dev := hostdev.Open(hostdev.Options{Workers: 2})
	if o.Blocks == 0 {
		o.Blocks = 256
	}
	o.Backend = piecewise.Options{Device: dev, Ops: []device.Op{attnhost.New(dev)}, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}}
	r, err := runner.New(context.Background(), m.Module, o)
	must(t, err)
	must(t, r.Load(context.Background(), src))
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(context.Background()) }) // ends with Close
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), dev.Close(), src.Close()); err != nil {
			t.Error(err)
		}
		running.Wait()
	})
	return r
}

// newServer returns a server with a real listener, by default of the model of engine.
func newServer(t testing.TB, change func(*Options)) (*Server, *httptest.Server) {
	t.Helper()
	text, err := tokenizer.Open(filepath.Join("..", "testdata", "tokenizers", "bytes"))
	must(t, err)
	tmpl, err := chat.Parse(template, nil)
	must(t, err)
	o := Options{Model: "tiny", Tokenizer: text, Template: tmpl, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	if o.Runner == nil {
		o.Runner = engine(t, runner.Options{MaxSequences: 8, MaxTokens: 64, MaxLength: 200})
	}
	s, err := New(o)
	must(t, err)
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		h.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s, h
}

// post sends a body and returns the status and the answer.
func post(t testing.TB, h *httptest.Server, path, body string) (int, string) {
	t.Helper()
	r, err := http.Post(h.URL+path, "application/json", strings.NewReader(body))
	must(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	must(t, err)
	return r.StatusCode, string(b)
}

// alone returns the greedy answer of the runner, without the server.
func alone(t testing.TB, s *Server, prompt string, n int) string {
	t.Helper()
	ids := s.o.Tokenizer.Encode(prompt, true)
	q, err := s.o.Runner.Submit(context.Background(), runner.Request{Prompt: ids, MaxNew: n})
	must(t, err)
	all, err := q.Wait(context.Background())
	must(t, err)
	return s.o.Tokenizer.Decode(all[len(ids):], false)
}

// New refuses options that are missing or negative, all of them in one error.
func TestOptions(t *testing.T) {
	_, err := New(Options{Model: "tiny", MaxRequests: -1, Timeout: -time.Second})
	if want := "serve: options: MaxRequests is negative, Runner is missing, Timeout is negative, Tokenizer is missing"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// The official client gets the runner's tokens from both APIs, as one answer and as a stream.
func TestOfficialClient(t *testing.T) {
	s, h := newServer(t, func(o *Options) { o.Key = "secret" })
	ctx := context.Background()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c := openai.NewClient(option.WithBaseURL(h.URL+"/v1"), option.WithAPIKey("secret"), option.WithMaxRetries(0), option.WithHTTPClient(&http.Client{Transport: transport}))

	want := alone(t, s, "abc", 12)
	whole, err := c.Completions.New(ctx, openai.CompletionNewParams{Model: "tiny", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("abc")}, MaxTokens: openai.Int(12), Temperature: openai.Float(0), Echo: openai.Bool(true)})
	must(t, err)
	if got := whole.Choices[0]; got.Text != "abc"+want || got.FinishReason != "length" || whole.Usage.PromptTokens != 3 || whole.Usage.CompletionTokens != 12 || whole.Usage.TotalTokens != 15 {
		t.Errorf("%+v, want %q", whole, want)
	}
	stream := c.Completions.NewStreaming(ctx, openai.CompletionNewParams{Model: "tiny", Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"abc", "xyz"}}, MaxTokens: openai.Int(12), Temperature: openai.Float(0), StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}})
	texts, ends, total := map[int64]string{}, 0, int64(0)
	for stream.Next() {
		for _, choice := range stream.Current().Choices {
			texts[choice.Index] += choice.Text
			if choice.FinishReason == "length" {
				ends++
			}
		}
		total += stream.Current().Usage.CompletionTokens
	}
	must(t, stream.Err())
	if other := alone(t, s, "xyz", 12); texts[0] != want || texts[1] != other || ends != 2 || total != 24 {
		t.Errorf("%v, %d ends, %d tokens, want %q and %q", texts, ends, total, want, other)
	}

	said := alone(t, s, "system:be kind;user:hi;", 9)
	messages := []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("be kind"), openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{openai.TextContentPart("h"), openai.TextContentPart("i")})}
	answer, err := c.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: "tiny", Messages: messages, MaxCompletionTokens: openai.Int(9), Temperature: openai.Float(0)})
	must(t, err)
	if m := answer.Choices[0].Message; m.Content != said || string(m.Role) != "assistant" || answer.Usage.CompletionTokens != 9 {
		t.Errorf("%+v, want %q", answer, said)
	}
	chunks := c.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{Model: "tiny", Messages: messages, MaxTokens: openai.Int(9), Temperature: openai.Float(0)})
	var all openai.ChatCompletionAccumulator
	for chunks.Next() {
		if !all.AddChunk(chunks.Current()) {
			t.Error("a chunk does not belong to the answer")
		}
	}
	must(t, chunks.Err())
	if len(all.Choices) != 1 || all.Choices[0].Message.Content != said || all.Choices[0].FinishReason != "length" {
		t.Errorf("%+v, want %q", all.Choices, said)
	}
	models, err := c.Models.List(ctx)
	must(t, err)
	if len(models.Data) != 1 || models.Data[0].ID != "tiny" {
		t.Errorf("%+v", models)
	}
	if _, err := c.Models.Get(ctx, "other"); err == nil {
		t.Error("a model that is not served was found")
	}
	wrong := openai.NewClient(option.WithBaseURL(h.URL+"/v1"), option.WithAPIKey("guess"), option.WithMaxRetries(0), option.WithHTTPClient(&http.Client{Transport: transport}))
	var e *openai.Error
	if _, err := wrong.Models.List(ctx); !errors.As(err, &e) || e.StatusCode != http.StatusUnauthorized || e.Code != "invalid_api_key" {
		t.Errorf("a wrong key: %v", err)
	}
}

// Each choice has its own seed, and the same seed gives the same answers while other requests run.
func TestChoicesAndSeeds(t *testing.T) {
	_, h := newServer(t, nil)
	texts := func(body string) []string {
		status, answer := post(t, h, "/v1/completions", body)
		var a completionAnswer
		if status != http.StatusOK || json.Unmarshal([]byte(answer), &a) != nil {
			t.Fatalf("%d: %s", status, answer)
		}
		var out []string
		for _, c := range a.Choices {
			out = append(out, c.Text)
		}
		return out
	}
	body := `{"prompt": "abc", "max_tokens": 12, "temperature": 1, "seed": 7, "n": 3}`
	first := texts(body)
	var again []string
	var others sync.WaitGroup
	others.Go(func() { texts(`{"prompt": ["q", "rr"], "max_tokens": 30, "n": 2}`) })
	again = texts(body)
	others.Wait()
	if strings.Join(first, "|") != strings.Join(again, "|") {
		t.Errorf("%q and %q of one seed", first, again)
	}
	if len(first) != 3 || first[0] == first[1] || first[1] == first[2] || first[0] == first[2] {
		t.Errorf("choices %q", first)
	}
}

// Options that change logits reach the runner: a large bias, or a single allowed token, leaves only
// that token; penalties limit how often a token repeats.
func TestAdjustedLogits(t *testing.T) {
	_, h := newServer(t, nil)
	for more, want := range map[string]string{
		`"logit_bias": {"113": 100}`: "qqqqqq",
		`"allowed_token_ids": [114]`: "rrrrrr",
		`"allowed_token_ids": [113, 114, 115], "presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 1.5, "min_p": 0.01, "min_tokens": 6`: "",
	} {
		status, answer := post(t, h, "/v1/completions", `{"prompt": "abc", "max_tokens": 6, "temperature": 0, `+more+`}`)
		var a completionAnswer
		if status != http.StatusOK || json.Unmarshal([]byte(answer), &a) != nil {
			t.Fatalf("%s: %d: %s", more, status, answer)
		}
		text := a.Choices[0].Text
		if want != "" && text != want {
			t.Errorf("%s: %q, want %q", more, text, want)
		}
		if want == "" && (len(text) != 6 || strings.Trim(text, "qrs") != "" || max(strings.Count(text, "q"), strings.Count(text, "r"), strings.Count(text, "s")) > 3) {
			t.Errorf("%s: %q, want six of q, r and s, each at most three times", more, text)
		}
	}
}

// A stop string that spans several tokens ends the answer before the string, and ends the sequence early:
// at most 60 of 150 tokens are generated.
func TestStopStrings(t *testing.T) {
	s, h := newServer(t, nil)
	text := alone(t, s, "abc", 40)
	runes := []rune(text)
	stop := string(runes[10:13])
	want := text[:strings.Index(text, stop)]
	quoted, err := json.Marshal([]string{"never there", stop})
	must(t, err)
	for _, stream := range []string{"false", "true"} {
		status, answer := post(t, h, "/v1/completions", `{"prompt": "abc", "max_tokens": 150, "temperature": 0, "stop": `+string(quoted)+`, "stream": `+stream+`}`)
		got, finish := "", ""
		for line := range strings.Lines(answer) {
			line = strings.TrimPrefix(strings.TrimSpace(line), "data: ")
			var a completionAnswer
			if json.Unmarshal([]byte(line), &a) == nil && len(a.Choices) == 1 {
				got += a.Choices[0].Text
				if a.Choices[0].Finish != nil {
					finish = *a.Choices[0].Finish
				}
			}
		}
		if status != http.StatusOK || got != want || finish != "stop" {
			t.Errorf("stream %s: %d, %q ends with %s, want %q", stream, status, got, finish, want)
		}
	}
	if ends := s.o.Runner.Stats().Finished; ends["stop"] != 2 || ends["canceled"] != 0 {
		t.Errorf("the runner counts ends %v, want 2 by stop", ends)
	}
	if n := s.o.Runner.Stats().Generated; n > 40+2*60 {
		t.Errorf("%d tokens were generated, want at most 40 without a stop string and 60 for each request with one", n)
	}
}

// A stream has an event for each token, also for tokens without text: parts of characters, and the text
// of a possible tool call.
func TestEventForEachToken(t *testing.T) {
	_, h := newServer(t, nil)
	const greedily = `"max_tokens": 40, "temperature": 0, "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true}`
	const completions, chats = "/v1/completions", "/v1/chat/completions"
	for _, c := range []struct{ path, body string }{
		{completions, `{"prompt": "abc", "stop": ["never there"], `},
		{chats, `{"messages": [{"role": "user", "content": "abc"}], "allowed_token_ids": [226], `},               // the first byte of a character
		{chats, `{"messages": [{"role": "user", "content": "abc"}], "allowed_token_ids": [60], "tools": [{}], `}, // "<"
	} {
		status, answer := post(t, h, c.path, c.body+greedily+"}")
		tokens, empty, said, ends := 0, 0, 0, 0
		for line := range strings.Lines(answer) {
			data, ok := strings.CutPrefix(line, "data: ")
			var a struct {
				Choices []struct {
					Text  string
					Delta struct{ Role, Content string }
					End   *string `json:"finish_reason"`
				}
				Usage *usage
			}
			if !ok || json.Unmarshal([]byte(data), &a) != nil {
				continue
			}
			if a.Usage != nil {
				said = a.Usage.Completion
			}
			for _, c := range a.Choices {
				switch {
				case c.End != nil:
					ends++
				case c.Delta.Role == "":
					tokens++
					if c.Text+c.Delta.Content == "" {
						empty++
					}
				}
			}
		}
		if status != http.StatusOK || said != 40 || ends != 1 || empty == 0 || tokens < 40 || tokens > 41 { // the last event may have text that was held back
			t.Errorf("%s: %d: %d events, %d of them without text, for %d tokens and %d ends\n%s", c.body, status, tokens, empty, said, ends, answer)
		}
	}
}

// The metrics with vLLM's names count the requests and their tokens.
func TestMetrics(t *testing.T) {
	c := metrics.New("pwc")
	c.SetModel("tiny")
	r := engine(t, runner.Options{MaxSequences: 8, MaxTokens: 64, MaxLength: 200, Observer: c})
	_, h := newServer(t, func(o *Options) { o.Runner, o.Metrics = r, c })
	for _, body := range []string{
		`{"prompt": "abc", "max_tokens": 5, "ignore_eos": true}`,
		`{"prompt": "abcdefg", "max_tokens": 7, "n": 2, "ignore_eos": true}`,
		`{"prompt": "a", "max_tokens": 100, "allowed_token_ids": [113], "stop": ["qqqq"]}`,
	} {
		if status, answer := post(t, h, "/v1/completions", body); status != http.StatusOK {
			t.Fatalf("%d: %s", status, answer)
		}
	}
	// The answer can be sent before the observer is told of the step, so wait for the gauges.
	text := ""
	await(t, "the step of the last request", func() bool {
		a, err := http.Get(h.URL + "/metrics")
		must(t, err)
		defer a.Body.Close()
		b, err := io.ReadAll(a.Body)
		must(t, err)
		text = string(b)
		return strings.Contains(text, "vllm:num_requests_running{model_name=\"tiny\"} 0\n") &&
			strings.Contains(text, "vllm:request_generation_tokens_count{model_name=\"tiny\"} 4\n")
	})
	for _, want := range []string{
		`vllm:prompt_tokens_total{model_name="tiny"} 18`,
		`vllm:request_success_total{model_name="tiny",finished_reason="length"} 3`,
		`vllm:request_success_total{model_name="tiny",finished_reason="stop"} 1`,
		`vllm:request_success_total{model_name="tiny",finished_reason="abort"} 0`,
		`vllm:time_to_first_token_seconds_count{model_name="tiny"} 4`,
		`vllm:e2e_request_latency_seconds_count{model_name="tiny"} 4`,
		`vllm:request_queue_time_seconds_count{model_name="tiny"} 4`,
		`vllm:request_prompt_tokens_sum{model_name="tiny"} 18`,
		`vllm:request_prompt_tokens_bucket{model_name="tiny",le="5"} 2`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
}

// The server refuses unknown fields, unsupported options and invalid values by name. One error names all
// unknown fields, or all unsupported options.
func TestRefusals(t *testing.T) {
	_, h := newServer(t, func(o *Options) { o.MaxBody = 1000 })
	const completions, chats = "/v1/completions", "/v1/chat/completions"
	for _, c := range []struct {
		path, body string
		status     int
		want       []string
	}{
		{completions, `{"prompt": "a", "foo": 1, "bar": 2}`, 400, []string{`"bar"`, `"foo"`}},
		{completions, `{"prompt": "a", "Prompt": "b"}`, 400, []string{`"Prompt"`}},
		{completions, `{"prompt": "a", "prompt": "b"}`, 400, []string{"prompt occurs twice"}},
		{completions, `{"prompt": "a", "suffix": "b", "best_of": 3}`, 400, []string{"suffix", "best_of"}},
		{completions, `{"prompt": "a", "stream_options": {"include_usage": true}}`, 400, []string{"stream_options without stream"}},
		{completions, `{"prompt": "a", "temperature": 3}`, 400, []string{"temperature"}},
		{completions, `{"prompt": "a", "top_p": 0}`, 400, []string{"top_p"}},
		{completions, `{"prompt": "a", "presence_penalty": 3}`, 400, []string{"presence_penalty"}},
		{completions, `{"prompt": "a", "logit_bias": {"7": 101}}`, 400, []string{"logit_bias", "101"}},
		{completions, `{"prompt": "a", "logit_bias": {"400": 1}}`, 400, []string{"logit_bias has id 400"}},
		{completions, `{"prompt": "a", "min_p": 2}`, 400, []string{"min_p 2"}},
		{completions, `{"prompt": "a", "min_tokens": -1}`, 400, []string{"min_tokens is -1: it must be at least 0, and at most max_tokens 16"}},
		{completions, `{"prompt": "a", "repetition_penalty": -1}`, 400, []string{"repetition_penalty -1 is not in [0.01, 100]"}},
		{completions, `{"prompt": "a", "repetition_penalty": 0}`, 400, []string{"repetition_penalty 0 is not in [0.01, 100]"}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "repetition_penalty": 0}`, 400, []string{"repetition_penalty 0 is not in [0.01, 100]"}},
		{completions, `{"prompt": "a", "allowed_token_ids": [400]}`, 400, []string{"allowed_token_ids has id 400"}},
		{completions, `{"prompt": "a", "allowed_token_ids": []}`, 400, []string{"allowed_token_ids is empty, so no token can be chosen: without the field all are allowed"}},
		{completions, `{"prompt": "a", "top_k": -2}`, 400, []string{"top_k"}},
		{completions, `{"prompt": "a", "n": 0}`, 400, []string{"n: 0"}},
		{completions, `{"prompt": "a", "stop": 1}`, 400, []string{"stop"}},
		{completions, `{"prompt": "a", "stop": [""]}`, 400, []string{"stop"}},
		{completions, `{"prompt": "a", "max_tokens": 0}`, 400, []string{"max_tokens"}},
		{completions, `{"prompt": "a", "max_tokens": 100000}`, 400, []string{"max_tokens 100000"}},
		{completions, `{"prompt": "a", "max_tokens": "b"}`, 400, []string{"max_tokens: a JSON string, want a whole number"}},
		{completions, `{"prompt": "a", "temperature": "b"}`, 400, []string{"temperature: a JSON string, want a number"}},
		{completions, `{"prompt": "a", "stream_options": 1}`, 400, []string{"stream_options: a JSON number, want an object"}},
		{completions, `{"prompt": "a", "stream": true, "stream_options": {"include_usage": 1}}`, 400, []string{"stream_options.include_usage: a JSON number, want true or false"}},
		{completions, `{"prompt": "a", "stop_token_ids": 1}`, 400, []string{"stop_token_ids: a JSON number, want a list"}},
		{completions, `{"prompt": "a", "stop_token_ids": [7, null]}`, 400, []string{"stop_token_ids[1] is null, want an id"}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "allowed_token_ids": [null]}`, 400, []string{"allowed_token_ids[0] is null"}},
		{completions, `{"prompt": [97, null]}`, 400, []string{"prompt[1] is null, want text, an id or a list of ids"}},
		{completions, `{"prompt": ["a", null]}`, 400, []string{"prompt[1] is null"}},
		{completions, `{"prompt": [[97], null]}`, 400, []string{"prompt[1] is null, want text, an id or a list of ids"}},
		{completions, `{"prompt": [[97], [98, 99, null]]}`, 400, []string{"prompt[1][2] is null, want an id"}},
		{completions, `{"prompt": null}`, 400, []string{"prompt is missing"}},
		{"/detokenize", `{"tokens": [97, null]}`, 400, []string{"tokens[1] is null"}},
		{completions, `{"prompt": "a", "stream": "b"}`, 400, []string{"stream: a JSON string, want true or false"}},
		{completions, `{"prompt": "a", "user": 1}`, 400, []string{"user: a JSON number, want a string"}},
		{chats, `{"messages": [{"role": "user", "content": [1]}]}`, 400, []string{"messages[0]: content: a JSON number, want an object"}},
		{chats, `{"messages": [{"role": "user", "tool_calls": 1}]}`, 400, []string{"messages[0]: tool_calls: a JSON number, want a list"}},
		{completions, `{"prompt": ""}`, 400, []string{"at least one id"}},
		{completions, `{"prompt": []}`, 400, []string{"prompt 0: want at least one id"}},
		{completions, `{"prompt": [400]}`, 400, []string{"256"}},
		{completions, `{"prompt": {}}`, 400, []string{"prompt"}},
		{completions, `{}`, 400, []string{"prompt is missing"}},
		{completions, `[]`, 400, []string{"not a JSON object"}},
		{completions, `{`, 400, []string{"not JSON"}},
		{completions, `{"prompt": "` + strings.Repeat("a", 1000) + `"}`, 413, []string{"1000 bytes"}},
		{completions, `{"prompt": "a", "model": "other"}`, 404, []string{`"other"`, `"tiny"`}},
		{chats, `{"messages": []}`, 400, []string{"messages"}},
		{chats, `{"messages": [{"content": "a"}]}`, 400, []string{"messages[0]", "role"}},
		{chats, `{"messages": [{"role": "user", "role": "system"}]}`, 400, []string{"messages[0].role occurs twice"}},
		{chats, `{"messages": ["hi"]}`, 400, []string{"messages[0]: want an object"}},
		{chats, `{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}`, 400, []string{"image_url"}},
		{chats, `{"messages": [{"role": "bad", "content": "a"}]}`, 400, []string{"no such role"}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": 1e400}}`, 400, []string{"the conversation is invalid: x: "}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "tools": ` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`, 400, []string{"tools: nested more than 100 deep"}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}, "top_logprobs": 2}`, 400, []string{"unsupported: response_format, top_logprobs without logprobs"}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "logprobs": true, "top_logprobs": 21}`, 400, []string{"top_logprobs: 21"}},
		{completions, `{"prompt": "a", "logprobs": -1}`, 400, []string{"logprobs: -1"}},
		{completions, `{"prompt": "a", "logprobs": 1, "echo": true, "stream": true}`, 400, []string{"logprobs with echo and stream"}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "tools": [{}], "tool_choice": "required"}`, 400, []string{"tool_choice", "required"}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "tools": {}}`, 400, []string{"tools: a JSON object, want a list"}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "max_tokens": 0}`, 400, []string{"max_tokens: 0"}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 0}`, 400, []string{"max_completion_tokens: 0"}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "max_completion_tokens": 3}`, 400, []string{"differ"}},
		{chats, `{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}`, 400, []string{"arguments"}},
		{completions, `{"prompt": "a", "stream": true, "stream_options": {"include_usage": true, "b": 1, "Include_Usage": false}, "c": 1}`, 400, []string{`"c", "stream_options.Include_Usage", "stream_options.b"`}},
		{completions, `{"prompt": "a", "stream": true, "stream_options": {"include_usage": true, "include_usage": false}}`, 400, []string{"stream_options.include_usage occurs twice"}},
		{completions, `{"prompt": "a", "logit_bias": {"7": 1, "7": 2}}`, 400, []string{"logit_bias.7 occurs twice"}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": 1, "x": 2}}`, 400, []string{"chat_template_kwargs.x occurs twice"}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "text", "strict": true}}`, 400, []string{`"response_format.strict"`}},
		{chats, `{"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}`, 400, []string{"unsupported: response_format"}},
		{chats, `{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache": 1}]}]}`, 400, []string{`"messages[0].content[1].cache"`}},
		{chats, `{"messages": [{"role": "assistant", "tool_calls": [{"index": 0, "id": "1", "custom": {}, "function": {"name": "f", "arguments": "{}", "a": 1}}]}]}`, 400, []string{`"messages[0].tool_calls[0].custom", "messages[0].tool_calls[0].function.a"`}},
		{"/detokenize", `{"tokens": [-1]}`, 400, []string{"tokens[0]"}},
		{"/nothing", `{}`, 404, []string{"/nothing"}},
	} {
		status, answer := post(t, h, c.path, c.body)
		var e struct{ Error Error }
		if status != c.status || json.Unmarshal([]byte(answer), &e) != nil || e.Error.Message == "" {
			t.Errorf("%.80s: %d %s, want %d", c.body, status, answer, c.status)
		}
		for _, want := range c.want {
			if !strings.Contains(e.Error.Message, want) || strings.ContainsAny(e.Error.Param, ". ") || strings.Contains(e.Error.Message, "sampling") {
				t.Errorf("%.80s: %q does not name %q, or %q is not a field of the API", c.body, e.Error.Message, want, e.Error.Param)
			}
		}
	}
	const echoed = `{"messages": [{"role": "assistant", "reasoning": "r", "content": "", "tool_calls": [{"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}], "max_tokens": 1}`
	if status, answer := post(t, h, chats, echoed); status != http.StatusOK {
		t.Errorf("a call of an earlier answer: %d %s", status, answer)
	}
	const noTools = `{"messages": [{"role": "user", "content": "a"}], "tools": [ ], "parallel_tool_calls": false, "max_tokens": 1}`
	if status, answer := post(t, h, chats, noTools); status != http.StatusOK {
		t.Errorf("an empty list of tools with a space in it: %d %s", status, answer)
	}
	if _, answer := post(t, h, "/tokenize", `{"prompt": "abc"}`); !strings.Contains(answer, `"tokens":[97,98,99],"count":3`) {
		t.Errorf("tokenize: %s", answer)
	}
	if _, answer := post(t, h, "/detokenize", `{"tokens": [97, 98]}`); answer != "{\"prompt\":\"ab\"}\n" {
		t.Errorf("detokenize: %s", answer)
	}
}

// A disconnect ends the requests of a client. A client that reads nothing delays no other. Requests
// above MaxRequests are refused. A drain waits, and cancels requests when its context ends.
func TestLifecycle(t *testing.T) {
	s, h := newServer(t, func(o *Options) { o.MaxRequests, o.WriteTimeout = 2, time.Minute })
	long := `{"prompt": "abc", "max_tokens": 190, "temperature": 0, "stream": true, "ignore_eos": true}`
	open := func(ctx context.Context) *http.Response {
		q, err := http.NewRequestWithContext(ctx, "POST", h.URL+"/v1/completions", strings.NewReader(long))
		must(t, err)
		r, err := http.DefaultClient.Do(q)
		must(t, err)
		return r
	}
	idle := func() bool { st := s.o.Runner.Stats(); return st.Running+st.Waiting == 0 && st.UsedBlocks == 0 }
	await(t, "a request that ends because its client disconnects, before it has all tokens", func() bool {
		ctx, cancel := context.WithCancel(context.Background())
		gone := open(ctx)
		cancel()
		gone.Body.Close()
		await(t, "the end of the request of a client that disconnected", idle)
		return s.o.Runner.Stats().Finished["canceled"] > 0
	})

	stalled := open(context.Background()) // reads nothing
	if status, answer := post(t, h, "/v1/completions", `{"prompt": "q", "max_tokens": 3}`); status != http.StatusOK {
		t.Errorf("while another client stalls: %d %s", status, answer)
	}
	await(t, "the end of the request of a client that stalls", idle) // the buffers of the connection hold its answer
	stalled.Body.Close()
	await(t, "the end of all requests", func() bool { return len(s.slots) == 0 })

	held := make([]func(), 2)
	for i := range held {
		_, end, err := s.begin(httptest.NewRequest("POST", "/", nil))
		must(t, err)
		held[i] = end
	}
	if status, answer := post(t, h, "/v1/completions", long); status != http.StatusTooManyRequests {
		t.Errorf("a request above the limit: %d %s", status, answer)
	}
	for _, end := range held {
		end()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	request, end, err := s.begin(httptest.NewRequest("POST", "/", nil))
	must(t, err)
	go func() { <-request.Done(); end() }()
	if err := s.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a drain with a request that does not end: %v", err)
	}
	if status, _ := post(t, h, "/v1/completions", long); status != http.StatusServiceUnavailable {
		t.Errorf("a request while the server drains: %d", status)
	}
	r, err := http.Get(h.URL + "/health/ready")
	must(t, err)
	r.Body.Close()
	if r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("ready while the server drains: %d", r.StatusCode)
	}
	must(t, s.Drain(context.Background()))
}

// deadlineWriter records the write deadline.
type deadlineWriter struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

// SetWriteDeadline implements the interface of http.ResponseController.
func (w *deadlineWriter) SetWriteDeadline(t time.Time) error { w.deadline = t; return nil }

// WriteTimeout bounds the write of each kind of answer: whole and streamed, of other endpoints, and of errors.
func TestWriteTimeout(t *testing.T) {
	s, _ := newServer(t, func(o *Options) { o.WriteTimeout, o.Metrics = time.Hour, metrics.New("pwc") })
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/v1/completions", `{"prompt": "a", "max_tokens": 2}`, 200},
		{"POST", "/v1/completions", `{"prompt": "a", "max_tokens": 2, "stream": true}`, 200},
		{"POST", "/v1/completions", `{"prompt": "a", "max_tokens": 0}`, 400},
		{"POST", "/tokenize", `{"prompt": "a"}`, 200},
		{"POST", "/detokenize", `{"tokens": [97]}`, 200},
		{"GET", "/v1/models", "", 200},
		{"GET", "/live", "", 200},
		{"GET", "/health/ready", "", 200},
		{"GET", "/metrics", "", 200},
		{"GET", "/", "", 200},
		{"GET", "/nothing", "", 404},
		{"GET", "//live", "", 307}, // an answer of http.ServeMux
	} {
		w := &deadlineWriter{ResponseRecorder: httptest.NewRecorder()}
		before := time.Now()
		s.ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		if left := w.deadline.Sub(before); w.Code != c.status || left < time.Hour || left > 2*time.Hour {
			t.Errorf("%s %s %s: status %d, deadline after %v, want %d and 1 hour", c.method, c.path, c.body, w.Code, left, c.status)
		}
	}
}

// Over HTTP/2, neither a token nor a request's body that takes longer than WriteTimeout resets the stream.
func TestWriteTimeoutHTTP2(t *testing.T) {
	const limit = 300 * time.Millisecond
	s, _ := newServer(t, func(o *Options) { o.WriteTimeout = limit })
	mux := http.NewServeMux()
	mux.Handle("/tokenize", s)
	mux.HandleFunc("/events", func(w http.ResponseWriter, _ *http.Request) {
		e := events{w: w, server: s}
		e.send(1)
		time.Sleep(2 * limit)
		e.send(2)
		e.done()
	})
	h := httptest.NewUnstartedServer(mux)
	h.EnableHTTP2 = true
	h.StartTLS()
	defer h.Close()
	body, late := io.Pipe()
	go func() {
		time.Sleep(2 * limit)
		_, _ = io.WriteString(late, `{"prompt": "a"}`)
		_ = late.Close()
	}()
	for _, c := range []struct {
		path string
		body io.Reader
		want string
	}{
		{"/tokenize", body, `{"tokens":[97],"count":1,"max_model_len":200}` + "\n"},
		{"/events", http.NoBody, "data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"},
	} {
		r, err := h.Client().Post(h.URL+c.path, "application/json", c.body)
		must(t, err)
		got, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || string(got) != c.want || r.ProtoMajor != 2 {
			t.Errorf("%s: HTTP/%d, %q, %v, want %q over HTTP/2", c.path, r.ProtoMajor, got, err, c.want)
		}
	}
}

// slowWriter waits for the end of a context before it writes. Its writes fail with err, if that is set.
type slowWriter struct {
	*httptest.ResponseRecorder
	until context.Context
	err   error
}

func (w *slowWriter) Write(b []byte) (int, error) {
	<-w.until.Done()
	if w.err != nil {
		return 0, w.err
	}
	return w.ResponseRecorder.Write(b)
}

// A request that the server ends is logged as a warning, also if its answer is a stream. A request whose client
// disconnects, or does not take the answer, is logged at a lower level.
func TestFailuresAreLogged(t *testing.T) {
	var lines bytes.Buffer
	first, _ := newServer(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&lines, nil)) })
	for _, stream := range []string{"false", "true"} {
		for _, c := range []struct {
			name    string
			timeout time.Duration
			gone    bool // the client disconnects
			write   error
			warning bool
		}{
			{name: "timeout", timeout: time.Millisecond, warning: true},
			{name: "disconnect", timeout: time.Minute, gone: true},
			{name: "failed write", timeout: time.Minute, write: errors.New("reset by peer")},
		} {
			if c.write != nil && stream == "false" {
				continue // net/http hides failed writes of whole answers
			}
			o := first.o
			o.Timeout = c.timeout
			s, err := New(o)
			must(t, err)
			ctx, cancel := context.WithCancel(context.Background())
			until, end := context.WithTimeout(context.Background(), 10*time.Millisecond)
			if c.gone {
				cancel()
				until = ctx
			}
			lines.Reset()
			w := &slowWriter{httptest.NewRecorder(), until, c.write}
			q := httptest.NewRequestWithContext(ctx, "POST", "/v1/completions", strings.NewReader(`{"prompt": "a", "max_tokens": 190, "n": 8, "ignore_eos": true, "stream": `+stream+`}`))
			s.ServeHTTP(w, q)
			cancel()
			end()
			if got := strings.Contains(lines.String(), "level=WARN"); got != c.warning || !strings.Contains(lines.String(), "path=/v1/completions") {
				t.Errorf("stream %s, %s: a warning: %v, want %v: %s", stream, c.name, got, c.warning, &lines)
			}
		}
	}
}

// await polls a condition for a minute. A request ends only at the next step.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited a minute in vain for %s", what)
		}
	}
}

// Requests above the length of the queue get 429, and requests to a runner that drains 503.
func TestRunnerRefuses(t *testing.T) {
	r := engine(t, runner.Options{MaxSequences: 1, MaxTokens: 64, MaxLength: 200, MaxQueue: 1})
	_, h := newServer(t, func(o *Options) { o.Runner = r })
	check := func(body string, want int, code string) {
		t.Helper()
		if status, answer := post(t, h, "/v1/completions", body); status != want || !strings.Contains(answer, `"code":"`+code+`"`) {
			t.Errorf("%s: %d %s, want %d %s", body, status, answer, want, code)
		}
	}
	check(`{"prompt": "abc", "max_tokens": 20, "n": 8, "ignore_eos": true}`, http.StatusTooManyRequests, "queue_full")
	must(t, r.Drain(t.Context()))
	check(`{"prompt": "abc", "max_tokens": 2}`, http.StatusServiceUnavailable, "draining")
}

// An answer has the id of its request in the header and in the body. If the client gives no id or an
// invalid one, the server makes one.
func TestRequestIDs(t *testing.T) {
	var lines bytes.Buffer
	_, h := newServer(t, func(o *Options) { o.Logger = slog.New(slog.NewJSONHandler(&lines, nil)) })
	for given, kept := range map[string]bool{"mine-1": true, "": false, strings.Repeat("a", 200): false, "a b": false} {
		q, err := http.NewRequest("POST", h.URL+"/v1/completions", strings.NewReader(`{"prompt": "a", "max_tokens": 1}`))
		must(t, err)
		q.Header.Set("X-Request-Id", given)
		r, err := http.DefaultClient.Do(q)
		must(t, err)
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		id := r.Header.Get("X-Request-Id")
		if kept != (id == given) || id == "" || !strings.Contains(string(b), "cmpl-"+id) {
			t.Errorf("%q became %q: %s", given, id, b)
		}
	}
	if !strings.Contains(lines.String(), `"id":"mine-1"`) {
		t.Errorf("the log: %s", &lines)
	}
}

// FuzzBody: no body of a request gives a status of 500 or more, and an answer of type JSON is valid JSON.
func FuzzBody(f *testing.F) {
	s, _ := newServer(f, nil)
	for _, body := range []string{`{"prompt": "abc", "max_tokens": 2, "stop": ["a"], "n": 2, "stream": true}`, `{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "tools": [{}]}`, `{"tokens": [1]}`, `[`} {
		for i := range 4 {
			f.Add(i, body)
		}
	}
	paths := []string{"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}
	f.Fuzz(func(t *testing.T, path int, body string) {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("POST", paths[uint(path)%4], strings.NewReader(body)))
		if w.Code >= 500 {
			t.Errorf("%d: %s", w.Code, w.Body)
		}
		if kind := w.Header().Get("Content-Type"); kind == "application/json" && !json.Valid(w.Body.Bytes()) {
			t.Errorf("invalid JSON: %q", w.Body)
		}
	})
}
