package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"pwc/internal/termsafe"
)

// printJSON writes one document, indented or on one line, with the keys in the
// order of the struct's fields.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	if !a.lines {
		e.SetIndent("", "  ")
	}
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// number is a float in JSON. JSON has no NaN and infinities, so they are the strings "NaN", "+Inf"
// and "-Inf".
type number float64

// MarshalJSON returns the shortest text that parses to the same number.
func (n number) MarshalJSON() ([]byte, error) {
	text := strconv.FormatFloat(float64(n), 'g', -1, 64)
	if f := float64(n); math.IsNaN(f) || math.IsInf(f, 0) {
		text = strconv.Quote(text)
	}
	return []byte(text), nil
}

// table has rows of cells under a heading. A column is as wide as its widest cell.
type table struct {
	head  []string // a heading that begins with ">" aligns its column to the right
	rows  [][]string
	width int // columns of the output, to which the last column is wrapped; 0: no wrapping
}

// add adds a row. Characters that cannot be printed are escaped.
func (t *table) add(cells ...string) {
	for i, c := range cells {
		cells[i] = termsafe.Line(c, termsafe.MaxLine)
	}
	t.rows = append(t.rows, cells)
}

// tableFormat is the value of --format.
type tableFormat string

const (
	asText     tableFormat = "text"
	asCSV      tableFormat = "csv"
	asMarkdown tableFormat = "markdown"
)

// String returns the format's name.
func (f *tableFormat) String() string { return string(*f) }

// Type names the kind of value in the help.
func (f *tableFormat) Type() string { return "FORMAT" }

// Set reads text, csv or markdown.
func (f *tableFormat) Set(s string) error {
	switch t := tableFormat(s); t {
	case asText, asCSV, asMarkdown:
		*f = t
		return nil
	}
	return fmt.Errorf("%q is not one of text, csv and markdown", s)
}

// print prints the table in a format. The format text is that of write.
func (t *table) print(w io.Writer, f tableFormat, indent string) error {
	head := make([]string, len(t.head))
	rule := make([]string, len(t.head))
	for i, h := range t.head {
		head[i], rule[i] = strings.TrimPrefix(h, ">"), "---"
		if strings.HasPrefix(h, ">") {
			rule[i] = "---:"
		}
	}
	switch f {
	case asCSV:
		return csv.NewWriter(w).WriteAll(append([][]string{head}, t.rows...))
	case asMarkdown:
		var b strings.Builder
		for _, row := range append([][]string{head, rule}, t.rows...) {
			cells := make([]string, len(row))
			for i, c := range row {
				cells[i] = strings.ReplaceAll(c, "|", `\|`)
			}
			b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
		}
		_, err := io.WriteString(w, b.String())
		return err
	}
	return t.write(w, indent)
}

// write prints the table as text. Each line begins with indent.
func (t *table) write(w io.Writer, indent string) error {
	head := make([]string, len(t.head))
	right := make([]bool, len(t.head))
	width := make([]int, len(t.head))
	for i, h := range t.head {
		head[i], right[i] = strings.TrimPrefix(h, ">"), strings.HasPrefix(h, ">")
		width[i] = utf8.RuneCountInString(head[i])
	}
	for _, row := range t.rows {
		for i, c := range row {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	line := func(cells []string) {
		var l strings.Builder
		l.WriteString(indent)
		for i, c := range cells {
			if i > 0 {
				l.WriteString("  ")
			}
			pad := strings.Repeat(" ", max(0, width[i]-utf8.RuneCountInString(c))) // a word may be longer than the column
			if right[i] {
				l.WriteString(pad + c)
			} else {
				l.WriteString(c + pad)
			}
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	last := len(t.head) - 1
	before := utf8.RuneCountInString(indent)
	for _, w := range width[:last] {
		before += w + 2
	}
	if t.width > 0 && before+width[last] > t.width {
		width[last] = max(t.width-before, 24)
	}
	line(head)
	for _, row := range t.rows {
		for i, part := range fold(row[last], width[last]) {
			cells := make([]string, len(row))
			if i == 0 {
				copy(cells, row)
			}
			cells[last] = part
			line(cells)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// fold breaks text at spaces into lines of at most width runes. A longer word is a line of its own.
func fold(text string, width int) []string {
	if utf8.RuneCountInString(text) <= width {
		return []string{text}
	}
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// terminalWidth returns the number of columns if w is a terminal, else 0.
func terminalWidth(w io.Writer) int {
	if s, ok := w.(*termsafe.Writer); ok {
		w = s.To
	}
	if p, ok := w.(*printed); ok {
		w = p.Writer
	}
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
		return n
	}
	return 80 // the terminal does not know its size
}

// drawWidth is terminalWidth if a line can be overwritten, else 0.
func drawWidth(w io.Writer) int {
	if os.Getenv("TERM") == "dumb" {
		return 0
	}
	return terminalWidth(w)
}

// byteCount formats bytes: "512 B", "1.5 MiB".
func byteCount(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1024, 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}

// plural returns "1 piece", "3 pieces".
func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
