package loadtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"pwc/internal/termsafe"
)

// Client sends streaming requests to a server with OpenAI's completions API.
type Client struct {
	url   string // of /v1/completions
	model string
	key   string
	http  *http.Client
	extra map[string]any
}

// ClientOptions are the options of a [Client].
type ClientOptions struct {
	Model string         // empty: the first model of /v1/models
	Key   string         // bearer token; empty: no token
	Extra map[string]any // further fields of each request, such as {"ignore_eos": true}
	HTTP  *http.Client   // nil: a client without a limit of connections
}

// Limits of a server's answers.
const (
	maxModels = 1 << 20 // bytes of the list of models
	maxEvent  = 1 << 20 // bytes of a line of a stream
	maxReason = 1 << 10 // bytes of a shown error
)

// NewClient returns a client of the server at base, "http://127.0.0.1:8000" or with /v1 at its
// end. If o.Model is empty, it requests the list of models.
func NewClient(ctx context.Context, base string, o ClientOptions) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("loadtest: %q is not the URL of a server, such as http://127.0.0.1:8000", base)
	}
	root := strings.TrimSuffix(strings.TrimSuffix(base, "/"), "/v1") + "/v1"
	c := &Client{url: root + "/completions", model: o.Model, key: o.Key, http: o.HTTP, extra: o.Extra}
	if c.http == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, 1<<16 // 0: no limit; there is a connection for each running request
		c.http = &http.Client{Transport: t}
	}
	if c.model == "" {
		if c.model, err = c.firstModel(ctx, root+"/models"); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// Close closes the client's idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Model returns the name of the requested model.
func (c *Client) Model() string { return c.model }

func (c *Client) firstModel(ctx context.Context, address string) (string, error) {
	resp, err := c.send(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxModels)).Decode(&list); err != nil {
		return "", fmt.Errorf("loadtest: %s: %w", address, err)
	}
	if len(list.Data) == 0 {
		return "", fmt.Errorf("loadtest: %s lists no model", address)
	}
	return list.Data[0].ID, nil
}

// send sends a request and returns a successful answer.
func (c *Client) send(ctx context.Context, method, address string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("loadtest: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("loadtest: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxReason))
		return nil, fmt.Errorf("loadtest: %s: %s: %s", address, resp.Status, termsafe.Line(string(text), maxReason))
	}
	return resp, nil
}

// chunk is an event of a stream of completions.
type chunk struct {
	Choices []struct {
		Text         string  `json:"text"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Complete requests a completion as a stream. Each choice of an event counts as a token, unless it has
// only the finish reason. If the server reports a larger number of tokens, Complete returns that
// number, because several tokens may share an event.
func (c *Client) Complete(ctx context.Context, q Request, token func()) (tokens int, err error) {
	fields := map[string]any{"model": c.model, "prompt": q.Prompt, "max_tokens": q.Output, "temperature": 0, "stream": true,
		"stream_options": map[string]bool{"include_usage": true}}
	for k, v := range c.extra {
		fields[k] = v
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return 0, fmt.Errorf("loadtest: %w", err)
	}
	resp, err := c.send(ctx, http.MethodPost, c.url, body)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return readStream(resp.Body, token)
}

// readStream reads server-sent events until "data: [DONE]", and returns the number of tokens.
func readStream(r io.Reader, token func()) (tokens int, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), maxEvent)
	said := 0
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue // blank lines end events; comments and other fields have no meaning here
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			return max(tokens, said), nil
		}
		var e chunk
		if err := json.Unmarshal(data, &e); err != nil {
			return tokens, fmt.Errorf("loadtest: an event of the stream: %w", err)
		}
		if e.Error != nil {
			return tokens, fmt.Errorf("loadtest: the server ended the stream: %s", termsafe.Line(e.Error.Message, maxReason))
		}
		for _, choice := range e.Choices {
			if choice.Text != "" || choice.FinishReason == nil {
				token()
				tokens++
			}
		}
		if e.Usage != nil {
			said = e.Usage.CompletionTokens
		}
	}
	if err := lines.Err(); err != nil {
		return tokens, fmt.Errorf("loadtest: the stream: %w", err)
	}
	return tokens, errors.New("loadtest: the stream ended without [DONE]")
}
