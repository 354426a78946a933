package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"pwc/chat"
	"pwc/runner"
)

// Error is the answer to a failed request: an HTTP status, and the error object of the API.
type Error struct {
	Status  int    `json:"-"`
	Message string `json:"message"`
	Type    string `json:"type"`            // invalid_request_error, authentication_error, rate_limit_error, server_error
	Param   string `json:"param,omitempty"` // the wrong field
	Code    string `json:"code,omitempty"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// badRequest returns an error of the client about a field; "" is the body.
func badRequest(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Param: param, Message: fmt.Sprintf(format, args...)}
}

// apiNames replaces words of a runner.Request, in its errors, by those of the API.
var apiNames = strings.NewReplacer("MaxNew", "max_tokens", "MinNew", "min_tokens", "LogitBias", "logit_bias", "Allowed", "allowed_token_ids",
	"min-p", "min_p", "repetition penalty", "repetition_penalty", "Logprobs.Top", "the number of logprobs", "nil allows all", "without the field all are allowed")

// asError returns the answer for an error of this package, the runner or the template.
func asError(err error) *Error {
	var own *Error
	switch {
	case errors.As(err, &own):
		return own
	case errors.Is(err, runner.ErrRequest):
		return badRequest("", "%s", apiNames.Replace(err.Error()))
	case errors.Is(err, chat.ErrConversation):
		return badRequest("", "%v", err)
	case errors.Is(err, chat.ErrRefused), errors.Is(err, chat.ErrLimit):
		return badRequest("messages", "%v", err)
	case errors.Is(err, runner.ErrQueueFull):
		return &Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "queue_full", Message: err.Error()}
	case errors.Is(err, runner.ErrDraining):
		return draining()
	case errors.Is(err, runner.ErrClosed):
		return &Error{Status: http.StatusServiceUnavailable, Type: "server_error", Code: "closed", Message: shuttingDown}
	}
	return &Error{Status: http.StatusInternalServerError, Type: "server_error", Message: err.Error()}
}

const shuttingDown = "the server is shutting down; send the request to another one"

// draining returns the answer to a request that comes during a drain, or that a drain cancels.
func draining() *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: "server_error", Code: "draining", Message: shuttingDown}
}

// writeError writes an error as the answer.
func (s *Server) writeError(w http.ResponseWriter, e *Error) {
	if e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	s.writeJSON(w, e.Status, struct {
		Error *Error `json:"error"`
	}{e})
}

// writeJSON writes a value. It ignores errors of the connection: the client has disconnected.
func (s *Server) writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"error":{"message":"the answer cannot be encoded","type":"server_error"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = s.setWriteDeadline(w)
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}
