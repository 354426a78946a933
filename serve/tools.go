package serve

import (
	"encoding/json"
	"fmt"
	"strings"
)

// toolCall is a call of a function that the model asks for.
type toolCall struct {
	Index    int          `json:"index"`
	ID       string       `json:"id"`
	Type     string       `json:"type"` // function
	Function toolFunction `json:"function"`
}

type toolFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"` // JSON, as text
}

// Marks that begin calls in the answers of models.
const (
	openCall  = "<tool_call>" // Hermes, Qwen: <tool_call>{"name": …, "arguments": …}</tool_call>, any number
	closeCall = "</tool_call>"
	pythonTag = "<|python_tag|>" // Llama 3
	callsTag  = "[TOOL_CALLS]"   // Mistral: a list of calls
)

// toolReader tells calls of tools from text while an answer comes. Text that may be a call
// is held back until the answer ends; if it turns out to be no call, it is given out as text.
type toolReader struct {
	begun bool   // it is known whether the answer begins with a call
	call  bool   // held begins with what may be a call
	held  string // text that was not given out
}

// next takes text and returns what is certain to be no call.
func (t *toolReader) next(text string) string {
	t.held += text
	if t.call {
		return ""
	}
	if !t.begun {
		s := strings.TrimSpace(t.held)
		if s == "" || len(s) < len(openCall) && strings.HasPrefix(openCall, s) {
			return "" // either is possible
		}
		t.begun = true
		if strings.ContainsAny(s[:1], "{[<") && !strings.HasPrefix(s, openCall) {
			t.call = true
			return ""
		}
	}
	certain := strings.Index(t.held, openCall)
	if t.call = certain >= 0; !t.call {
		certain = len(t.held)
		for n := min(len(openCall)-1, len(t.held)); n > 0; n-- {
			if strings.HasSuffix(t.held, openCall[:n]) {
				certain -= n
				break
			}
		}
	}
	out := t.held[:certain]
	t.held = t.held[certain:]
	return out
}

// end returns the rest of the text, and the calls.
func (t *toolReader) end(id string) (string, []toolCall) {
	calls, ok := parseCalls(t.held)
	if !ok {
		return t.held, nil
	}
	for i := range calls {
		calls[i].Index, calls[i].ID, calls[i].Type = i, fmt.Sprintf("call-%s-%d", id, i), "function"
	}
	return "", calls
}

// parseCalls parses a text that has only calls.
func parseCalls(text string) ([]toolCall, bool) {
	text = strings.TrimSpace(text)
	var objects []string
	switch {
	case strings.HasPrefix(text, openCall):
		for text != "" {
			rest, ok := strings.CutPrefix(text, openCall)
			if !ok {
				return nil, false
			}
			object, after, closed := strings.Cut(rest, closeCall)
			if !closed {
				return nil, false
			}
			objects, text = append(objects, object), strings.TrimSpace(after)
		}
	default:
		text = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(text, pythonTag), callsTag))
		var list []json.RawMessage
		if json.Unmarshal([]byte(text), &list) != nil {
			list = []json.RawMessage{json.RawMessage(text)}
		}
		for _, object := range list {
			objects = append(objects, string(object))
		}
	}
	var calls []toolCall
	for _, object := range objects {
		var c struct {
			Name       string          `json:"name"`
			Arguments  json.RawMessage `json:"arguments"`
			Parameters json.RawMessage `json:"parameters"` // Llama 3's word
		}
		if json.Unmarshal([]byte(object), &c) != nil || c.Name == "" {
			return nil, false
		}
		if c.Arguments == nil {
			c.Arguments = c.Parameters
		}
		arguments := "{}"
		if c.Arguments != nil {
			arguments = string(c.Arguments)
		}
		calls = append(calls, toolCall{Function: toolFunction{Name: c.Name, Arguments: arguments}})
	}
	return calls, len(calls) > 0
}
