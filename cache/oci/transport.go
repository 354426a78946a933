package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// newTransport returns a transport without a proxy. The guard limits the time of requests.
func newTransport() *http.Transport {
	return &http.Transport{ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute}
}

// guard is the transport next to the base. It refuses requests without encryption, also those of redirects, uploads
// and token services, and ends a request that moves too few bytes. A time limit for a whole request would end large
// transfers that progress.
type guard struct {
	base      http.RoundTripper
	plainHTTP bool
	stall     time.Duration
	rate      int64 // bytes a second; see Options.MinRate
}

// A StallError reports a transfer that moved no bytes, or too few, over Options.Stall.
type StallError struct {
	URL   string // without its query, which may hold a signature
	After time.Duration
	Moved int64 // bytes in that time
	Least int64 // bytes that should have moved in it
}

// Error contains the address, the time and the bytes.
func (e *StallError) Error() string {
	if e.Moved == 0 {
		return fmt.Sprintf("%s: no byte moved for %v", e.URL, e.After)
	}
	return fmt.Sprintf("%s: %d bytes moved in %v; the minimum is %d bytes", e.URL, e.Moved, e.After, e.Least)
}

// RoundTrip sends one request, if it is encrypted or PlainHTTP is set.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if !g.plainHTTP && req.URL.Scheme != "https" {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, fmt.Errorf("%s %s://%s: refused: it is not encrypted; Options.PlainHTTP (--plain-http, oci+http://) allows that", req.Method, req.URL.Scheme, req.URL.Host)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	at := *req.URL
	at.RawQuery, at.User = "", nil
	w := &watch{stall: g.stall, least: int64(max(1, g.stall.Seconds()*float64(g.rate))), url: at.String(), ctx: ctx, cancel: cancel}
	w.begin()
	req = req.Clone(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &watchedRequest{watchedBody{req.Body, w}}
		if open := req.GetBody; open != nil {
			req.GetBody = func() (io.ReadCloser, error) {
				body, err := open()
				if err != nil {
					return nil, err
				}
				return &watchedRequest{watchedBody{body, w}}, nil
			}
		}
	}
	resp, err := g.base.RoundTrip(req)
	if err != nil {
		err = w.reason(err)
		w.end()
		return nil, err
	}
	w.restart()
	resp.Body = &watchedResponse{watchedBody{resp.Body, w}}
	return resp, nil
}

// CloseIdleConnections implements the interface that http.Client.CloseIdleConnections looks for.
func (g *guard) CloseIdleConnections() {
	if c, ok := g.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// A watch ends a request after the first span of length stall in which fewer than least bytes moved. So a transfer
// that stops ends within two spans.
type watch struct {
	stall  time.Duration
	least  int64 // bytes per span, at least 1
	url    string
	moved  atomic.Int64 // bytes in the current span
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer
	ended bool
}

func (w *watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.stall, w.expire)
}

// expire runs at the end of a span.
func (w *watch) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.moved.Swap(0)
	switch {
	case w.ended:
	case n < w.least:
		w.ended = true
		w.cancel(&StallError{URL: w.url, After: w.stall, Moved: n, Least: w.least})
	default:
		w.timer.Reset(w.stall)
	}
}

// restart begins a new span when it is the other side's turn to send.
func (w *watch) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.moved.Store(0)
		w.timer.Reset(w.stall)
	}
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.timer.Stop()
	w.cancel(nil)
}

// reason returns the StallError if the watch ended the request, else err.
func (w *watch) reason(err error) error {
	if err != nil && err != io.EOF {
		var stall *StallError
		if errors.As(context.Cause(w.ctx), &stall) {
			return stall
		}
	}
	return err
}

// A watchedBody counts every byte in the watch.
type watchedBody struct {
	io.ReadCloser
	watch *watch
}

// Read reads and counts.
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.watch.moved.Add(int64(n))
	return n, b.watch.reason(err)
}

// A watchedRequest begins a new span at the end of the request, in which the other side can answer.
type watchedRequest struct{ watchedBody }

// Read reads and counts.
func (b *watchedRequest) Read(p []byte) (int, error) {
	n, err := b.watchedBody.Read(p)
	if err == io.EOF {
		b.watch.restart()
	}
	return n, err
}

// A watchedResponse ends the watch when the response is closed.
type watchedResponse struct{ watchedBody }

// Close closes the body and ends the watch.
func (b *watchedResponse) Close() error {
	err := b.ReadCloser.Close()
	b.watch.end()
	return err
}
