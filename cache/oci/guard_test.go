package oci

import (
	"errors"
	"net/http"
	"testing"
	"time"
)

// silent is a registry that never answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestStallKeepsSecrets holds that what a stalled transfer says has no password and
// no query, which may hold a signature.
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
