package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ardanlabs/jinja"
)

// maxDepth bounds the nesting of JSON values. maxIndent bounds the bytes by which tojson indents a level.
const maxDepth, maxIndent = 100, 16

// parseValue returns JSON as a value of templates. Objects keep the order of keys, as in Python. An integer that is
// no int64 becomes a float.
func parseValue(text []byte) (jinja.Value, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := decodeValue(d, 0)
	if err != nil {
		return v, err
	}
	if _, err := d.Token(); err != io.EOF {
		return v, errors.New("more than one JSON value")
	}
	return v, nil
}

func decodeValue(d *json.Decoder, depth int) (jinja.Value, error) {
	if depth > maxDepth {
		return jinja.None(), fmt.Errorf("nested more than %d deep", maxDepth)
	}
	token, err := d.Token()
	if err != nil {
		return jinja.None(), err
	}
	switch x := token.(type) {
	case json.Delim:
		if x == '{' {
			return decodeDict(d, depth)
		}
		return decodeList(d, depth)
	case bool:
		return jinja.NewBool(x), nil
	case string:
		return jinja.NewString(x), nil
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return jinja.NewInt(n), nil
		}
		f, err := x.Float64()
		return jinja.NewFloat(f), err
	}
	return jinja.None(), nil
}

func decodeDict(d *json.Decoder, depth int) (jinja.Value, error) {
	v := jinja.NewDict()
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return v, err
		}
		item, err := decodeValue(d, depth+1)
		if err != nil {
			return v, err
		}
		v.AsDict().Set(key.(string), item)
	}
	_, err := d.Token()
	return v, err
}

func decodeList(d *json.Decoder, depth int) (jinja.Value, error) {
	var items []jinja.Value
	for d.More() {
		item, err := decodeValue(d, depth+1)
		if err != nil {
			return jinja.None(), err
		}
		items = append(items, item)
	}
	_, err := d.Token()
	return jinja.NewList(items), err
}

// toJSON is the filter tojson of transformers: Python's json.dumps, by default with ensure_ascii=False
// (chat_template_utils.py, "tojson"). Each level is indented by at most maxIndent bytes.
func (r *run) toJSON(args []jinja.Value, options map[string]jinja.Value) (jinja.Value, error) {
	if len(args) == 0 {
		return r.fail(fmt.Errorf("%w: tojson takes a value", ErrTemplate))
	}
	e := encoder{item: ", ", key: ": "}
	names := []string{"ensure_ascii", "indent", "separators", "sort_keys"}
	for i, a := range args[1:] {
		if i >= len(names) {
			return r.fail(fmt.Errorf("%w: tojson takes a value and at most %d options", ErrTemplate, len(names)))
		}
		if options == nil {
			options = map[string]jinja.Value{}
		}
		options[names[i]] = a
	}
	for name := range options {
		if !slices.Contains(names, name) {
			return r.fail(fmt.Errorf("%w: tojson has no option %s", ErrTemplate, name))
		}
	}
	if v, ok := options["indent"]; ok && !v.IsNone() {
		switch {
		case v.IsInt():
			e.indent = strings.Repeat(" ", int(min(max(v.AsInt(), 0), maxIndent)))
		case v.IsString() && len(v.AsString()) <= maxIndent:
			e.indent = v.AsString()
		default:
			return r.fail(fmt.Errorf("%w: indent of tojson is an integer or a text of at most %d bytes", ErrTemplate, maxIndent))
		}
		e.lines, e.item = true, ","
	}
	if v, ok := options["separators"]; ok && !v.IsNone() {
		if !v.IsList() || v.AsList().Len() != 2 || !v.AsList().Get(0).IsString() || !v.AsList().Get(1).IsString() {
			return r.fail(fmt.Errorf("%w: separators of tojson are two strings", ErrTemplate))
		}
		e.item, e.key = v.AsList().Get(0).AsString(), v.AsList().Get(1).AsString()
	}
	if v, ok := options["ensure_ascii"]; ok {
		e.ascii = v.IsTruthy()
	}
	if v, ok := options["sort_keys"]; ok {
		e.sorted = v.IsTruthy()
	}
	if err := e.value(args[0], 0); err != nil {
		return r.fail(err)
	}
	return jinja.NewString(e.out.String()), nil
}

// encoder writes values as Python's json module does.
type encoder struct {
	out           strings.Builder
	item, key     string // separators
	lines         bool   // each item has a line
	indent        string // of each level, if lines
	ascii, sorted bool
}

func (e *encoder) value(v jinja.Value, depth int) error {
	switch {
	case depth > maxDepth || e.out.Len() > MaxResult:
		return fmt.Errorf("%w: tojson of a value that is too deep or too large", ErrLimit)
	case v.IsDict():
		return e.dict(v.AsDict(), depth)
	case v.IsList():
		e.out.WriteByte('[')
		for i := range v.AsList().Len() {
			e.next(i, depth)
			if err := e.value(v.AsList().Get(i), depth+1); err != nil {
				return err
			}
		}
		e.close(']', v.AsList().Len(), depth)
	case v.IsString():
		e.text(v.AsString())
	case v.IsBool():
		e.out.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsInt():
		e.out.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		e.out.WriteString(pythonFloat(v.AsFloat()))
	case v.IsNone():
		e.out.WriteString("null")
	default:
		return fmt.Errorf("%w: tojson of a value that JSON does not have", ErrTemplate)
	}
	return nil
}

func (e *encoder) dict(d *jinja.Dict, depth int) error {
	keys := d.OrderedKeys()
	if e.sorted {
		keys = slices.Sorted(slices.Values(keys))
	}
	e.out.WriteByte('{')
	for i, key := range keys {
		e.next(i, depth)
		e.text(key)
		e.out.WriteString(e.key)
		item, _ := d.Get(key)
		if err := e.value(item, depth+1); err != nil {
			return err
		}
	}
	e.close('}', len(keys), depth)
	return nil
}

// next begins an item of a list or object.
func (e *encoder) next(i, depth int) {
	if i > 0 {
		e.out.WriteString(e.item)
	}
	e.line(depth + 1)
}

func (e *encoder) close(c byte, items, depth int) {
	if items > 0 {
		e.line(depth)
	}
	e.out.WriteByte(c)
}

func (e *encoder) line(depth int) {
	if e.lines {
		e.out.WriteByte('\n')
		e.out.WriteString(strings.Repeat(e.indent, depth))
	}
}

// text writes a string with the escapes of Python's json.
func (e *encoder) text(s string) {
	e.out.WriteByte('"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			e.out.WriteByte('\\')
			e.out.WriteRune(c)
		case c == '\n':
			e.out.WriteString(`\n`)
		case c == '\r':
			e.out.WriteString(`\r`)
		case c == '\t':
			e.out.WriteString(`\t`)
		case c == '\b':
			e.out.WriteString(`\b`)
		case c == '\f':
			e.out.WriteString(`\f`)
		case c < ' ' || e.ascii && c > '~' && c < 0x10000:
			fmt.Fprintf(&e.out, `\u%04x`, c)
		case e.ascii && c >= 0x10000:
			c -= 0x10000 // UTF-16 surrogates
			fmt.Fprintf(&e.out, `\u%04x\u%04x`, 0xd800+c>>10, 0xdc00+c&0x3ff)
		default:
			e.out.WriteRune(c)
		}
	}
	e.out.WriteByte('"')
}

// pythonFloat writes a number as Python's json module does: as repr, but NaN and Infinity.
func pythonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		format = 'e'
	}
	s := strconv.FormatFloat(f, format, -1, 64)
	if format == 'f' && !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
