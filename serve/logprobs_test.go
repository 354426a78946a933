package serve

import (
	"context"
	"math"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// The official client reads log probabilities of answers and of prompts. A greedy token is the most
// probable one, its log probability is at most 0, and those of the top tokens do not rise. A stream has
// the same tokens with the same log probabilities as an answer without streaming. If the answer's text
// is part of a prompt, its log probabilities are the same within 1e-4. The test compares them up to the
// first token whose text does not encode to it again.
func TestLogprobs(t *testing.T) {
	_, h := newServer(t, func(*Options) {})
	ctx := context.Background()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c := openai.NewClient(option.WithBaseURL(h.URL+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0), option.WithHTTPClient(&http.Client{Transport: transport}))

	messages := []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")}
	q := openai.ChatCompletionNewParams{Model: "tiny", Messages: messages, MaxTokens: openai.Int(9), Temperature: openai.Float(0), Logprobs: openai.Bool(true), TopLogprobs: openai.Int(3)}
	answer, err := c.Chat.Completions.New(ctx, q)
	must(t, err)
	content := answer.Choices[0].Logprobs.Content
	if len(content) != 9 {
		t.Fatalf("%d tokens have log probabilities, want 9", len(content))
	}
	for i, l := range content {
		if len(l.TopLogprobs) != 3 || l.TopLogprobs[0].Token != l.Token || l.TopLogprobs[0].Logprob != l.Logprob || l.Logprob > 0 || l.TopLogprobs[1].Logprob > l.Logprob || l.TopLogprobs[2].Logprob > l.TopLogprobs[1].Logprob {
			t.Errorf("token %d: %+v", i, l)
		}
	}
	stream := c.Chat.Completions.NewStreaming(ctx, q)
	n := 0
	for stream.Next() {
		for _, choice := range stream.Current().Choices {
			for _, l := range choice.Logprobs.Content {
				if n >= len(content) || l.Token != content[n].Token || l.Logprob != content[n].Logprob {
					t.Errorf("token %d of the stream: %+v", n, l)
				}
				n++
			}
		}
	}
	must(t, stream.Err())
	if n != len(content) {
		t.Errorf("%d tokens of the stream have log probabilities, want %d", n, len(content))
	}

	complete := func(prompt string, n int64, echo bool) openai.CompletionChoice {
		a, err := c.Completions.New(ctx, openai.CompletionNewParams{Model: "tiny", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(prompt)},
			MaxTokens: openai.Int(n), Temperature: openai.Float(0), Logprobs: openai.Int(2), Echo: openai.Bool(echo)})
		must(t, err)
		return a.Choices[0]
	}
	first := complete("abc", 6, false)
	if len(first.Logprobs.Tokens) != 6 || len(first.Logprobs.TokenLogprobs) != 6 || len(first.Logprobs.TopLogprobs) != 6 || strings.Join(first.Logprobs.Tokens, "") != first.Text {
		t.Fatalf("%+v", first.Logprobs)
	}
	again := complete("abc"+first.Text, 1, true)
	if len(again.Logprobs.Tokens) != 10 || again.Logprobs.TextOffset[1] != 1 {
		t.Fatalf("%+v", again.Logprobs)
	}
	compared := 0
	for i, want := range first.Logprobs.TokenLogprobs {
		if text := first.Logprobs.Tokens[i]; text == "" || strings.ContainsRune(text, utf8.RuneError) {
			break // the text does not encode to this token again
		}
		compared++
		if got := again.Logprobs.TokenLogprobs[3+i]; math.Abs(got-want) > 1e-4 || again.Logprobs.Tokens[3+i] != first.Logprobs.Tokens[i] {
			t.Errorf("token %d has %g in the prompt, %g in the answer", i, got, want)
		}
	}
	if compared < 2 {
		t.Errorf("%d tokens were compared, want at least 2", compared)
	}
}
