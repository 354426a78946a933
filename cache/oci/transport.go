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

// newTransport returns a transport without a proxy. What is not said here is
// bounded by the guard.
func newTransport() *http.Transport {
	return &http.Transport{ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute}
}

// guard is the transport under everything else. It refuses what a registry may
// not ask for (a redirect, an upload or a token service without encryption)
// and ends a request in which no byte moves. A time limit for the whole of a
// request would end large transfers that are well.
type guard struct {
	base      http.RoundTripper
	plainHTTP bool
	stall     time.Duration
	rate      int64 // bytes a second; see Options.MinRate
}

// StallError says that a transfer stood still, or moved too slowly to end.
type StallError struct {
	URL   string // without its query, which may hold a signature
	After time.Duration
	Moved int64 // bytes in that time
	Least int64 // bytes that should have moved in it
}

// Error names the address, the time and the bytes.
func (e *StallError) Error() string {
	if e.Moved == 0 {
		return fmt.Sprintf("%s: no byte moved for %v", e.URL, e.After)
	}
	return fmt.Sprintf("%s: %d bytes moved in %v; a transfer that is well moves at least %d", e.URL, e.Moved, e.After, e.Least)
}

// RoundTrip sends one request.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if !g.plainHTTP && req.URL.Scheme != "https" {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, fmt.Errorf("%s %s://%s: refused: it is not encrypted, and plain HTTP was not asked for", req.Method, req.URL.Scheme, req.URL.Host)
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

// CloseIdleConnections implements what http.Client.CloseIdleConnections looks
// for.
func (g *guard) CloseIdleConnections() {
	if c, ok := g.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// watch ends a request that stands still. It looks at each span of the length stall: a
// span in which too few bytes moved is the last. So a transfer ends within a span, or
// keeps the least rate.
type watch struct {
	stall  time.Duration
	least  int64 // bytes of a span, at least 1
	url    string
	moved  atomic.Int64 // bytes of the span
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

// expire is called at the end of a span.
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

// restart begins a span: the other side's turn has come, and it has the whole of one.
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

// reason replaces the error of a request that was ended by the watch.
func (w *watch) reason(err error) error {
	if err != nil && err != io.EOF {
		var stall *StallError
		if errors.As(context.Cause(w.ctx), &stall) {
			return stall
		}
	}
	return err
}

// watchedBody tells the watch of every byte.
type watchedBody struct {
	io.ReadCloser
	watch *watch
}

// Read reads.
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.watch.moved.Add(int64(n))
	return n, b.watch.reason(err)
}

// watchedRequest gives the other side a span to answer in when all is sent.
type watchedRequest struct{ watchedBody }

// Read reads.
func (b *watchedRequest) Read(p []byte) (int, error) {
	n, err := b.watchedBody.Read(p)
	if err == io.EOF {
		b.watch.restart()
	}
	return n, err
}

// watchedResponse ends the watch with the response.
type watchedResponse struct{ watchedBody }

// Close closes.
func (b *watchedResponse) Close() error {
	err := b.ReadCloser.Close()
	b.watch.end()
	return err
}
