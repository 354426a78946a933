package serve

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"
)

// maxPrompts bounds the prompts of one request.
const maxPrompts = 128

// completionRequest is the body of POST /v1/completions.
type completionRequest struct {
	sampling
	Prompt    json.RawMessage `json:"prompt"`
	MaxTokens *int            `json:"max_tokens"`
	Echo      bool            `json:"echo"`
	BestOf    *int            `json:"best_of"`
	Suffix    string          `json:"suffix"`
	Logprobs  *int            `json:"logprobs"`
}

// completionChoice is a choice of an answer, or of an event of one.
type completionChoice struct {
	Index    int                 `json:"index"`
	Text     string              `json:"text"`
	Logprobs *completionLogprobs `json:"logprobs"`
	Finish   *string             `json:"finish_reason"`
}

type completionAnswer struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"`
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []completionChoice `json:"choices"`
	Usage   *usage             `json:"usage,omitempty"`
}

// completions answers POST /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) error {
	var q completionRequest
	if e := decode(w, r, s.o.MaxBody, &q); e != nil {
		return e
	}
	if err := s.checkModel(q.Model); err != nil {
		return err
	}
	var asked []string
	if q.Suffix != "" {
		asked = append(asked, "suffix")
	}
	if q.Logprobs != nil && q.Echo && q.Stream {
		asked = append(asked, "logprobs with echo and stream")
	}
	if q.BestOf != nil && (q.N == nil && *q.BestOf != 1 || q.N != nil && *q.BestOf != *q.N) {
		asked = append(asked, "best_of")
	}
	if e := q.unsupported(asked...); e != nil {
		return e
	}
	prompts, texts, e := s.prompts(q.Prompt)
	if e != nil {
		return e
	}
	maxNew := 16 // the API's default
	if q.MaxTokens != nil {
		if maxNew = *q.MaxTokens; maxNew < 1 {
			return badRequest("max_tokens", "max_tokens: %d, want 1 or more", maxNew)
		}
	}
	c, err := s.call(&q.sampling, prompts, maxNew)
	if err != nil {
		return err
	}
	if q.Logprobs != nil {
		if c.request.Logprobs, e = logprobs("logprobs", *q.Logprobs); e != nil {
			return e
		}
		c.request.Logprobs.Prompt = q.Echo
	}
	base := completionAnswer{ID: "cmpl-" + w.Header().Get("X-Request-Id"), Object: "text_completion", Created: time.Now().Unix(), Model: s.o.Model}
	answer := func(choices ...completionChoice) completionAnswer {
		a := base
		a.Choices = choices
		return a
	}
	if q.Echo {
		c.open = func(i int) any { return answer(completionChoice{Index: i, Text: texts[i/c.n]}) }
	}
	at := make([]int, len(prompts)*c.n) // by choice: runes of its tokens so far
	c.event = func(p part) []any {
		l := s.completionLogprobs(p.scores, at[p.choice], false)
		for _, t := range p.scores {
			at[p.choice] += utf8.RuneCountInString(s.tokenText(t.ID))
		}
		return []any{answer(completionChoice{Index: p.choice, Text: p.text, Logprobs: l, Finish: orNull(p.finish)})}
	}
	c.total = func(u usage) any {
		a := answer()
		a.Choices, a.Usage = []completionChoice{}, &u
		return a
	}
	c.whole = func(results []result, u usage) any {
		a := answer()
		a.Usage = &u
		for i := range results {
			text := results[i].text.String()
			if q.Echo {
				text = texts[i/c.n] + text
			}
			l := s.completionLogprobs(slices.Concat(results[i].prompt, results[i].scores), 0, q.Echo)
			a.Choices = append(a.Choices, completionChoice{Index: i, Text: text, Logprobs: l, Finish: orNull(results[i].finish)})
		}
		return a
	}
	return s.answer(w, r, c)
}

// orNull returns nil, which JSON writes as null, for "".
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// call returns the parts of a call that both APIs share.
func (s *Server) call(q *sampling, prompts [][]int32, maxNew int) (*call, error) {
	n, e := q.choices()
	if e != nil {
		return nil, e
	}
	stops, e := q.stops()
	if e != nil {
		return nil, e
	}
	request, e := q.request(nil, maxNew, s.o.EOS)
	if e != nil {
		return nil, e
	}
	c := &call{prompts: prompts, request: request, n: n, stops: stops, stream: q.Stream}
	c.usage = q.StreamOptions != nil && q.StreamOptions.IncludeUsage
	return c, nil
}

// prompts returns the ids and the texts of a prompt: text, ids, or a list of either.
func (s *Server) prompts(raw json.RawMessage) ([][]int32, []string, *Error) {
	var text string
	var ids []int32
	var texts []string
	var lists [][]int32
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, nil, badRequest("prompt", "prompt is missing")
	case json.Unmarshal(raw, &text) == nil:
		texts = []string{text}
	case json.Unmarshal(raw, &ids) == nil:
		lists = [][]int32{ids}
	case json.Unmarshal(raw, &texts) == nil:
	case json.Unmarshal(raw, &lists) == nil:
	default:
		return nil, nil, badRequest("prompt", "prompt: want text, a list of texts, a list of ids, or a list of lists of ids")
	}
	if n := max(len(texts), len(lists)); n == 0 || n > maxPrompts {
		return nil, nil, badRequest("prompt", "prompt: %d prompts, want 1 to %d", n, maxPrompts)
	}
	for _, text := range texts {
		lists = append(lists, s.o.Tokenizer.Encode(text, true))
	}
	for i, list := range lists {
		if len(list) == 0 || slices.ContainsFunc(list, func(id int32) bool { return id < 0 || int(id) >= s.o.Tokenizer.Size() }) {
			return nil, nil, badRequest("prompt", "prompt %d: want at least one id, each in [0, %d)", i, s.o.Tokenizer.Size())
		}
		if i >= len(texts) {
			texts = append(texts, s.o.Tokenizer.Decode(list, false))
		}
	}
	return lists, texts, nil
}
