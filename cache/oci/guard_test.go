package oci

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// silent is a registry that never answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestStallKeepsSecrets checks that the error of a stalled transfer contains no password and no query, which may hold
// a signature.
func TestStallKeepsSecrets(t *testing.T) {
	req, err := http.NewRequestWithContext(t.Context(), "GET", "https://me:secret@blobs.example/x?signature=secret", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = (&guard{base: silent{}, stall: time.Millisecond}).RoundTrip(req)
	var stall *StallError
	if !errors.As(err, &stall) || err.Error() != "https://blobs.example/x: no byte moved for 1ms" {
		t.Errorf("%v", err)
	}
	if req.URL.RawQuery == "" || req.URL.User == nil {
		t.Error("the request was changed")
	}
}

// drip is a registry that answers after a pause, and sends its body in parts with a pause before each.
type drip struct {
	answer time.Duration
	bytes  int // of the body
	each   int // of a part
	pause  time.Duration
}

func (d drip) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
	}
	select {
	case <-time.After(d.answer):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: 200, Body: &dripping{d, r.Context()}}, nil
}

type dripping struct {
	drip
	ctx context.Context
}

func (d *dripping) Read(p []byte) (int, error) {
	if d.bytes == 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(d.pause):
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
	n := min(d.each, d.bytes, len(p))
	d.bytes -= n
	return n, nil
}

func (d *dripping) Close() error { return nil }

// TestMinimumRate moves bytes at rates around the minimum, on a fake clock. A transfer that is too slow for a whole
// span ends with the span; the others complete.
func TestMinimumRate(t *testing.T) {
	const rate, stall = 4 << 10, 30 * time.Second
	for name, test := range map[string]struct {
		drip
		wantErr string
		within  time.Duration
	}{
		"a byte a second":       {drip{0, 1 << 20, 1, time.Second}, "bytes moved in 30s; the minimum is 122880 bytes", 31 * time.Second},
		"just too slow":         {drip{0, 1 << 20, rate - 100, time.Second}, "bytes moved in 30s", 31 * time.Second},
		"fast enough":           {drip{0, 1 << 20, rate + 200, time.Second}, "", 5 * time.Minute},
		"little, within a span": {drip{0, 20, 1, time.Second}, "", 21 * time.Second},
		"in bursts":             {drip{0, 1 << 20, 8 << 10, 1500 * time.Millisecond}, "", 5 * time.Minute},
		"an answer late":        {drip{29 * time.Second, 1000, 100, 2 * time.Second}, "", 50 * time.Second},
		"no answer":             {drip{time.Hour, 0, 0, 0}, "no byte moved for 30s", 31 * time.Second},
		"an answer cut off":     {drip{time.Second, 100, 100, time.Hour}, "no byte moved for 30s", 32 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				req, err := http.NewRequestWithContext(t.Context(), "PUT", "https://r.example/x", strings.NewReader("what is sent"))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := (&guard{base: test.drip, stall: stall, rate: rate}).RoundTrip(req)
				n := int64(0)
				if err == nil {
					n, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				switch {
				case test.wantErr == "" && (err != nil || n != int64(test.bytes)):
					t.Errorf("%d bytes, %v", n, err)
				case test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)):
					t.Errorf("%v; want %q", err, test.wantErr)
				}
				if took := time.Since(start); took > test.within {
					t.Errorf("it took %v, want at most %v", took, test.within)
				}
			})
		})
	}
}
