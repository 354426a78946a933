package chat

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Names that guard inserts into templates. guard refuses templates that contain them.
const (
	stepName  = "pwc_step"
	enterName = "pwc_enter"
	leaveName = "pwc_leave"
	jsonName  = "pwc_tojson"

	atName     = "pwc_at"
	printName  = "pwc_print"
	setName    = "pwc_set"
	factorName = "pwc_factor"

	// The prefixes of the filters that replace matches of limitedFilter and limitedMethod.
	filterName, methodName = "pwc_f_", "pwc_m_"
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
var jsonFilter = regexp.MustCompile(`\|` + noToken + `tojson\b`)

// noToken matches bytes that the library ignores.
const noToken = `([^\w'"(),.:\[\]{}|~+\-*/%<>=]*)`

var (
	limitedFilter = regexp.MustCompile(`\|` + noToken + `(replace|join|indent)\b`)
	limitedMethod = regexp.MustCompile(`\.` + noToken + `(replace|format|append|insert|pop|update)\b`)

	// simpleOperand matches an operand that an expression may compute twice, and the byte after it.
	simpleOperand = regexp.MustCompile(`^\s*([0-9]+|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[[0-9]+\])*)(\s*$|\s*[)\]},:+\-~/%<>=!]|\s+[a-z])`)
	smallBound    = regexp.MustCompile(`^\s*-?[0-9]{0,6}\s*$`)
	inWord        = regexp.MustCompile(`\bin\b`)
	identifier    = regexp.MustCompile(`^[A-Za-z_]\w*$`)
)

// guarding is the state of guard.
type guarding struct {
	out   strings.Builder
	line  int     // of the tag
	open  []block // that have no end so far
	holes []hole
	raw   bool // in a raw block
}

// block is an open block: its word, such as "for", and the hole for the bytes of its text, or -1.
type block struct {
	word string
	hole int
}

// hole is a place in guarding.out for a number: the bytes of text in a loop, a macro or a call block,
// without those in inner ones.
type hole struct{ at, bytes int }

// text writes text of the template.
func (g *guarding) text(s string) {
	g.out.WriteString(s)
	for _, b := range slices.Backward(g.open) {
		if b.hole >= 0 {
			g.holes[b.hole].bytes += len(s)
			return
		}
	}
}

// filled returns the guarded template.
func (g *guarding) filled() string {
	var out strings.Builder
	from, text := 0, g.out.String()
	for _, h := range g.holes {
		out.WriteString(text[from:h.at])
		out.WriteString(strconv.Itoa(h.bytes))
		from = h.at
	}
	out.WriteString(text[from:])
	return out.String()
}

// guard returns the template with calls of stepName in loops, calls of enterName and leaveName in
// macros and call blocks, and pwc's tojson. Each call of these three functions is in an if tag with the whitespace
// marks of the tag next to it, so whitespace does not change (Jinja, "Whitespace Control"). Values of expression tags
// and of set statements pass through printName and setName, left operands of * through factorName, and calls of
// some filters and methods become calls of filters of this package. guard refuses templates
// that exceed the limits above, and templates that it could read differently from the library: it finds
// tags, strings and the words of statements as the library does (jinja/scan.go, jinja/parse.go).
func guard(source string) (string, error) {
	for _, name := range [...]string{stepName, enterName, leaveName, jsonName, atName, printName, setName, factorName, filterName, methodName, filterPrefix} {
		if at := strings.Index(source, name); at >= 0 {
			return "", lineError(source[:at], fmt.Errorf("templates must not contain the name %s", name))
		}
	}
	g := guarding{line: 1}
	for at := 0; at < len(source); {
		open := strings.IndexByte(source[at:], '{')
		if open < 0 {
			g.text(source[at:])
			break
		}
		g.text(source[at : at+open])
		g.line += strings.Count(source[at:at+open], "\n")
		at += open
		n, err := g.tag(source[at:])
		if err != nil {
			return "", fmt.Errorf("line %d: %w", g.line, err)
		}
		g.line += strings.Count(source[at:at+n], "\n")
		at += n
	}
	switch {
	case g.raw:
		return "", errors.New("a raw block has no end")
	case len(g.open) > 0:
		return "", fmt.Errorf("a block %s has no end", g.open[len(g.open)-1].word)
	}
	return g.filled(), nil
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
		g.text(s[:n])
	case kind == "{{":
		err = g.output(s[:n])
	case kind == "{%":
		err = g.statement(s[:n])
	case kind == "{#":
		g.out.WriteString(s[:n])
	default:
		g.text(s[:n])
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
	if err := g.code(word, tag); err != nil {
		return err
	}
	switch word {
	case "for":
		g.charge(stepName, bound(word, tag), end)
	case "macro", "call":
		g.charge(enterName, bound(word, tag), end)
	}
	return nil
}

// charge writes a call for the block that was opened last. Its arguments are the line, a hole for the
// bytes of text of the block, and the names that the block binds.
func (g *guarding) charge(call string, names []string, end string) {
	fmt.Fprintf(&g.out, "{%% if %s(%d, ", call, g.line)
	g.open[len(g.open)-1].hole = len(g.holes)
	g.holes = append(g.holes, hole{at: g.out.Len()})
	for _, name := range names {
		g.out.WriteString(", " + name)
	}
	g.out.WriteString(") %}{% endif " + end)
}

// bound returns the names that a for, macro or call tag binds.
func bound(word, tag string) []string {
	text := strings.TrimSpace(strings.TrimPrefix(statementText(tag), word))
	switch word {
	case "for":
		if at := inWord.FindStringIndex(text); at != nil {
			text = text[:at[0]]
		}
	case "macro":
		_, text, _ = strings.Cut(text, "(")
		text = strings.TrimSuffix(text, ")")
	case "call":
		if !strings.HasPrefix(text, "(") {
			return nil
		}
		text, _, _ = strings.Cut(text[1:], ")")
	}
	var names []string
	for name := range strings.SplitSeq(text, ",") {
		name, _, _ = strings.Cut(name, "=")
		if name = strings.TrimSpace(name); identifier.MatchString(name) {
			names = append(names, name)
		}
	}
	return names
}

// output writes an expression tag whose value passes through printName.
func (g *guarding) output(tag string) error {
	begin, end := "{{", "}}"
	if strings.HasPrefix(tag, "{{-") {
		begin += "-"
	}
	if strings.HasSuffix(tag, "-}}") && len(tag) > len("{{-}}") {
		end = "-" + end
	}
	text, err := g.wrapped(printName, statementText(tag), "")
	g.out.WriteString(begin + " " + text + " " + end)
	return err
}

// wrapped returns a call of a function with the expression in text, limited, and a further argument. The line is the
// first argument because arguments are computed in order: errors of the expression have it.
func (g *guarding) wrapped(call, text, more string) (string, error) {
	if err := checkCode(text); err != nil {
		return "", err
	}
	if text == "" {
		return "", nil
	}
	if !closed(text) {
		return "", errors.New("a closing bracket has no opening one")
	}
	return fmt.Sprintf("%s(%s(%d), (%s)%s)", call, atName, g.line, g.limited(text), more), nil
}

// closed reports whether no bracket outside of strings closes more than text opens.
func closed(text string) bool {
	depth, lowest := 0, 0
	outsideStrings(text, func(code string) string {
		for _, c := range code {
			switch c {
			case '(', '[', '{':
				depth++
			case ')', ']', '}':
				depth--
			}
			lowest = min(lowest, depth)
		}
		return ""
	})
	return lowest == 0
}

// nest records the block that a tag begins or ends. It refuses unknown statements, ends without a
// beginning, and more than maxBlocks nested blocks.
func (g *guarding) nest(word, tag string) error {
	name, ends := strings.CutPrefix(word, "end")
	switch name {
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
	case ends && (last < 0 || g.open[last].word != name):
		return fmt.Errorf("%s ends no block", word)
	case ends:
		g.open = g.open[:last]
	case name == "set" && strings.Contains(tag, "="):
	case len(g.open) == maxBlocks:
		return fmt.Errorf("more than %d blocks within each other", maxBlocks)
	default:
		g.open = append(g.open, block{name, -1})
	}
	return nil
}

// checkStrings refuses strings in the parts of a tag that the library splits without regard to strings,
// because it would run text of a string. A macro's parameters are such parts, too, but their default
// values have strings, so they are checked as the library splits them. They must have no (, | or *,
// because the library computes them before the call of enterName, and no limit applies.
func checkStrings(word, tag string) error {
	switch word {
	case "set":
		if target, _, _ := strings.Cut(tag, "="); strings.ContainsAny(target, `'"`) {
			return errors.New("the target of a set statement contains a string")
		}
	case "call":
		args := strings.TrimSpace(strings.TrimPrefix(statementText(tag), word))
		if args, _, _ := strings.Cut(args, ")"); strings.HasPrefix(args, "(") && strings.ContainsAny(args, `'"*|.`) {
			return errors.New("the parameters of a call block must be names")
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
				calls = calls || strings.ContainsAny(code, "(|*")
				return ""
			})
			if calls {
				return errors.New("the default value of a macro's parameter has a parenthesis, a filter or *")
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

// code checks the limits of a statement, and writes it with its expressions limited. The parts of a macro's tag, and
// the target of a set statement, stay.
func (g *guarding) code(word, tag string) error {
	if word == "set" && strings.Contains(tag, "=") {
		return g.set(tag)
	}
	if word == "macro" {
		g.out.WriteString(tag)
	} else {
		g.out.WriteString(tag[:2] + g.limited(tag[2:len(tag)-2]) + tag[len(tag)-2:])
	}
	return checkCode(tag[2 : len(tag)-2])
}

// set writes a set statement whose value passes through setName, with the namespace of the target, if it has one.
func (g *guarding) set(tag string) error {
	target, value, _ := strings.Cut(strings.TrimPrefix(statementText(tag), "set"), "=")
	if err := checkCode(target); err != nil {
		return err
	}
	space, _, attribute := strings.Cut(strings.TrimSpace(target), ".")
	switch {
	case !attribute:
		space = ""
	case !identifier.MatchString(space):
		return fmt.Errorf("the namespace %q of a set statement is no name", space)
	default:
		space = ", " + space
	}
	text, err := g.wrapped(setName, strings.TrimSpace(value), space)
	begin, end := "{%", "%}"
	if strings.HasPrefix(tag, "{%-") {
		begin += "-"
	}
	if strings.HasSuffix(tag, "-%}") {
		end = "-" + end
	}
	g.out.WriteString(begin + " set " + strings.TrimSpace(target) + " = " + text + " " + end)
	return err
}

// limited returns an expression with tojson and the filters and methods of limitedFilter and limitedMethod replaced, and
// with a call of factorName before each *.
func (g *guarding) limited(text string) string {
	return outsideStrings(text, func(code string) string {
		code = jsonFilter.ReplaceAllString(code, "|${1}"+jsonName)
		code = limitedFilter.ReplaceAllString(code, "|${1}"+filterName+"${2}")
		code = limitedMethod.ReplaceAllString(code, "|${1}"+methodName+"${2}")
		var out strings.Builder
		for i := 0; i < len(code); i++ {
			switch {
			case strings.HasPrefix(code[i:], "**"):
				out.WriteString("**")
				i++
				continue
			case code[i] == '*':
				fmt.Fprintf(&out, "|%s(%d", factorName, g.line)
				if m := simpleOperand.FindStringSubmatch(code[i+1:]); m != nil {
					out.WriteString(", " + m[1])
				}
				out.WriteString(")")
			}
			out.WriteByte(code[i])
		}
		return out.String()
	})
}

// checkCode refuses an expression, or the text of a tag, that exceeds maxCode or maxBrackets, or has a slice that
// boundedSlices refuses.
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
	case !boundedSlices(text):
		return errors.New("a slice with a step has a bound that is no integer of at most 6 digits")
	case size > maxCode:
		return fmt.Errorf("a tag has %d bytes outside of strings, at most %d are allowed", size, maxCode)
	case deepest > maxBrackets:
		return fmt.Errorf("more than %d brackets within each other", maxBrackets)
	}
	return nil
}

// boundedSlices reports whether all slices with a step, such as [1:9:2], have bounds that are absent or smallBound: the
// library allocates memory for such bounds, and counts up to them, without regard to the length of the list.
func boundedSlices(text string) bool {
	type bracket struct {
		square       bool
		from, colons int // where the current bound begins; colons so far
		large        bool
	}
	var code strings.Builder
	outsideStrings(text, func(part string) string {
		code.WriteString(part + `"`) // in place of a string
		return ""
	})
	outline := code.String()
	open := []bracket{{}}
	for i, c := range []byte(outline) {
		last := &open[len(open)-1]
		switch c {
		case '(', '[', '{':
			open = append(open, bracket{square: c == '[', from: i + 1})
		case ')', ']', '}':
			open = open[:max(1, len(open)-1)]
		case ':':
			last.large = last.large || !smallBound.MatchString(outline[last.from:i])
			last.from, last.colons = i+1, last.colons+1
			if last.colons == 2 && last.large && last.square {
				return false
			}
		}
	}
	return true
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
