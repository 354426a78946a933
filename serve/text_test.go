package serve

import (
	"fmt"
	"testing"
)

// toolReader separates tool calls from text that comes in parts of several sizes. Text that only resembles a
// call stays text.
func TestTools(t *testing.T) {
	for _, c := range []struct {
		answer, text string
		calls        []string
	}{
		{"just text", "just text", nil},
		{"  a < b", "  a < b", nil},
		{`<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`, "", []string{`f({"a": 1})`}},
		{"Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\"}\n</tool_call>", "Let me see.\n", []string{"f({})", "g({})"}},
		{`{"name": "f", "parameters": {"a": "b"}}`, "", []string{`f({"a": "b"})`}},
		{` <|python_tag|>{"name": "f", "parameters": {}}`, "", []string{"f({})"}},
		{`[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": [1]}]`, "", []string{"f({})", "g([1])"}},
		{`{"name": 1}`, `{"name": 1}`, nil},
		{`{"Name": "f", "arguments": {}}`, `{"Name": "f", "arguments": {}}`, nil},
		{`{"a": `, `{"a": `, nil},
		{"x <tool_call> broken", "x <tool_call> broken", nil},
		{"<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", nil},
		{"<b>bold</b> text", "<b>bold</b> text", nil},
		{"", "", nil},
	} {
		for _, size := range []int{1, 3, 1000} {
			r := &toolReader{}
			text := ""
			for rest := c.answer; rest != ""; {
				n := min(size, len(rest))
				text += r.next(rest[:n])
				rest = rest[n:]
			}
			rest, calls := r.end("1")
			text += rest
			var got []string
			for i, call := range calls {
				got = append(got, fmt.Sprintf("%s(%s)", call.Function.Name, call.Function.Arguments))
				if call.Index != i || call.ID != fmt.Sprintf("call-1-%d", i) || call.Type != "function" {
					t.Errorf("%+v", call)
				}
			}
			if text != c.text || fmt.Sprint(got) != fmt.Sprint(c.calls) {
				t.Errorf("%q in parts of %d bytes: %q, %q, want %q, %q", c.answer, size, text, got, c.text, c.calls)
			}
		}
	}
}
