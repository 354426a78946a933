package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ardanlabs/jinja"
)

func load(t testing.TB, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

var special = map[string]string{"bos_token": "<s>", "eos_token": "</s>"}

// TestTransformers compares prompts with those of transformers' apply_chat_template, for
// templates like those of published models: system prompts, tools and their calls, thinking,
// conversations that a template refuses.
func TestTransformers(t *testing.T) {
	var templates map[string]string
	var cases []struct {
		Template string
		Messages json.RawMessage
		Tools    json.RawMessage
		Generate bool `json:"add_generation_prompt"`
		Extra    map[string]json.RawMessage
		Error    *string
		Text     *string
	}
	load(t, "templates.json", &templates)
	load(t, "cases.json", &cases)
	refused := 0
	for i, c := range cases {
		tmpl, err := Parse(templates[c.Template], special)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tmpl.Render(context.Background(), Conversation{Messages: c.Messages, Tools: c.Tools, Generate: c.Generate, Extra: c.Extra})
		switch {
		case c.Error != nil:
			refused++
			if !errors.Is(err, ErrRefused) || err.Error() != ErrRefused.Error()+": "+*c.Error {
				t.Errorf("case %d, %s: %q, %v, want a refusal: %s", i, c.Template, got, err, *c.Error)
			}
		case err != nil || got != *c.Text:
			t.Errorf("case %d, %s: %v\n got %q\nwant %q", i, c.Template, err, got, *c.Text)
		}
	}
	if len(cases) < 150 || refused < 10 {
		t.Errorf("%d cases, %d refused", len(cases), refused)
	}
}

func render(t testing.TB, source, messages string) (string, error) {
	t.Helper()
	tmpl, err := Parse(source, special)
	if err != nil {
		return "", err
	}
	return tmpl.Render(context.Background(), Conversation{Messages: json.RawMessage(messages), Now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)})
}

const hello = `[{"role": "user", "content": "hi"}]`

// TestRendering has cases that testdata/cases.json lacks. The texts follow from the documentation of Jinja
// and of Python's json.
func TestRendering(t *testing.T) {
	for _, c := range []struct{ source, messages, want string }{
		{"{% for m in messages %}\n{{ m.content }}\n{% endfor %}\nend", hello, "hi\nend"},
		{"a {%- for m in messages -%} {{ m.content }} {%- endfor -%} b", hello, "ahib"},
		{"{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(1) }}{{ f('|tojson') }}", hello, "<1><|tojson>"},
		{"{# {% for #}{% raw %}{{ x | tojson }}{% endraw %}x", hello, "{{ x | tojson }}x"},
		{"{{ messages | tojson }}", `[{"b": 1, "a": [1.0, 1e20, true, null, "é\u0001<&>"]}]`, `[{"b": 1, "a": [1.0, 1e+20, true, null, "é\u0001<&>"]}]`},
		{"{{ messages | tojson(indent=2) }}", `[{"b": {}, "a": [1, []]}]`, "[\n  {\n    \"b\": {},\n    \"a\": [\n      1,\n      []\n    ]\n  }\n]"},
		{`{{ messages | tojson(indent="\t") }}`, `[[1]]`, "[\n\t[\n\t\t1\n\t]\n]"},
		{"{{ messages | tojson(indent=none) }}", `[1, 2]`, "[1, 2]"},
		{"{{ messages | tojson(sort_keys=true, ensure_ascii=true) }}", `[{"b": 1, "a": "é\ud83d\ude00"}]`, `[{"a": "\u00e9\ud83d\ude00", "b": 1}]`},
		{`{{ messages | tojson(separators=(",", ":")) }}`, `[{"a": [1, 2]}]`, `[{"a":[1,2]}]`},
		{"{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(5, 0, -2) %}{{ i }}{% endfor %}", hello, "012531"},
		{"{{ strftime_now('%d %b %Y, %H:%M') }}", hello, "04 Mar 2026, 05:06"},
		{"{{ strftime_now('Monday 1 PM, 50%%: %Y%m%d %Q%') }}", hello, "Monday 1 PM, 50%: 20260304 %Q%"},
		{"{{ pad_token is defined }}{{ bos_token }}", hello, "False<s>"},
		{"}} {x} { %} {", hello, "}} {x} { %} {"},
		{"{% raw %}{ {% if %}{% endraw %}{", hello, "{ {% if %}{"},
	} {
		if got, err := render(t, c.source, c.messages); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.source, got, err, c.want)
		}
	}
}

// TestLimits: the limits end loops, macros and ranges, and invalid templates and messages are refused.
func TestLimits(t *testing.T) {
	var nested strings.Builder
	for range 8 {
		nested.WriteString("{% for i in range(1000) %}")
	}
	nested.WriteString("x" + strings.Repeat("{% endfor %}", 8))
	for _, c := range []struct {
		source, messages string
		want             error
	}{
		{nested.String(), hello, ErrLimit},
		{"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", hello, ErrLimit},
		{"{{ " + strings.Repeat("(", 1<<18) + "1", hello, ErrTemplate},
		{"{{ " + strings.Repeat("(", 1<<18) + "1" + strings.Repeat(")", 1<<18) + " }}", hello, ErrTemplate},
		{"{{ " + strings.Repeat("-", 1<<18) + "1 }}", hello, ErrTemplate},
		{strings.Repeat("{% if true %}", 1<<15) + strings.Repeat("{% endif %}", 1<<15), hello, ErrTemplate},
		{"{% for i in range(100000000) %}{% endfor %}", hello, ErrLimit},
		{"{% for i in range(1, 2, 0) %}{% endfor %}", hello, ErrTemplate},
		{"{{ raise_exception('no') }}", hello, ErrRefused},
		{`{{ raise_exception('') }}`, hello, ErrRefused},
		{`{{ raise_exception() }}`, hello, ErrRefused},
		{"{% for m in messages %}", hello, ErrTemplate},
		{"{% if 'x %}", hello, ErrTemplate},
		{"{{ open('/etc/passwd') }}", hello, ErrTemplate},
		{strings.Repeat(" ", MaxSource+1), hello, ErrTemplate},
	} {
		_, err := render(t, c.source, c.messages)
		if !errors.Is(err, c.want) || c.want == ErrRefused && errors.Is(err, ErrTemplate) {
			t.Errorf("%.60s: %v, want %v", c.source, err, c.want)
		}
	}
	for _, messages := range []string{"", "[]", "{}", "[1", `[{"a": 1}] 2`, strings.Repeat("[", 1000)} {
		if _, err := render(t, "x", messages); !errors.Is(err, ErrConversation) {
			t.Errorf("messages %.20q: %v, want %v", messages, err, ErrConversation)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	tmpl, err := Parse("{% for m in messages %}{% endfor %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tmpl.Render(ctx, Conversation{Messages: json.RawMessage(hello)}); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled rendering: %v", err)
	}
}

// TestGuard: templates cannot evade the limits. They try it by the names that guard inserts, by tags that
// only the library reads as loops or raw blocks, by nested blocks and brackets, by code in strings, and by calls
// in default values.
func TestGuard(t *testing.T) {
	loops := "{% for i in 'ab' %}{% endfor %}"
	sets, brackets := strings.Repeat("{% set a %}{% endset %}", 200), strings.Repeat("[", 1000)+strings.Repeat("]", 1000)
	ifs := strings.Repeat("{% if true %}", 200) + strings.Repeat("{% endif %}", 200)
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // so a step fails
	for _, c := range []struct {
		source string
		want   error
	}{
		{loops, context.Canceled},
		{"{% set pwc_step = namespace %}" + loops, ErrTemplate},
		{"{% macro f(pwc_step) %}" + loops + "{% endmacro %}{{ f(namespace) }}", ErrTemplate},
		{"{% for pwc_step in [namespace] %}" + loops + "{% endfor %}", ErrTemplate},
		{"{% macro pwc_enter() %}{% endmacro %}", ErrTemplate},
		{"{{ pwc_leave() }}", ErrTemplate},
		{"{{ __filter_tojson(messages) }}", ErrTemplate},
		{"{{ messages | tojson(indent=1.5) }}", ErrTemplate},
		{"{{ messages | tojson(indents=2) }}", ErrTemplate},
		{"{% raw %}{% endraw x %}" + loops + "{% raw %}{% endraw %}", context.Canceled},
		{"{% raw %}{% endraw\u00a0%}" + loops + "{% raw %}{% endraw %}", context.Canceled},
		{"{#} {% raw %} #}" + loops + "{% raw %}{% endraw %}", context.Canceled},
		{strings.ReplaceAll(loops, "{% for", "{%\vfor"), context.Canceled},
		{strings.ReplaceAll(loops, "{% for", "{%\u00a0for"), context.Canceled},
		{strings.ReplaceAll(loops, "{% for i", "{% for1"), context.Canceled},
		{sets + ifs, ErrTemplate},
		{strings.ReplaceAll(ifs, "if true", "set a"), ErrTemplate},
		{strings.NewReplacer("if true", "set a", "endif", "endset").Replace(ifs), ErrTemplate},
		{strings.NewReplacer("if true", "generation", "endif", "endgeneration").Replace(ifs), ErrTemplate},
		{"{% endset %}", ErrTemplate},
		{"{% raw %}{", ErrTemplate},
		{"{% set a" + brackets + " = 1 %}", ErrTemplate},
		{`{% set a" = ` + brackets + ` ~ " %}`, ErrTemplate},
		{`{% macro f(a=",b=` + brackets + `,c=") %}{% endmacro %}`, ErrTemplate},
		{`{% macro f"(a=` + brackets + `,b=") %}{% endmacro %}`, ErrTemplate},
		{`{% if false %}{% call(") ` + brackets + ` ~ " %}{% endcall %}{% endif %}`, ErrTemplate},
		{"{% macro f(a=f()) %}{% endmacro %}{{ f() }}", ErrTemplate},
		{"{% macro f(x, a=1|f) %}{% endmacro %}{{ f(1) }}", ErrTemplate},
	} {
		tmpl, err := Parse(c.source, special)
		if err == nil {
			_, err = tmpl.Render(ctx, Conversation{Messages: json.RawMessage(hello)})
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%.60s: %v, want %v", c.source, err, c.want)
		}
	}
	inner := strings.Repeat("[", maxBrackets) + strings.Repeat("]", maxBrackets)
	nested := strings.Repeat("{% if true %}", maxBlocks) + "x" + strings.Repeat("{% endif %}", maxBlocks)
	for _, source := range []string{"{{ " + inner + " }}", "{% set a = " + inner + " %}", sets + nested} {
		if _, err := render(t, source, hello); err != nil {
			t.Errorf("%.60s: %v", source, err)
		}
	}
	for _, source := range []string{"{{ [" + inner + "] }}", "{% set a = [" + inner + "] %}"} {
		if _, err := render(t, source, hello); !errors.Is(err, ErrTemplate) {
			t.Errorf("%.60s: %v, want %v", source, err, ErrTemplate)
		}
	}
}

// TestOpen reads templates from all files that a checkpoint may have them in.
func TestOpen(t *testing.T) {
	for _, c := range []struct {
		files      map[string]string
		name, want string
		err        error
	}{
		{files: map[string]string{"tokenizer_config.json": `{"chat_template": "one{{ bos_token }}", "bos_token": "<b>"}`}, want: "one<b>"},
		{files: map[string]string{"tokenizer_config.json": `{"chat_template": "one", "bos_token": {"content": "<b>"}}`, "chat_template.jinja": "two{{ bos_token }}"}, want: "two<b>"},
		{files: map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}], "bos_token": null}`}, want: "a"},
		{files: map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}`}, name: "tool_use", want: "b"},
		{files: map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "default", "template": "a"}, {"name": "other", "template": "b"}, {"name": "default", "template": "c"}]}`}, want: "c"},
		{files: map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "other", "template": "a"}]}`}, err: ErrNone},
		{files: map[string]string{"tokenizer_config.json": `{}`}, err: ErrNone},
		{files: map[string]string{}, err: ErrNone},
		{files: map[string]string{"tokenizer_config.json": `{"chat_template": 1}`}, err: ErrTemplate},
		{files: map[string]string{"chat_template.jinja": "{% for %}"}, err: ErrTemplate},
		{files: map[string]string{"tokenizer_config.json": `{`, "chat_template.jinja": "a"}, err: ErrTemplate},
		{files: map[string]string{"tokenizer_config.json": `{"Chat_Template": "one"}`}, err: ErrTemplate},
		{files: map[string]string{"tokenizer_config.json": `{"chat_template": "one", "bos_token": "<a>", "BOS_TOKEN": "<b>"}`}, err: ErrTemplate},
		{files: map[string]string{"tokenizer_config.json": `{"chat_template": "one", "bos_token": {"Content": "<b>"}}`}, err: ErrTemplate},
		{files: map[string]string{"tokenizer_config.json": `{"chat_template": [{"Name": "default", "template": "a"}]}`}, err: ErrTemplate},
		{files: map[string]string{"tokenizer_config.json": `{"chat_template": "one", "chat_template": "two"}`}, err: ErrTemplate},
		{files: map[string]string{"chat_template.jinja": "a", "additional_chat_templates/rag.jinja": "b"}, name: "rag", want: "b"},
		{files: map[string]string{"chat_template.jinja": "a", "additional_chat_templates/rag.jinja": "b"}, name: "default", want: "a"},
		{files: map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "x/rag", "template": "a"}]}`, "additional_chat_templates/rag.jinja": "b"}, name: "x/rag", want: "a"},
	} {
		dir := checkpointOf(t, c.files)
		tmpl, err := Open(dir, c.name)
		if c.err != nil || err != nil {
			if !errors.Is(err, c.err) || err == nil {
				t.Errorf("%v: %v, want %v", c.files, err, c.err)
			}
			continue
		}
		if got, err := tmpl.Render(context.Background(), Conversation{Messages: json.RawMessage(hello)}); err != nil || got != c.want {
			t.Errorf("%v: %q, %v, want %q", c.files, got, err, c.want)
		}
	}
}

// checkpointOf returns a directory with files.
func checkpointOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o777), os.WriteFile(file, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestOpenMissing: the error for a name without a template lists the names of all templates.
func TestOpenMissing(t *testing.T) {
	for _, c := range []struct {
		files      map[string]string
		name, want string // %s: the directory
	}{
		{map[string]string{}, "", `: %s`},
		{map[string]string{"tokenizer_config.json": `{"chat_template": []}`}, "rag", `: %s`},
		{map[string]string{"tokenizer_config.json": `{"chat_template": "a"}`}, "rag", ` named "rag": %s has ["default"]`},
		{map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "b", "template": ""}, {"name": "a", "template": ""}]}`}, "", ` named "default": %s has ["a" "b"]`},
		{map[string]string{"chat_template.jinja": "", "additional_chat_templates/rag.jinja": ""}, "tool_use", ` named "tool_use": %s has ["default" "rag"]`},
	} {
		dir := checkpointOf(t, c.files)
		_, err := Open(dir, c.name)
		if want := ErrNone.Error() + fmt.Sprintf(c.want, dir); !errors.Is(err, ErrNone) || err.Error() != want {
			t.Errorf("%v, name %q: %v, want %s", c.files, c.name, err, want)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "missing"), ""); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNone) {
		t.Errorf("a directory that does not exist: %v", err)
	}
}

// FuzzTemplate: Parse and Render return for any template and any messages, without a panic.
func FuzzTemplate(f *testing.F) {
	var templates map[string]string
	load(f, "templates.json", &templates)
	for _, source := range templates {
		f.Add(source, hello)
	}
	f.Add("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", hello)
	f.Fuzz(func(t *testing.T, source, messages string) {
		tmpl, err := Parse(source, special)
		if err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_, _ = tmpl.Render(ctx, Conversation{Messages: json.RawMessage(messages)})
	})
}

// FuzzGuard: the library runs no iteration of a loop before the call that guard inserts.
func FuzzGuard(f *testing.F) {
	for _, source := range []string{
		"{% for i in [1, 2] %}{{ mark(loop) }}{% endfor %}",
		"{%- for k, v in messages[0].items() if k -%}{{ mark(loop) }}{% else %}{{ mark(loop) }}{%- endfor -%}",
		"{# {% raw %} #}{% for i in 'ab' %}{{ mark(loop) }}{% endfor %}{% raw %}{% for i in 'ab' %}{{ mark(loop) }}{% endfor %}{% endraw %}",
		"{#}#}{% for i in 'ab' %}{{ mark(loop) }}{% endfor %}{% raw %}{% endraw %}",
		"{% macro f(x, y='a,b') %}{% for i in x %}{{ mark(loop) }}{% endfor %}{% endmacro %}{{ f('ab') }}",
		"{% call(x) f() %}{% for i in 'ab' %}{{ mark(loop) }}{% endfor %}{% endcall %}",
		"{% set x %}{% for i in 'ab' %}{{ mark(loop) }}{% endfor %}{% endset %}{% generation %}{{ 'a' }}{% endgeneration %}",
		`{% set x = 'a' ~ "b\"" %}{% if x == '%}' %}{% elif x %}{% for i in x %}{{ mark(loop) }}{% break %}{% endfor %}{% endif %}`,
	} {
		f.Add(source)
	}
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source, nil)
		if err != nil {
			return
		}
		values := map[string]jinja.Value{"messages": jinja.NewList([]jinja.Value{jinja.NewDict()})}
		run := &run{ctx: context.Background(), library: tmpl.library, owned: map[*jinja.List]bool{}, steps: maxSteps} // no step is left
		run.define(values)
		values["mark"] = jinja.NewCallable("mark", func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
			if len(args) > 0 && args[0].IsDict() && args[0].AsDict().Has("revindex0") {
				t.Fatalf("an iteration without a step: %q", source)
			}
			return jinja.None(), nil
		})
		_ = recovered(func() (err error) { _, err = tmpl.program.RenderValues(values); return err })
	})
}
