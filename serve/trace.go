package serve

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"pwc/runner"
)

// startSpan starts the span of a request that generates, with vLLM's name and attributes. The
// span of the client's traceparent header is its parent (W3C Trace Context).
func (s *Server) startSpan(ctx context.Context, r *http.Request, id string, c *call) (context.Context, trace.Span) {
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
	ctx, span := s.o.Tracer.Start(ctx, "llm_request", trace.WithSpanKind(trace.SpanKindServer))
	if span.IsRecording() {
		p := &c.request.Sampling
		span.SetAttributes(attribute.String("gen_ai.response.model", s.o.Model), attribute.String("gen_ai.request.id", id), attribute.Int("gen_ai.request.n", c.n),
			attribute.Int("gen_ai.request.max_tokens", c.request.MaxNew), attribute.Float64("gen_ai.request.temperature", p.Temperature), attribute.Float64("gen_ai.request.top_p", p.TopP))
	}
	return ctx, span
}

// endSpan ends the span of a request. It adds no text of prompts or answers.
func endSpan(span trace.Span, u *usage, err error) {
	span.SetAttributes(attribute.Int("gen_ai.usage.prompt_tokens", u.Prompt), attribute.Int("gen_ai.usage.completion_tokens", u.Completion))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// traceChoice makes the span of a finished choice, from its arrival in the queue to its end.
func (s *Server) traceChoice(ctx context.Context, index int, seq *runner.Sequence) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return
	}
	<-seq.Done()
	at := seq.Times()
	_, span := s.o.Tracer.Start(ctx, "choice", trace.WithTimestamp(at.Queued))
	span.SetAttributes(attribute.Int("choice", index), attribute.String("finish_reason", seq.Reason().String()), attribute.Int("gen_ai.usage.completion_tokens", len(seq.IDs())-len(seq.Prompt())))
	if !at.FirstToken.IsZero() {
		span.AddEvent("scheduled", trace.WithTimestamp(at.Scheduled))
		span.AddEvent("first token", trace.WithTimestamp(at.FirstToken))
		span.AddEvent("last token", trace.WithTimestamp(at.LastToken))
		span.SetAttributes(attribute.Float64("gen_ai.latency.time_in_queue", at.Scheduled.Sub(at.Queued).Seconds()),
			attribute.Float64("gen_ai.latency.time_to_first_token", at.FirstToken.Sub(at.Queued).Seconds()), attribute.Float64("gen_ai.latency.e2e", at.LastToken.Sub(at.Queued).Seconds()))
	}
	if seq.Reason() == runner.Failed {
		span.SetStatus(codes.Error, seq.Err().Error())
	}
	span.End(trace.WithTimestamp(at.Ended))
}
