package serve

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// The span of a request is a child of its client's span, and has a child for each choice, with times.
// No attribute has text of prompts or answers. A request with an invalid field has no span.
func TestSpans(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
	_, h := newServer(t, func(o *Options) { o.Tracer = provider.Tracer("test") })
	const client, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for _, body := range []string{
		`{"prompt": "abc", "max_tokens": 5, "n": 2, "temperature": 0.5, "allowed_token_ids": [113]}`,
		`{"prompt": "abc", "max_tokens": -1}`,
	} {
		q, err := http.NewRequest("POST", h.URL+"/v1/completions", strings.NewReader(body))
		must(t, err)
		q.Header.Set("traceparent", "00-"+client+"-"+parent+"-01")
		q.Header.Set("X-Request-Id", "mine")
		r, err := http.DefaultClient.Do(q)
		must(t, err)
		r.Body.Close()
	}
	await(t, "the request's span", func() bool { return len(spans.Ended()) >= 3 })
	all := spans.Ended()
	at := slices.IndexFunc(all, func(s sdk.ReadOnlySpan) bool { return s.Name() == "llm_request" })
	if len(all) != 3 || at < 0 {
		t.Fatalf("%d spans, of the request at %d", len(all), at)
	}
	value := func(s sdk.ReadOnlySpan, key attribute.Key) attribute.Value {
		for _, a := range s.Attributes() {
			if a.Key == key {
				return a.Value
			}
		}
		t.Errorf("%s has no %s", s.Name(), key)
		return attribute.Value{}
	}
	request := all[at]
	if p := request.Parent(); p.TraceID().String() != client || p.SpanID().String() != parent {
		t.Errorf("the parent is %v", p)
	}
	for key, want := range map[attribute.Key]attribute.Value{
		"gen_ai.request.id": attribute.StringValue("mine"), "gen_ai.response.model": attribute.StringValue("tiny"), "gen_ai.request.n": attribute.IntValue(2),
		"gen_ai.request.max_tokens": attribute.IntValue(5), "gen_ai.request.temperature": attribute.Float64Value(0.5),
		"gen_ai.usage.prompt_tokens": attribute.IntValue(3), "gen_ai.usage.completion_tokens": attribute.IntValue(10),
	} {
		if got := value(request, key); got != want {
			t.Errorf("%s is %v, want %v", key, got.String(), want.String())
		}
	}
	for _, s := range all {
		for _, a := range s.Attributes() {
			if text := a.Value.String(); strings.Contains(text, "abc") || strings.Contains(text, "qqqqq") {
				t.Errorf("%s has the text %q", a.Key, text)
			}
		}
		if s.Name() == "llm_request" {
			continue
		}
		if s.Parent().SpanID() != request.SpanContext().SpanID() || value(s, "finish_reason").AsString() != "length" || value(s, "gen_ai.usage.completion_tokens").AsInt64() != 5 {
			t.Errorf("%+v", s)
		}
		var names []string
		last := s.StartTime()
		for _, e := range s.Events() {
			names = append(names, e.Name)
			if e.Time.Before(last) {
				t.Errorf("%s is earlier than the event before it, or than the start of the span", e.Name)
			}
			last = e.Time
		}
		if s.EndTime().Before(last) || strings.Join(names, ", ") != "scheduled, first token, last token" {
			t.Errorf("events %q to %v", names, s.EndTime())
		}
		if first, whole := value(s, "gen_ai.latency.time_to_first_token").AsFloat64(), value(s, "gen_ai.latency.e2e").AsFloat64(); first <= 0 || whole < first {
			t.Errorf("%g s to the first token, %g s in all", first, whole)
		}
	}
}
