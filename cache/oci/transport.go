package oci

import (
	"context"
	"fmt"
	"io"
	"net/http"
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
}

// StallError says that a transfer stood still.
type StallError struct {
	URL   string // without its query, which may hold a signature
	After time.Duration
}

// Error names the address and the time.
func (e *StallError) Error() string {
	return fmt.Sprintf("%s: no byte moved for %v", e.URL, e.After)
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
	w := &watch{stall: g.stall, ctx: ctx, cancel: cancel, err: &StallError{URL: at.String(), After: g.stall}}
	w.timer = time.AfterFunc(g.stall, func() { cancel(w.err) })
	req = req.Clone(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &watchedBody{req.Body, w}
		if open := req.GetBody; open != nil {
			req.GetBody = func() (io.ReadCloser, error) {
				body, err := open()
				if err != nil {
					return nil, err
				}
				return &watchedBody{body, w}, nil
			}
		}
	}
	resp, err := g.base.RoundTrip(req)
	if err != nil {
		err = w.reason(err)
		w.end()
		return nil, err
	}
	w.moved()
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

// watch ends a request that stands still.
type watch struct {
	stall  time.Duration
	timer  *time.Timer
	ctx    context.Context
	cancel context.CancelCauseFunc
	err    error
}

// moved starts the time anew, unless it is up or the request has ended.
func (w *watch) moved() {
	if w.timer.Stop() {
		w.timer.Reset(w.stall)
	}
}

func (w *watch) end() {
	w.timer.Stop()
	w.cancel(nil)
}

// reason replaces the error of a request that was ended by the watch.
func (w *watch) reason(err error) error {
	if err != nil && err != io.EOF && context.Cause(w.ctx) == w.err {
		return w.err
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
	if n > 0 {
		b.watch.moved()
	}
	return n, b.watch.reason(err)
}

// watchedResponse ends the watch with the response.
type watchedResponse struct{ watchedBody }

// Close closes.
func (b *watchedResponse) Close() error {
	err := b.ReadCloser.Close()
	b.watch.end()
	return err
}
