package serve

import (
	"encoding/json"
	"fmt"
	"strings"
)

// toolCall is a function call of the model.
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

// Marks of calls in the answers of models.
const (
	openCall  = "<tool_call>" // Hermes, Qwen: <tool_call>{"name": …, "arguments": …}</tool_call>, any number
	closeCall = "</tool_call>"
	pythonTag = "<|python_tag|>" // Llama 3
	callsTag  = "[TOOL_CALLS]"   // Mistral: a list of calls
)

// toolReader separates tool calls from text during a stream. It holds back text that may be a
// call until the answer ends, and returns it as text if it is not a call.
type toolReader struct {
	begun bool   // the form of the answer's beginning is decided
	call  bool   // held may be a call
	held  string // text that was not returned
}

// next takes text and returns the text that cannot be a call.
func (t *toolReader) next(text string) string {
	t.held += text
	if t.call {
		return ""
	}
	if !t.begun {
		s := strings.TrimSpace(t.held)
		if s == "" || len(s) < len(openCall) && strings.HasPrefix(openCall, s) {
			return "" // undecided
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

// parseCalls parses a text that consists of calls.
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
		var c map[string]json.RawMessage // keys of a struct would match in any letter case
		var name string
		if json.Unmarshal([]byte(object), &c) != nil || json.Unmarshal(c["name"], &name) != nil || name == "" {
			return nil, false
		}
		arguments := "{}"
		for _, key := range [...]string{"parameters", "arguments"} { // Llama 3 writes parameters
			if text, ok := c[key]; ok {
				arguments = string(text)
			}
		}
		calls = append(calls, toolCall{Function: toolFunction{Name: name, Arguments: arguments}})
	}
	return calls, len(calls) > 0
}
