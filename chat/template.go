package chat

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// Limits of a template and of one rendering.
const (
	MaxSource = 1 << 20  // bytes of a template
	MaxResult = 16 << 20 // bytes of a prompt, and of one value as it is printed
	maxSteps  = 1 << 20  // iterations of loops, and calls of macros and call blocks
	maxRange  = 1 << 16  // numbers of range()
	maxCalls  = 100      // nested macros and call blocks

	maxWritten = 8 * MaxResult // bytes of printed values, and of text in loops, macros and call blocks
	maxVisits  = 1 << 27       // elements of all values that measure has measured
)

// Errors of the package, for errors.Is.
var (
	// ErrTemplate: a template, or the tokenizer_config.json of its checkpoint, cannot be parsed, or the
	// template failed.
	ErrTemplate = errors.New("chat: the template cannot be used")
	// ErrConversation: the messages, the tools or an extra value of a conversation are not valid JSON, are
	// nested too deep or have a number that is out of range, or the messages are not a list with elements.
	ErrConversation = errors.New("chat: the conversation is invalid")
	// ErrRefused: the template refused the conversation (raise_exception), because it is invalid
	// for this model.
	ErrRefused = errors.New("chat: the template refuses the conversation")
	// ErrLimit: a rendering exceeded a limit: of steps, nested macros, numbers of a range, number, nesting or bytes
	// of values, or bytes of text; it put a value into itself, or repeated a string by an operand of * that is
	// neither an integer literal nor a variable, such as n, m.n or m[0].
	ErrLimit = errors.New("chat: a limit of the template was reached")
)

// Template is a parsed chat template. It is safe for concurrent use.
type Template struct {
	program *jinja.Template
	library library
	tokens  map[string]string // bos_token and others
}

// Parse parses a template. Tokens are the names of special tokens that templates use,
// such as bos_token, with their texts. Errors match [ErrTemplate].
func Parse(source string, tokens map[string]string) (*Template, error) {
	if len(source) > MaxSource {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are read", ErrTemplate, len(source), MaxSource)
	}
	guarded, err := guard(source)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	var program *jinja.Template
	if err := recovered(func() (err error) { program, err = jinja.Compile(guarded); return err }); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	filters, err := libraryFilters("replace", "join", "indent")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	return &Template{program: program, library: filters, tokens: tokens}, nil
}

// Conversation is the input of a template. Messages and tools are JSON, as in the chat
// completions API, because templates read the order of their keys. An integer that is no int64 becomes a
// float, so a template prints 2^64 as 1.8446744073709552e+19.
type Conversation struct {
	Messages json.RawMessage // an array of objects with role and content
	Tools    json.RawMessage // an array of functions; nil: no tools

	// Generate appends the beginning of the model's answer (add_generation_prompt).
	Generate bool

	// Extra has further values for the template, such as enable_thinking, in JSON.
	Extra map[string]json.RawMessage

	// Now is the time of strftime_now; the zero time: time.Now.
	Now time.Time
}

// Render returns the prompt of a conversation. The template writes the model's first token, so
// encode the prompt without surrounding tokens. Errors match [ErrConversation], [ErrRefused],
// [ErrLimit], [ErrTemplate] or the error of ctx. After the end of ctx no iteration, macro or call block begins.
func (t *Template) Render(ctx context.Context, c Conversation) (string, error) {
	values := map[string]jinja.Value{"add_generation_prompt": jinja.NewBool(c.Generate), "tools": jinja.None(), "documents": jinja.None()}
	for name, text := range t.tokens {
		values[name] = jinja.NewString(text)
	}
	for name, text := range c.Extra {
		v, err := parseValue(text)
		if err != nil {
			return "", fmt.Errorf("%w: %s: %w", ErrConversation, name, err)
		}
		values[name] = v
	}
	messages, err := parseValue(c.Messages)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: messages: %w", ErrConversation, err)
	case !messages.IsList() || messages.AsList().Len() == 0:
		return "", fmt.Errorf("%w: messages: want a list of at least one message", ErrConversation)
	}
	values["messages"] = messages
	if c.Tools != nil {
		if values["tools"], err = parseValue(c.Tools); err != nil {
			return "", fmt.Errorf("%w: tools: %w", ErrConversation, err)
		}
	}
	run := &run{ctx: ctx, now: c.Now, library: t.library, owned: map[*jinja.List]bool{}}
	run.define(values)
	var out string
	err = recovered(func() (err error) { out, err = t.program.RenderValues(values); return err })
	switch {
	case run.refused != "":
		return "", fmt.Errorf("%w: %s", ErrRefused, run.refused)
	case run.failed != nil:
		return "", run.failed
	case err != nil:
		return "", fmt.Errorf("%w: %w", ErrTemplate, err)
	case len(out) > MaxResult:
		return "", fmt.Errorf("%w: a prompt of %d bytes, at most %d", ErrLimit, len(out), MaxResult)
	}
	return out, nil
}

// recovered turns a panic of the interpreter into an error, because templates are untrusted.
func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the interpreter failed: %v", p)
		}
	}()
	return f()
}

// run is the state of one rendering: its steps so far, and its error.
type run struct {
	ctx     context.Context
	now     time.Time
	library library
	line    int64                // of the last tag that called a function of this package; 0 before
	steps   int                  // iterations of loops, macros and call blocks so far
	calls   int                  // nested macros and call blocks
	written int64                // bytes of output
	visits  int                  // of values by measure
	owned   map[*jinja.List]bool // lists with memory that no other list has
	refused string
	failed  error
}

// define gives the template functions of Jinja and of transformers' environment
// (transformers/utils/chat_template_utils.py), and the functions whose calls [guard] inserts.
func (r *run) define(values map[string]jinja.Value) {
	functions := map[string]func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error){
		stepName:   r.step,
		enterName:  r.enter,
		leaveName:  r.leave,
		jsonName:   r.toJSON,
		atName:     r.at,
		printName:  r.print,
		setName:    r.set,
		factorName: r.factor,
		"range":    r.numbers,
		"cycler":   r.cycler,

		filterName + "replace": r.limited("replace", replacedBytes),
		filterName + "join":    r.limited("join", joinedBytes),
		filterName + "indent":  r.limited("indent", indentedBytes),
		methodName + "replace": r.method("replace", r.replace),
		methodName + "format":  r.method("format", r.format),
		methodName + "pop":     r.method("pop", r.pop),
		methodName + "update":  r.method("update", r.update),
		methodName + "append": r.method("append", func(self jinja.Value, args []jinja.Value) (jinja.Value, bool, error) {
			return r.add(self, args, false)
		}),
		methodName + "insert": r.method("insert", func(self jinja.Value, args []jinja.Value) (jinja.Value, bool, error) {
			return r.add(self, args, true)
		}),
		"raise_exception": r.raise,
		"strftime_now":    r.time,
	}
	for name, f := range functions {
		values[name] = jinja.NewCallable(name, f)
	}
}

// fail makes Render return an error, also where the library ignores it, as in the bounds of slices.
func (r *run) fail(err error) (jinja.Value, error) {
	if r.failed == nil {
		r.failed = err
		if r.line > 0 {
			r.failed = fmt.Errorf("%w (near line %d of the template)", err, r.line)
		}
	}
	return jinja.Undefined(), err
}

// step begins an iteration, a macro or a call block. Its arguments are the line, the bytes of text and the values of the
// names that are bound.
func (r *run) step(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	r.line = args[0].AsInt()
	if r.steps++; r.steps > maxSteps {
		return r.fail(fmt.Errorf("%w: more than %d iterations and calls", ErrLimit, maxSteps))
	}
	if err := r.ctx.Err(); err != nil {
		return r.fail(err)
	}
	if err := r.write(args[1].AsInt()); err != nil {
		return r.fail(err)
	}
	for _, v := range args[2:] {
		if _, err := r.measure(v, nil); err != nil {
			return r.fail(err)
		}
	}
	return jinja.NewBool(false), nil
}

// enter begins a macro or a call block.
func (r *run) enter(args []jinja.Value, options map[string]jinja.Value) (jinja.Value, error) {
	r.line = args[0].AsInt()
	if r.calls++; r.calls > maxCalls {
		return r.fail(fmt.Errorf("%w: more than %d macros within each other", ErrLimit, maxCalls))
	}
	return r.step(args, options)
}

// leave ends a macro or a call block.
func (r *run) leave([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	r.calls--
	return jinja.NewBool(false), nil
}

func (r *run) raise(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	switch {
	case len(args) > 0 && args[0].IsString():
		r.refused = args[0].AsString() // String adds quotes
	case len(args) > 0:
		if _, err := r.measure(args[0], nil); err != nil {
			return r.fail(err)
		}
		r.refused = args[0].String()
	}
	r.refused = cmp.Or(r.refused, "no reason is given")
	return jinja.Undefined(), ErrRefused
}

func (r *run) numbers(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	bounds := [3]int64{0, 0, 1} // start, stop, step
	for i, a := range args {
		if len(args) > 3 || !a.IsInt() {
			return r.fail(fmt.Errorf("%w: range takes one to three integers", ErrTemplate))
		}
		bounds[i] = a.AsInt()
	}
	switch {
	case len(args) == 0 || bounds[2] == 0:
		return r.fail(fmt.Errorf("%w: range takes one to three integers, and its step must not be 0", ErrTemplate))
	case len(args) == 1:
		bounds[0], bounds[1] = 0, bounds[0]
	}
	var items []jinja.Value
	for i := bounds[0]; bounds[2] > 0 && i < bounds[1] || bounds[2] < 0 && i > bounds[1]; i += bounds[2] {
		if items = append(items, jinja.NewInt(i)); len(items) > maxRange {
			return r.fail(fmt.Errorf("%w: a range of more than %d numbers", ErrLimit, maxRange))
		}
	}
	return jinja.NewList(items), nil
}

// layouts maps directives of strftime to layouts of package time.
var layouts = map[byte]string{'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'M': "04", 'S': "05",
	'B': "January", 'b': "Jan", 'A': "Monday", 'a': "Mon", 'p': "PM", 'j': "002", 'Z': "MST", 'z': "-0700", '%': "%"}

// strftime formats a time. Other text than the directives of layouts stays as it is.
func strftime(now time.Time, format string) string {
	var out strings.Builder
	for {
		text, rest, found := strings.Cut(format, "%")
		out.WriteString(text)
		switch {
		case !found:
			return out.String()
		case rest != "" && layouts[rest[0]] != "":
			out.WriteString(now.Format(layouts[rest[0]]))
			rest = rest[1:]
		default:
			out.WriteByte('%')
		}
		format = rest
	}
}

func (r *run) time(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 1 || !args[0].IsString() {
		return r.fail(fmt.Errorf("%w: strftime_now takes a format", ErrTemplate))
	}
	now := r.now
	if now.IsZero() {
		now = time.Now()
	}
	return jinja.NewString(strftime(now, args[0].AsString())), nil
}
