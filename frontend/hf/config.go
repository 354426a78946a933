package hf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"pwc/internal/openfile"
	"pwc/internal/termsafe"
)

// Config is a config.json, or an object inside one, while a [Family] reads it. Methods that read a
// key are said to honour it. At the end, keys that were neither honoured nor declared inert are
// refused, unless [Options.IgnoreKeys] lists them, so no setting of a model is ignored silently. A
// key with the value null counts as absent. Methods record problems instead of returning them, and
// the import reports all of them.
type Config struct {
	path   string // prefix of keys in messages: "" or "rope_parameters."
	values map[string]json.RawMessage
	seen   map[string]bool // honoured or inert
	inner  []*Config       // objects that were read
	report *report         // shared by a config and its objects

	context int64   // [Options.Context]; set for the file itself and its text_config
	text    *Config // text_config, after textPart has read it
}

// report collects the problems of one config.json.
type report struct {
	problems  []Problem
	ignored   map[string]bool // Options.IgnoreKeys
	longest   int64           // longest sequence according to the family, in tokens; 0: unknown
	quantized *QuantizedError // if set, returned instead of all other problems
}

// Problem is one reason why a config is refused.
type Problem struct {
	Key    string // with the names of the objects around it: "rope_scaling.factor"; empty for the file as a whole
	Reason string
}

// ConfigError lists all problems of a config.json, or of another file in its directory.
type ConfigError struct {
	File     string // empty: config.json
	Problems []Problem
	// Refused are the keys, sorted, that are neither honoured, nor inert, nor in Options.IgnoreKeys.
	Refused []string
}

// Error returns one line per problem, and one for all refused keys.
func (e *ConfigError) Error() string {
	var lines []string
	file := cmp.Or(e.File, configFile) + ": "
	for _, p := range e.Problems {
		if p.Key == "" {
			lines = append(lines, file+p.Reason)
		} else {
			lines = append(lines, file+termsafe.Quote(p.Key)+": "+p.Reason)
		}
	}
	if len(e.Refused) > 0 {
		names := make([]string, len(e.Refused))
		for i, k := range e.Refused {
			names[i] = termsafe.Quote(k)
		}
		lines = append(lines, file+"unknown keys, which may change the model: "+
			strings.Join(names, ", ")+" (list those without effect in Options.IgnoreKeys)")
	}
	return strings.Join(lines, "\n")
}

// parseConfig reads the object of a config.json without interpreting its values.
func parseConfig(text []byte) (*Config, error) {
	c := &Config{report: &report{}}
	if what := openfile.Placeholder(text); what != "" {
		return nil, &ConfigError{Problems: []Problem{{Reason: what}}}
	}
	values, err := parseObject(text)
	if err != nil {
		return nil, &ConfigError{Problems: []Problem{{Reason: err.Error()}}}
	}
	c.values, c.seen = values, map[string]bool{}
	return c, nil
}

// parseObject returns the values of a JSON object, undecoded. A key that appears twice is an error; encoding/json would
// keep the last value silently.
func parseObject(text []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("not UTF-8")
	}
	text = quoteNonFinite(text)
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	values := map[string]json.RawMessage{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("not JSON: %w", err)
		}
		key := t.(string) // inside an object, every other token is a key
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("not JSON, at key %s: %w", termsafe.Quote(key), err)
		}
		if _, dup := values[key]; dup {
			return nil, fmt.Errorf("key %s appears twice", termsafe.Quote(key))
		}
		values[key] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text follows the JSON object")
	}
	return values, nil
}

// quoteNonFinite puts quotes around Infinity, -Infinity and NaN, which Python's json module writes although JSON has no
// such numbers. A config can then hold them in keys that nothing reads. Methods that read a number refuse the strings.
func quoteNonFinite(text []byte) []byte {
	words := []string{"-Infinity", "Infinity", "NaN"}
	var out []byte // nil until the first word is quoted
	inString, done := false, 0
	for i := 0; i < len(text); i++ {
		switch {
		case inString && text[i] == '\\':
			i++
		case text[i] == '"':
			inString = !inString
		case !inString:
			for _, word := range words {
				if bytes.HasPrefix(text[i:], []byte(word)) {
					out = append(append(out, text[done:i]...), strconv.Quote(word)...)
					done = i + len(word)
					i = done - 1
					break
				}
			}
		}
	}
	if out == nil {
		return text
	}
	return append(out, text[done:]...)
}

// Errorf records a problem with the value of a key.
func (c *Config) Errorf(key, format string, args ...any) {
	c.report.problems = append(c.report.problems, Problem{Key: c.path + key, Reason: fmt.Sprintf(format, args...)})
}

// Inert declares keys that have no effect on the model's results.
func (c *Config) Inert(keys ...string) {
	for _, k := range keys {
		c.seen[k] = true
	}
}

// ignore records Options.IgnoreKeys. A key that the config does not have is a problem.
func (c *Config) ignore(keys []string) {
	c.report.ignored = make(map[string]bool, len(keys))
	for _, key := range keys {
		c.report.ignored[key] = true
		if !holds(c.values, key) {
			c.Errorf(key, "is in Options.IgnoreKeys, but the config has no such key")
		}
	}
}

// holds reports whether an object has a key. A key "a.b" is either b of the inner object a, or a key whose name has the
// dot.
func holds(values map[string]json.RawMessage, key string) bool {
	if _, ok := values[key]; ok {
		return true
	}
	for i := range len(key) {
		if key[i] != '.' {
			continue
		}
		inner, err := parseObject(values[key[:i]])
		if err == nil && holds(inner, key[i+1:]) {
			return true
		}
	}
	return false
}

// tell records the longest sequence, in tokens, that a key other than max_position_embeddings gives. The longest of
// several calls counts.
func (c *Config) tell(positions int64) { c.report.longest = max(c.report.longest, positions) }

// Has honours a key and reports whether the config has it with a value other than null.
func (c *Config) Has(key string) bool {
	_, ok := c.raw(key)
	return ok
}

// Null honours a key and reports whether the config has it with the value null. It is for keys where null and a missing
// key have different meanings.
func (c *Config) Null(key string) bool {
	c.seen[key] = true
	return string(c.values[key]) == "null"
}

func (c *Config) raw(key string) (json.RawMessage, bool) {
	c.seen[key] = true
	v, ok := c.values[key]
	return v, ok && string(v) != "null"
}

// decode honours a key and decodes its value into v. ok is false if the key is absent, or if the value is not of that
// kind, which is recorded as a problem.
func (c *Config) decode(key, kind string, v any) (ok bool) {
	raw, ok := c.raw(key)
	if !ok {
		return false
	}
	if err := json.Unmarshal(raw, v); err != nil {
		c.Errorf(key, "%s is not %s", termsafe.Line(string(raw), termsafe.MaxName), kind)
		return false
	}
	return true
}

// tokenIDs honours a token id or a list of ids. It drops duplicates, and negative ids, which some configs use for "no
// token".
func (c *Config) tokenIDs(key string) []int32 {
	raw, ok := c.raw(key)
	if !ok {
		return nil
	}
	var list []int64
	if raw[0] == '[' {
		list = c.Ints(key)
	} else {
		list = []int64{c.IntOr(key, -1, math.MinInt64, math.MaxInt32)}
	}
	var ids []int32
	for _, id := range list {
		switch {
		case id > math.MaxInt32:
			c.Errorf(key, "%d is no token id", id)
		case id >= 0 && !slices.Contains(ids, int32(id)):
			ids = append(ids, int32(id))
		}
	}
	return ids
}

// decodeList is decode for a list. A null element is a problem, because encoding/json would decode it as zero.
func (c *Config) decodeList(key, kind string, v any) {
	var elements []json.RawMessage
	if !c.decode(key, kind, &elements) {
		return
	}
	if slices.ContainsFunc(elements, func(e json.RawMessage) bool { return string(e) == "null" }) {
		c.Errorf(key, "%s is not %s", termsafe.Line(string(c.values[key]), termsafe.MaxName), kind)
		return
	}
	c.decode(key, kind, v)
}

// Int honours a required key, an integer in [lo, hi]. It returns lo if it records a problem.
func (c *Config) Int(key string, lo, hi int64) int64 {
	if !c.Has(key) {
		c.Errorf(key, "is missing")
		return lo
	}
	return c.IntOr(key, lo, lo, hi)
}

// IntOr is Int for an optional key, with its default. If it records a problem, it returns lo or the default.
func (c *Config) IntOr(key string, absent, lo, hi int64) int64 {
	var n json.Number
	if !c.decode(key, "an integer", &n) {
		return absent
	}
	v, err := strconv.ParseInt(n.String(), 10, 64)
	switch {
	case err != nil || c.values[key][0] == '"':
		c.Errorf(key, "%s is not an integer", termsafe.Line(string(c.values[key]), termsafe.MaxName))
	case v < lo || v > hi:
		c.Errorf(key, "%d is not in [%d, %d]", v, lo, hi)
	default:
		return v
	}
	return lo
}

// FloatOr honours an optional key, a finite number.
func (c *Config) FloatOr(key string, absent float64) float64 {
	v := absent
	if c.decode(key, "a number", &v) && (math.IsInf(v, 0) || math.IsNaN(v)) {
		c.Errorf(key, "%v is not finite", v)
		return absent
	}
	return v
}

// PositiveOr is FloatOr for a number that must be above 0. It returns 1 if it is not.
func (c *Config) PositiveOr(key string, absent float64) float64 {
	v := c.FloatOr(key, absent)
	if v <= 0 {
		c.Errorf(key, "%v is not above 0", v)
		return 1
	}
	return v
}

// Positive is PositiveOr for a required key.
func (c *Config) Positive(key string) float64 {
	if !c.Has(key) {
		c.Errorf(key, "is missing")
	}
	return c.PositiveOr(key, 1)
}

// BoolOr honours an optional key, a boolean.
func (c *Config) BoolOr(key string, absent bool) bool {
	v := absent
	c.decode(key, "true or false", &v)
	return v
}

// StringOr honours an optional key, a string.
func (c *Config) StringOr(key, absent string) string {
	v := absent
	c.decode(key, "a string", &v)
	return v
}

// Strings honours a list of strings, or one string. It returns nil if the key is absent.
func (c *Config) Strings(key string) []string {
	var v []string
	if raw, ok := c.raw(key); ok && raw[0] == '"' {
		return []string{c.StringOr(key, "")}
	}
	c.decodeList(key, "a list of strings", &v)
	return v
}

// Ints honours a list of integers. It returns nil if the key is absent.
func (c *Config) Ints(key string) []int64 {
	var v []int64
	c.decodeList(key, "a list of integers", &v)
	return v
}

// Floats honours a list of numbers. It returns nil if the key is absent.
func (c *Config) Floats(key string) []float64 {
	var v []float64
	c.decodeList(key, "a list of numbers", &v)
	return v
}

// OneOf honours a string that must be one of a table's keys, and returns the value of that key. Other strings are a
// problem, for which it returns the zero value.
func OneOf[T any](c *Config, key, absent string, table map[string]T) T {
	s := absent
	if c.Has(key) && !c.decode(key, "a string", &s) {
		return *new(T)
	}
	v, ok := table[s]
	if !ok {
		c.Errorf(key, "%s is not supported; supported: %s", termsafe.Quote(s), strings.Join(sortedKeys(table), ", "))
	}
	return v
}

// Object honours an object. Its keys must then be honoured or inert like those of the file. It returns nil if the key
// is absent or if it records a problem.
func (c *Config) Object(key string) *Config {
	raw, ok := c.raw(key)
	if !ok {
		return nil
	}
	values, err := parseObject(raw)
	if err != nil {
		c.Errorf(key, "%v", err)
		return nil
	}
	o := &Config{path: c.path + key + ".", values: values, seen: map[string]bool{}, report: c.report}
	c.inner = append(c.inner, o)
	return o
}

// refused returns the keys of this object and of the inner objects, sorted, that were neither honoured, nor declared
// inert, nor ignored.
func (c *Config) refused() []string {
	var keys []string
	for key, raw := range c.values {
		if !c.seen[key] && !c.report.ignored[c.path+key] && string(raw) != "null" {
			keys = append(keys, c.path+key)
		}
	}
	for _, o := range c.inner {
		keys = append(keys, o.refused()...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// err returns a [*ConfigError] with all problems and refused keys so far, or nil. For a quantized checkpoint it returns
// only a [*QuantizedError]: without another checkpoint, correcting the other problems does not help.
func (c *Config) err() error {
	if c.report.quantized != nil {
		return c.report.quantized
	}
	e := &ConfigError{Problems: c.report.problems, Refused: c.refused()}
	if len(e.Problems) == 0 && len(e.Refused) == 0 {
		return nil
	}
	return e
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
