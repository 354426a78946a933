package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"pwc/chat"
)

// chatRequest is the body of POST /v1/chat/completions.
type chatRequest struct {
	sampling
	Messages            []json.RawMessage          `json:"messages"`
	MaxTokens           *int                       `json:"max_tokens"`
	MaxCompletionTokens *int                       `json:"max_completion_tokens"`
	Tools               json.RawMessage            `json:"tools"`
	ToolChoice          json.RawMessage            `json:"tool_choice"`
	ParallelToolCalls   *bool                      `json:"parallel_tool_calls"`
	ResponseFormat      *responseFormat            `json:"response_format"`
	Logprobs            bool                       `json:"logprobs"`
	TopLogprobs         *int                       `json:"top_logprobs"`
	TemplateArguments   map[string]json.RawMessage `json:"chat_template_kwargs"` // of vLLM
}

// responseFormat is the form of an answer. Only text is supported.
type responseFormat struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"json_schema"`
}

// message is a message of the model, or a part of one in a stream.
type message struct {
	Role    string     `json:"role,omitempty"`
	Content *string    `json:"content,omitempty"`
	Calls   []toolCall `json:"tool_calls,omitempty"`
}

type chatChoice struct {
	Index    int           `json:"index"`
	Message  *message      `json:"message,omitempty"`
	Delta    *message      `json:"delta,omitempty"`
	Logprobs *chatLogprobs `json:"logprobs"`
	Finish   *string       `json:"finish_reason"`
}

type chatAnswer struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []chatChoice `json:"choices"`
	Usage   *usage       `json:"usage,omitempty"`
}

// chatCompletions answers POST /v1/chat/completions.
func (s *Server) chatCompletions(w http.ResponseWriter, r *http.Request) error {
	var q chatRequest
	if e := decode(w, r, s.o.MaxBody, &q); e != nil {
		return e
	}
	if err := s.checkModel(q.Model); err != nil {
		return err
	}
	tools, e := q.check()
	if e != nil {
		return e
	}
	if s.o.Template == nil {
		return badRequest("messages", "the model has no chat template; use /v1/completions, or start the server with a template")
	}
	maxNew, e := q.maxNew()
	if e != nil {
		return e
	}
	messages, e := normalize(q.Messages)
	if e != nil {
		return e
	}
	given := chat.Conversation{Messages: messages, Generate: true, Extra: q.TemplateArguments}
	if tools {
		given.Tools = q.Tools
	}
	prompt, err := s.o.Template.Render(r.Context(), given)
	if err != nil {
		return err
	}
	ids := s.o.Tokenizer.Encode(prompt, false)
	if len(ids) == 0 {
		return badRequest("messages", "the prompt of the conversation is empty")
	}
	c, err := s.call(&q.sampling, [][]int32{ids}, maxNew)
	if err != nil {
		return err
	}
	if q.Logprobs {
		top := 0
		if q.TopLogprobs != nil {
			top = *q.TopLogprobs
		}
		if c.request.Logprobs, e = logprobs("top_logprobs", top); e != nil {
			return e
		}
	}
	id := w.Header().Get("X-Request-Id")
	a := &chatWriter{server: s, base: chatAnswer{ID: "chatcmpl-" + id, Created: time.Now().Unix(), Model: s.o.Model}, id: id}
	if tools {
		for range c.n {
			a.tools = append(a.tools, &toolReader{})
		}
	}
	c.open, c.event, c.total, c.whole = a.open, a.event, a.total, a.whole
	return s.answer(w, r, c)
}

// check refuses tools that are no list, and unsupported values. It reports whether the model may call tools.
func (q *chatRequest) check() (bool, *Error) {
	var list []json.RawMessage
	if len(q.Tools) > 0 {
		if err := json.Unmarshal(q.Tools, &list); err != nil {
			return false, badRequest("tools", "tools: %s", explain(err))
		}
	}
	var asked []string
	if q.TopLogprobs != nil && !q.Logprobs {
		asked = append(asked, "top_logprobs without logprobs")
	}
	if f := q.ResponseFormat; f != nil && (f.Type != "text" || f.Schema != nil && string(f.Schema) != "null") {
		asked = append(asked, "response_format")
	}
	tools := len(list) > 0
	switch choice := string(q.ToolChoice); choice {
	case "", "null", `"auto"`:
	case `"none"`:
		tools = false
	default: // "required" or a function: the server cannot force a call
		asked = append(asked, "tool_choice "+choice)
	}
	if q.ParallelToolCalls != nil && !*q.ParallelToolCalls && tools {
		asked = append(asked, "parallel_tool_calls false")
	}
	return tools, q.unsupported(asked...)
}

// maxNew returns the largest number of tokens of an answer; 0: the limit of the model and the
// cache.
func (q *chatRequest) maxNew() (int, *Error) {
	given, name := q.MaxCompletionTokens, "max_completion_tokens"
	if given == nil {
		given, name = q.MaxTokens, "max_tokens"
	} else if q.MaxTokens != nil && *q.MaxTokens != *given {
		return 0, badRequest("max_tokens", "max_tokens and max_completion_tokens differ")
	}
	switch {
	case given == nil:
		return 0, nil
	case *given < 1:
		return 0, badRequest(name, "%s: %d, want 1 or more", name, *given)
	}
	return *given, nil
}

// normalize returns messages in the form that templates expect: a list of texts becomes one text, without the newlines
// that vLLM puts between them, and the arguments of a call, JSON in a string, become that JSON, as in vLLM. A call
// loses its index. Other fields of messages and the order of their keys stay; parts of content and calls must not have
// other fields.
func normalize(messages []json.RawMessage) (json.RawMessage, *Error) {
	if len(messages) == 0 {
		return nil, badRequest("messages", "messages: want at least one")
	}
	var out bytes.Buffer
	for i, raw := range messages {
		separator := byte(',')
		if i == 0 {
			separator = '['
		}
		out.WriteByte(separator)
		text, e := normalizeMessage(fmt.Sprintf("messages[%d]", i), raw)
		if e != nil {
			return nil, e
		}
		out.Write(text)
	}
	out.WriteByte(']')
	return out.Bytes(), nil
}

func normalizeMessage(at string, raw json.RawMessage) (json.RawMessage, *Error) {
	names, fields, e := object(raw, at)
	if e != nil {
		return nil, e
	}
	var role string
	if json.Unmarshal(fields["role"], &role) != nil || role == "" {
		return nil, badRequest(at, "%s: role is missing", at)
	}
	if content, ok := fields["content"]; ok {
		text, e := plainText(at, content)
		if e != nil {
			return nil, e
		}
		fields["content"] = text
	}
	if calls, ok := fields["tool_calls"]; ok {
		fields["tool_calls"], e = callArguments(at, calls)
		if e != nil {
			return nil, e
		}
	}
	var out bytes.Buffer
	for i, name := range names {
		separator := byte(',')
		if i == 0 {
			separator = '{'
		}
		out.WriteByte(separator)
		key, _ := json.Marshal(name) // marshalling a string never fails
		out.Write(key)
		out.WriteByte(':')
		out.Write(fields[name])
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// plainText returns a list of texts as one text, and other content unchanged.
func plainText(at string, content json.RawMessage) (json.RawMessage, *Error) {
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if len(content) == 0 || content[0] != '[' {
		return content, nil
	}
	if err := json.Unmarshal(content, &parts); err != nil {
		return nil, badRequest(at, "%s: content: %s", at, explain(err))
	}
	var text strings.Builder
	for _, p := range parts {
		if p.Type != "text" {
			return nil, badRequest(at, "%s: content of type %q is unsupported, want text", at, p.Type)
		}
		text.WriteString(p.Text)
	}
	if e := checkKeys(content, reflect.TypeOf(parts), at+".content"); e != nil {
		return nil, e
	}
	out, err := json.Marshal(text.String())
	if err != nil {
		return nil, badRequest(at, "%s: %v", at, err)
	}
	return out, nil
}

// callArguments returns the calls with their arguments as JSON instead of JSON in a string.
func callArguments(at string, raw json.RawMessage) (json.RawMessage, *Error) {
	type function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	var calls []struct {
		ID       string          `json:"id,omitempty"`
		Type     string          `json:"type"`
		Function function        `json:"function"`
		Index    json.RawMessage `json:"index,omitempty"` // of the server's answers; templates do not get it
	}
	if err := json.Unmarshal(raw, &calls); err != nil {
		return nil, badRequest(at, "%s: tool_calls: %s", at, explain(err))
	}
	if e := checkKeys(raw, reflect.TypeOf(calls), at+".tool_calls"); e != nil {
		return nil, e
	}
	for i := range calls {
		calls[i].Index = nil
		var text string
		if f := &calls[i].Function; json.Unmarshal(f.Arguments, &text) == nil {
			if !json.Valid([]byte(text)) {
				return nil, badRequest(at, "%s: tool_calls[%d]: arguments are not JSON", at, i)
			}
			f.Arguments = json.RawMessage(text)
		}
	}
	out, err := json.Marshal(calls)
	if err != nil {
		return nil, badRequest(at, "%s: tool_calls: %v", at, err)
	}
	return out, nil
}

// chatWriter writes answers of one request.
type chatWriter struct {
	server *Server
	base   chatAnswer
	id     string
	tools  []*toolReader // by choice; nil: the request has no tools
}

func (a *chatWriter) answer(object string, choices ...chatChoice) chatAnswer {
	out := a.base
	out.Object, out.Choices = object, choices
	return out
}

const chunkObject = "chat.completion.chunk"

func (a *chatWriter) delta(choice int, m message, finish string) any {
	return a.answer(chunkObject, chatChoice{Index: choice, Delta: &m, Finish: orNull(finish)})
}

func (a *chatWriter) open(choice int) any {
	empty := ""
	return a.delta(choice, message{Role: "assistant", Content: &empty}, "")
}

func (a *chatWriter) event(p part) []any {
	text, calls, finish := a.read(p)
	var out []any
	if text != "" || p.finish == "" {
		d := a.answer(chunkObject, chatChoice{Index: p.choice, Delta: &message{Content: &text}, Logprobs: a.server.chatLogprobs(p.scores)})
		out = append(out, d)
	}
	if calls != nil {
		out = append(out, a.delta(p.choice, message{Calls: calls}, ""))
	}
	if finish != "" {
		out = append(out, a.delta(p.choice, message{}, finish))
	}
	return out
}

// read returns the text of a part, and at the end the tool calls and the finish reason.
func (a *chatWriter) read(p part) (string, []toolCall, string) {
	if a.tools == nil {
		return p.text, nil, p.finish
	}
	t := a.tools[p.choice]
	text := t.next(p.text)
	if p.finish == "" {
		return text, nil, ""
	}
	rest, calls := t.end(fmt.Sprintf("%s-%d", a.id, p.choice))
	finish := p.finish
	if calls != nil && finish == "stop" {
		finish = "tool_calls"
	}
	return text + rest, calls, finish
}

func (a *chatWriter) total(u usage) any {
	out := a.answer(chunkObject)
	out.Choices, out.Usage = []chatChoice{}, &u
	return out
}

func (a *chatWriter) whole(results []result, u usage) any {
	out := a.answer("chat.completion")
	out.Usage = &u
	for i := range results {
		text, calls, finish := a.read(part{choice: i, text: results[i].text.String(), finish: results[i].finish})
		m := &message{Role: "assistant", Content: &text, Calls: calls}
		if text == "" && calls != nil {
			m.Content = nil
		}
		out.Choices = append(out.Choices, chatChoice{Index: i, Message: m, Logprobs: a.server.chatLogprobs(results[i].scores), Finish: orNull(finish)})
	}
	return out
}
