package chat

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Names that guard inserts into templates. No template of a checkpoint uses them.
const (
	stepName  = "pwc_step"
	enterName = "pwc_enter"
	leaveName = "pwc_leave"
	jsonName  = "pwc_tojson"
)

// Limits of a template's text. The interpreter recurses for each of these.
const (
	maxBrackets = 64      // nested
	maxBlocks   = 64      // nested
	maxCode     = 4 << 10 // bytes of a tag outside of strings
)

var (
	tagWord = regexp.MustCompile(`^\{%[-+]?\s*(\w+)`)
	// rawTag begins literal text.
	rawTag = regexp.MustCompile(`^\{%[-+]?\s*raw\s*[-+]?%\}`)
	endRaw = regexp.MustCompile(`\{%[-+]?\s*endraw\s*[-+]?%\}`)
	// jsonFilter is pwc's filter. The library's sorts keys if it indents.
	jsonFilter = regexp.MustCompile(`\|(\s*)tojson\b`)
)

// guarding is the state of guard.
type guarding struct {
	out    strings.Builder
	blocks int // open blocks
}

// guard returns the template with calls of stepName in loops, calls of enterName and leaveName in
// macros, and pwc's tojson. Each call is in an if tag with the whitespace marks of the tag next
// to it, so whitespace does not change (Jinja, "Whitespace Control"). guard refuses templates
// that nest too deep.
func guard(source string) (string, error) {
	var g guarding
	for at := 0; at < len(source); {
		open := strings.IndexByte(source[at:], '{')
		if open < 0 {
			g.out.WriteString(source[at:])
			break
		}
		g.out.WriteString(source[at : at+open])
		at += open
		n, err := g.tag(source[at:])
		if err != nil {
			return "", fmt.Errorf("line %d: %w", 1+strings.Count(source[:at], "\n"), err)
		}
		at += n
	}
	return g.out.String(), nil
}

// tag writes the tag or brace at the start of s, and returns its bytes.
func (g *guarding) tag(s string) (int, error) {
	switch {
	case strings.HasPrefix(s, "{#"):
		n := strings.Index(s, "#}") + 2
		if n < 2 {
			return 0, errors.New("a comment has no end")
		}
		g.out.WriteString(s[:n])
		return n, nil
	case rawTag.MatchString(s):
		end := endRaw.FindStringIndex(s)
		if end == nil {
			return 0, errors.New("a raw block has no end")
		}
		g.out.WriteString(s[:end[1]])
		return end[1], nil
	case strings.HasPrefix(s, "{{"):
		n, err := tagEnd(s, "}}")
		if err != nil {
			return 0, err
		}
		return n, g.code(s[:n])
	case strings.HasPrefix(s, "{%"):
		n, err := tagEnd(s, "%}")
		if err != nil {
			return 0, err
		}
		return n, g.statement(s[:n])
	}
	g.out.WriteByte('{')
	return 1, nil
}

// statement writes a tag with the call that belongs to it.
func (g *guarding) statement(tag string) error {
	word := ""
	if m := tagWord.FindStringSubmatch(tag); m != nil {
		word = m[1]
	}
	begin, end := "{%", "%}"
	if c := tag[2]; c == '-' || c == '+' {
		begin += string(c)
	}
	if c := tag[len(tag)-3]; (c == '-' || c == '+') && len(tag) > 5 {
		end = string(c) + end
	}
	switch word {
	case "if", "for", "macro", "call", "filter", "with", "block":
		if g.blocks++; g.blocks > maxBlocks {
			return fmt.Errorf("more than %d blocks within each other", maxBlocks)
		}
	case "endmacro", "endcall":
		g.out.WriteString(begin + " if " + leaveName + "() %}{% endif %}")
		fallthrough
	default:
		if strings.HasPrefix(word, "end") {
			g.blocks--
		}
	}
	if err := g.code(tag); err != nil {
		return err
	}
	switch word {
	case "for":
		g.out.WriteString("{% if " + stepName + "() %}{% endif " + end)
	case "macro", "call":
		g.out.WriteString("{% if " + enterName + "() %}{% endif " + end)
	}
	return nil
}

// code writes a tag with renamed functions.
func (g *guarding) code(tag string) error {
	depth, deepest, size := 0, 0, 0
	g.out.WriteString(outsideStrings(tag, func(code string) string {
		size += len(code)
		for i := range len(code) {
			switch code[i] {
			case '(', '[', '{':
				depth++
				deepest = max(deepest, depth)
			case ')', ']', '}':
				depth--
			}
		}
		return jsonFilter.ReplaceAllString(code, "|${1}"+jsonName)
	}))
	switch {
	case size > maxCode:
		return fmt.Errorf("a tag has %d bytes outside of strings, at most %d are allowed", size, maxCode)
	case deepest > maxBrackets+2:
		return fmt.Errorf("more than %d brackets within each other", maxBrackets)
	}
	return nil
}

// tagEnd returns the bytes of a tag, which ends at its mark outside of strings.
func tagEnd(s, mark string) (int, error) {
	for i := 2; i < len(s); {
		switch {
		case s[i] == '\'' || s[i] == '"':
			n := stringEnd(s[i:])
			if n < 0 {
				return 0, errors.New("a string has no end")
			}
			i += n
		case strings.HasPrefix(s[i:], mark):
			return i + len(mark), nil
		default:
			i++
		}
	}
	return 0, fmt.Errorf("a tag has no %s", mark)
}

// stringEnd returns the bytes of the string literal at the start of s; -1 if it has no end.
func stringEnd(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			return i + 1
		}
	}
	return -1
}

// outsideStrings changes the parts of a tag between its string literals.
func outsideStrings(tag string, change func(string) string) string {
	var out strings.Builder
	from := 0
	for i := 0; i < len(tag); {
		if tag[i] != '\'' && tag[i] != '"' {
			i++
			continue
		}
		n := stringEnd(tag[i:])
		out.WriteString(change(tag[from:i]))
		out.WriteString(tag[i : i+n])
		i += n
		from = i
	}
	out.WriteString(change(tag[from:]))
	return out.String()
}
