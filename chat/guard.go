package chat

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// Names that guard inserts into templates. guard refuses templates that contain them.
const (
	stepName  = "pwc_step"
	enterName = "pwc_enter"
	leaveName = "pwc_leave"
	jsonName  = "pwc_tojson"
)

// filterPrefix begins the names of the library's filters, which a template could call without guard.
const filterPrefix = "__filter_"

// Limits of a template's text, because the interpreter recurses for brackets, blocks and operators.
const (
	maxBrackets = 64      // nested
	maxBlocks   = 64      // nested
	maxCode     = 4 << 10 // bytes of a tag outside of strings
)

// jsonFilter matches a use of the filter tojson. guard replaces it by jsonName, because the library's
// tojson sorts keys if it indents. The library ignores bytes between | and the name that are in no token.
var jsonFilter = regexp.MustCompile(`\|([^\w'"(),.:\[\]{}|~+\-*/%<>=]*)tojson\b`)

// guarding is the state of guard.
type guarding struct {
	out  strings.Builder
	open []string // words of the open blocks, such as "for"
	raw  bool     // in a raw block
}

// guard returns the template with calls of stepName in loops, calls of enterName and leaveName in
// macros and call blocks, and pwc's tojson. Each call is in an if tag with the whitespace marks of the
// tag next to it, so whitespace does not change (Jinja, "Whitespace Control"). guard refuses templates
// that exceed the limits above, and templates that it could read differently from the library: it finds
// tags, strings and the words of statements as the library does (jinja/scan.go, jinja/parse.go).
func guard(source string) (string, error) {
	for _, name := range [...]string{stepName, enterName, leaveName, jsonName, filterPrefix} {
		if at := strings.Index(source, name); at >= 0 {
			return "", lineError(source[:at], fmt.Errorf("templates must not contain the name %s", name))
		}
	}
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
			return "", lineError(source[:at], err)
		}
		at += n
	}
	switch {
	case g.raw:
		return "", errors.New("a raw block has no end")
	case len(g.open) > 0:
		return "", fmt.Errorf("a block %s has no end", g.open[len(g.open)-1])
	}
	return g.out.String(), nil
}

func lineError(before string, err error) error {
	return fmt.Errorf("line %d: %w", 1+strings.Count(before, "\n"), err)
}

// tag writes the tag, comment or brace at the start of s, and returns its length in bytes.
func (g *guarding) tag(s string) (int, error) {
	n, err := 1, error(nil)
	kind := s[:min(2, len(s))]
	switch kind {
	case "{#":
		n, err = commentEnd(s)
	case "{{":
		n, err = tagEnd(s, "}}")
	case "{%":
		n, err = tagEnd(s, "%}")
	}
	switch {
	case err != nil:
		return 0, err
	case g.raw:
		g.raw = kind != "{%" || statementWord(s[:n]) != "endraw"
		g.out.WriteString(s[:n])
	case kind == "{{":
		err = g.code(s[:n])
	case kind == "{%":
		err = g.statement(s[:n])
	default:
		g.out.WriteString(s[:n])
	}
	return n, err
}

// statement writes a tag with the call that belongs to it.
func (g *guarding) statement(tag string) error {
	word := statementWord(tag)
	if err := g.nest(word, tag); err != nil {
		return err
	}
	if err := checkStrings(word, tag); err != nil {
		return err
	}
	begin, end := "{%", "%}"
	if strings.HasPrefix(tag, "{%-") {
		begin += "-"
	}
	if strings.HasSuffix(tag, "-%}") && len(tag) > len("{%-%}") {
		end = "-" + end
	}
	if word == "endmacro" || word == "endcall" {
		g.out.WriteString(begin + " if " + leaveName + "() %}{% endif %}")
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

// nest records the block that a tag begins or ends. It refuses unknown statements, ends without a
// beginning, and more than maxBlocks nested blocks.
func (g *guarding) nest(word, tag string) error {
	block, ends := strings.CutPrefix(word, "end")
	switch block {
	case "if", "for", "macro", "call", "filter", "generation", "set":
	case "raw":
		g.raw = !ends
		if ends {
			return errors.New("endraw ends no raw block")
		}
		return nil
	case "elif", "else", "break", "continue":
		if !ends {
			return nil
		}
		fallthrough
	default:
		return fmt.Errorf("unknown statement %q", word)
	}
	switch last := len(g.open) - 1; {
	case ends && (last < 0 || g.open[last] != block):
		return fmt.Errorf("%s ends no block", word)
	case ends:
		g.open = g.open[:last]
	case block == "set" && strings.Contains(tag, "="):
	case len(g.open) == maxBlocks:
		return fmt.Errorf("more than %d blocks within each other", maxBlocks)
	default:
		g.open = append(g.open, block)
	}
	return nil
}

// checkStrings refuses strings in the parts of a tag that the library splits without regard to strings,
// because it would run text of a string. A macro's parameters are such parts, too, but their default
// values have strings, so they are checked as the library splits them. They must have no call or filter,
// because the library computes them before the call of enterName.
func checkStrings(word, tag string) error {
	switch word {
	case "set":
		if target, _, _ := strings.Cut(tag, "="); strings.ContainsAny(target, `'"`) {
			return errors.New("the target of a set statement contains a string")
		}
	case "call":
		args := strings.TrimSpace(strings.TrimPrefix(statementText(tag), word))
		if args, _, _ := strings.Cut(args, ")"); strings.HasPrefix(args, "(") && strings.ContainsAny(args, `'"`) {
			return errors.New("the parameters of a call block contain a string")
		}
	case "macro":
		_, parameters, _ := strings.Cut(tag, "(")
		for parameter := range strings.SplitSeq(parameters, ",") {
			_, value, _ := strings.Cut(parameter, "=")
			if err := checkCode(value); err != nil {
				return err
			}
			calls := false
			outsideStrings(value, func(code string) string {
				calls = calls || strings.ContainsAny(code, "(|")
				return ""
			})
			if calls {
				return errors.New("the default value of a macro's parameter has a call or a filter")
			}
		}
	}
	return nil
}

// statementText returns the text between the marks of a tag.
func statementText(tag string) string {
	return strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(tag[2:len(tag)-2], "-"), "-"))
}

// statementWord returns the word that begins a statement, by the library's rule (stmtKeyword).
func statementWord(tag string) string {
	text := statementText(tag)
	end := strings.IndexFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && r != '_' })
	if end < 0 {
		return text
	}
	return text[:end]
}

// code checks the limits of a tag, and writes it with tojson replaced by jsonName.
func (g *guarding) code(tag string) error {
	g.out.WriteString(outsideStrings(tag, func(code string) string {
		return jsonFilter.ReplaceAllString(code, "|${1}"+jsonName)
	}))
	return checkCode(tag[2 : len(tag)-2])
}

// checkCode refuses an expression, or the text of a tag, that exceeds maxCode or maxBrackets.
func checkCode(text string) error {
	depth, deepest, size := 0, 0, 0
	outsideStrings(text, func(code string) string {
		size += len(code)
		for i := range len(code) {
			switch code[i] {
			case '(', '[', '{':
				depth++
				deepest = max(deepest, depth)
			case ')', ']', '}':
				depth = max(depth-1, 0)
			}
		}
		return ""
	})
	switch {
	case size > maxCode:
		return fmt.Errorf("a tag has %d bytes outside of strings, at most %d are allowed", size, maxCode)
	case deepest > maxBrackets:
		return fmt.Errorf("more than %d brackets within each other", maxBrackets)
	}
	return nil
}

// commentEnd returns the length of a comment in bytes.
func commentEnd(s string) (int, error) {
	n := strings.Index(s[2:], "#}")
	if n < 0 {
		return 0, errors.New("a comment has no end")
	}
	return 2 + n + 2, nil
}

// tagEnd returns the length of a tag in bytes. The tag ends at the first mark outside of strings.
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

// stringEnd returns the length in bytes of the string literal at the start of s; -1 if it has no end.
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

// outsideStrings changes the parts of a text between its string literals. A literal without an end
// reaches to the end of the text.
func outsideStrings(text string, change func(string) string) string {
	var out strings.Builder
	from := 0
	for i := 0; i < len(text); {
		if text[i] != '\'' && text[i] != '"' {
			i++
			continue
		}
		n := stringEnd(text[i:])
		if n < 0 {
			n = len(text) - i
		}
		out.WriteString(change(text[from:i]))
		out.WriteString(text[i : i+n])
		i += n
		from = i
	}
	out.WriteString(change(text[from:]))
	return out.String()
}
