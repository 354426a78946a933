package chat

import (
	"errors"
	"strings"
	"testing"

	"github.com/ardanlabs/jinja"
)

// TestMemoryLimits: templates that would take far more memory than a prompt may have, put a value into itself, or
// change the object loop, end with an error that names the line, except that of a method that is not called at once.
func TestMemoryLimits(t *testing.T) {
	large := "{% set x = 'a' * 4000000 %}"
	numbers := "{% set x = range(1000000000000000000, 1000000000000065536)|list %}" // printed 13 times, they have 17 million bytes
	for _, source := range []string{
		"{{ 'a' * 1000000000000 }}",
		"{% set n = 1000000000000 %}{{ 'a' * n }}",
		"{% if 'a' * 1000000000000 == 'b' %}{% endif %}",
		"{{ ('a' * 1000000000000)|length }}",
		"{{ ('a' * 10000) * 10000 }}",
		"{{ 'a' * 10000 * 10000 }}",
		"{{ 'a' * (10000 + 1) }}",
		"{{ 'a' * 40|replace('40', '1000000000000')|int }}",
		"{{ 'a'\u00a0*\u00a01000000000000 }}",
		"{{ +'a' * 1000000000000 }}",
		"{{ 2 * 3 ~ 'a' * 1000000000000 }}",
		"{% set x = 'a' %}" + strings.Repeat("{% set x = x ~ x %}", 60),
		"{% set x = 'a' %}" + strings.Repeat("{% set x = x + x %}", 60),
		"{% set x = [1] %}" + strings.Repeat("{% set x = x + x %}", 60),
		"{% set x = [1] %}" + strings.Repeat("{% set x = [x, x] %}", 60),
		"{% set x = {'a': 1} %}" + strings.Repeat("{% set x = {'a': x, 'b': x} %}", 60),
		"{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
		"{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('a') }}",
		"{% macro f(x, y='b') %}{% if x|length < 1000000000000 %}{{ f(x ~ x, y ~ y) }}{% endif %}{% endmacro %}{{ f('a', 'b') }}",
		"{% macro h(z) %}{{ caller(z ~ z) }}{% endmacro %}{% macro g(x) %}{% call(y) h(x ~ x) %}{{ g(y) }}{% endcall %}{% endmacro %}{{ g('a') }}",
		"{% for a in ['aaaaaaaaaa'] %}" + strings.Repeat("{% for a in [a ~ a ~ a ~ a ~ a ~ a ~ a ~ a] %}", 20) + strings.Repeat("{% endfor %}", 21),
		large + "{{ x|replace('a', x) }}",
		large + "{{ x.replace('a', x) }}",
		large + "{{ x.replace('', x)|length }}",
		large + "{{ x[:1000]|list|join(x) }}",
		large + "{{ [1, 2, 3, 4, 5, 6, 7]|join(d=x) }}",
		numbers + "{{ [" + strings.Repeat("x, ", 13) + "]|join('')|length }}",
		numbers + "{{ [" + strings.Repeat("x, ", 13) + "]|indent|length }}",
		large + "{{ '{0}{0}{0}{0}{0}'.format(x) }}",
		"{{ 'a\nb'|indent(1000000000000) }}",
		"{{ 'a\nb'|indent(width=1000000000000) }}",
		"{{ 'a\nb'|indent('1000000000000') }}",
		"{% for i in range(60000) %}" + strings.Repeat("x", 10000) + "{% endfor %}",
		"{% macro f() %}" + strings.Repeat("x", 10000) + "{% endmacro %}{% for i in range(60000) %}{% if f() %}{% endif %}{% endfor %}",
		"{% for i in range(60000) %}{% raw %}" + strings.Repeat("x", 10000) + "{% endraw %}{% endfor %}",
		large + "{% for i in range(60000) %}{{ x }}{% endfor %}",
		large + "{% set y %}{% for i in range(60000) %}{{ x }}{% endfor %}{% endset %}",
		"{% set x = [1] %}{{ x.append(x) }}{{ x }}",
		"{% set x = [1] %}{% set y = x.append %}{{ y(x) }}{{ x.append(x) }}",
		"{% set x = [1] %}{{ x.insert(0, [x]) }}{{ x == x }}",
		"{% set x = {} %}{{ x.update({'x': [x]}) }}{{ x }}",
		"{% set x = namespace(a=1) %}{% set x.a = {'x': x} %}{{ x }}",
		"{% set x = [] %}{% set y = [x] %}{{ x.append(y) }}{{ y|string }}",
		"{% set x = [1] %}{% set c = cycler(1, x) %}{% set f = c.next %}{% set y = [c.pop('next'), c.pop('reset'), x.append(c)] %}{{ f() }}{{ x|string }}",
		"{% set x = [1] %}{% for i in [0, 0, x] %}{% set y = loop.pop('nextitem') %}{% endfor %}",
		"{% set x = [1] %}{% for i in [0, 0, x] %}{% set loop.a = 0 %}{% endfor %}",
		"{% for i in [0, 0] %}{{ loop.update({'a': 0}) }}{% endfor %}",
		"{% set x = [1] %}{{ x.append(2) }}{% set y = x|map %}{{ x.append(0) }}{{ y.append([x]) }}{{ x.append(y) }}",
		"{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
	} {
		_, err := render(t, "\n\n"+source, hello)
		if !errors.Is(err, ErrLimit) && !errors.Is(err, ErrTemplate) {
			t.Errorf("%.100q: %v, want %v or %v", source, err, ErrLimit, ErrTemplate)
		} else if !strings.Contains(err.Error(), "line 3") && !strings.Contains(err.Error(), "line 4") && !strings.Contains(source, "y(x)") {
			t.Errorf("%.100q: %v names neither line 3 nor line 4", source, err)
		}
	}
	for _, source := range []string{"{{ messages[0:1000000000000:2] }}", "{{ messages[i::2] }}", "{{ messages['1000000000000'::-1] }}", "{{ messages[:(9):2] }}"} {
		if _, err := render(t, source, hello); !errors.Is(err, ErrTemplate) {
			t.Errorf("%s: %v, want %v", source, err, ErrTemplate)
		}
	}
}

// TestLimitedValues: expressions within the limits have the values that the library gives them without guard.
func TestLimitedValues(t *testing.T) {
	for _, c := range []struct{ source, want string }{
		{"{{ '-' * 3 }}{{ 2 * 3 }}{% set n = 2 %}{{ 'ab' * n }}{{ n * n * n }}{{ (1 + n) * (n + 2) }}{{ 6 / 3 * 'a' * 2 if false }}", "---6abab812"},
		{"{{- 'ab' * messages[0].n -}}", "abab"},
		{"{% set ns = namespace(a='x') %}{%- set ns.a = ns.a ~ 'y' -%} {{ ns.a }}", "xy"},
		{"{% set x = [1] %}{% set y = x.append(2) %}{{ x.insert(0, 0) or '' }}{% set z = x.append(x[0]) %}{{ x }}", "[0, 1, 2, 0]"},
		{"{% set x = [1, 2] %}{% for i in x %}{% set y = x.append(i) %}{{ i }}{% endfor %}{{ x|length }}", "124"},
		{"{% set x = [1, 2] %}{% set y = x|map %}{% set z = [x.append(3), y.append([x]), x.pop(0), x.append(4)] %}{{ x }}{{ y }}{{ x.pop() }}{{ x.pop(-1) }}", "[2, 3, 4][1, 2, [[2, 3, 4]]]43"},
		{"{% set d = {'a': 1, 'b': 2} %}{{ d.pop('a') }}{{ d.pop('c', 'no') }}{{ d }}", "1no{'b': 2}"},
		{"{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.reset() or '' }}{{ c.current }}", "abbaa"},
		{"{% set x = {'a': 1} %}{% set y = x.update({'b': [1]}) %}{{ x.b[0] }}{{ x.a }}{{ x.format is defined }}", "11False"},
		{"{% set x = {'format': 'date', 'update': 1} %}{{ x.format }}{{ x.update }}{{ x.format is defined }}", "date1True"},
		{"{{ 'aXbX'.replace('X', '--') }}{{ 'aXbX'.replace('X', '', 1) }}{{ 'aXbX'|replace('X', 'y') }}{{ '{} {1}'.format('a', 'b') }}", "a--b--abXaybya b"},
		{"{{ ['a', 1]|join(', ') }}{{ [{'a': 'x'}, {'a': 'y'}]|join('+', attribute='a') }}{{ 'a\nb'|indent(2) }}", "a, 1x+ya\n  b"},
		{"{{ '01234'[::-1] }}{{ '01234'[1:4:2] }}{{ {'a': 1, 'b': 2, 'c': 3}.b }}{{ '01234'[1:][:-1] }}", "43210132123"},
		{"{{ (1, 2) }}{{ [] }}{{ }}{{ '}' }}", "[1, 2][]}"},
		{"{% for a, b in {'x': 1}.items() %}{{ a }}{{ b }}{% endfor %}", "x1"},
		{"{% macro f(a, b='c') %}{{ a }}{{ b }}{{ caller(b) }}{% endmacro %}{% call(x) f(1) %}{{ x }}{% endcall %}", "1cc"},
	} {
		if got, err := render(t, c.source, `[{"n": 2}]`); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.source, got, err, c.want)
		}
		program, err := jinja.Compile(c.source)
		if err != nil {
			t.Fatal(err)
		}
		messages, _ := parseValue([]byte(`[{"n": 2}]`)) // valid JSON
		if got, err := program.RenderValues(map[string]jinja.Value{"messages": messages}); err != nil || got != c.want {
			t.Errorf("%s without guard: %q, %v, want %q", c.source, got, err, c.want)
		}
	}
}
