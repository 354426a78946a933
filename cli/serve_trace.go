package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// tracing returns a tracer that sends spans to an OTLP endpoint over HTTP, in batches, and a
// function that sends the last spans, and logs if they are lost. If endpoint is "", the tracer is nil and
// the function does nothing. A URL without a path gets the protocol's path, /v1/traces.
func (a *app) tracing(ctx context.Context, endpoint string) (trace.Tracer, func(), error) {
	if endpoint == "" {
		return nil, func() {}, nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, nil, usagef("--otlp-traces-endpoint %s: want a URL, as in http://127.0.0.1:4318/v1/traces", endpoint)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()))
	if err != nil {
		return nil, nil, fmt.Errorf("--otlp-traces-endpoint: %w", err)
	}
	named := resource.NewSchemaless(attribute.String("service.name", "pwc"), attribute.String("service.version", version().Version))
	log := a.requestLogger()
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(loggedExporter{exporter, log}), sdktrace.WithResource(named))
	return provider.Tracer("pwc/serve"), func() {
		defer hold(ctx)()
		// ctx may have ended.
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSpans)
		defer cancel()
		if err := provider.Shutdown(ending); err != nil {
			log.Warn("the last spans may be lost", "error", err)
		}
	}, nil
}

// lastSpans is the timeout for sending the last spans.
const lastSpans = 5 * time.Second

// loggedExporter logs lost spans instead of returning an error: requests do not depend on spans.
type loggedExporter struct {
	sdktrace.SpanExporter
	log *slog.Logger
}

// ExportSpans implements sdktrace.SpanExporter.
func (e loggedExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := e.SpanExporter.ExportSpans(ctx, spans); err != nil {
		e.log.Warn("spans are lost", "spans", len(spans), "error", err)
	}
	return nil
}
