package ir_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/exp/ebnf"

	"pwc/internal/irgen"
	"pwc/ir"
)

var update = flag.Bool("update", false, "rewrite goldens and the table of ops in docs/ir.md")

const (
	docFile     = "../docs/ir.md"
	grammarFile = "../docs/appendix/grammar.md"
)

func document(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// fenced returns the blocks of the document in that language.
func fenced(doc, language string) []string {
	var out []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(doc, -1) {
		out = append(out, m[1])
	}
	return out
}

// TestDocumentExamples checks that the modules in docs/ir.md parse and round-trip.
func TestDocumentExamples(t *testing.T) {
	for i, text := range fenced(document(t, docFile), "pwc") {
		roundTrip(t, fmt.Sprintf("example %d", i), []byte(text))
	}
}

func loadGrammar(t testing.TB) ebnf.Grammar {
	t.Helper()
	g, err := ebnf.Parse(grammarFile, strings.NewReader(fenced(document(t, grammarFile), "ebnf")[0]))
	if err != nil {
		t.Fatal(err)
	}
	if err := ebnf.Verify(g, "Module"); err != nil {
		t.Fatal(err)
	}
	return g
}

// isSyntax reports whether an error is one of the grammar and not of meaning.
func isSyntax(e *ir.Error) bool {
	return strings.HasPrefix(e.Msg, "expected ") || strings.HasPrefix(e.Msg, "the text must start with")
}

// parses reports whether the parser finds no syntax error. If it finds one, parses also returns
// the first.
func parses(text string) (bool, error) {
	_, err := ir.Parse("sentence", []byte(text))
	list, _ := err.(ir.ErrorList)
	if i := slices.IndexFunc(list, isSyntax); i >= 0 {
		return false, list[i]
	}
	return true, nil
}

// writer makes random sentences of a grammar.
type writer struct {
	g     ebnf.Grammar
	r     *rand.Rand
	depth int
	used  map[string]bool // productions
}

// tokens expands an expression into tokens.
func (w *writer) tokens(e ebnf.Expression) []string {
	switch e := e.(type) {
	case nil:
		return nil
	case ebnf.Alternative:
		return w.tokens(e[w.r.Intn(len(e))])
	case ebnf.Sequence:
		var out []string
		for _, x := range e {
			out = append(out, w.tokens(x)...)
		}
		return out
	case *ebnf.Name:
		if c := e.String[0]; 'a' <= c && c <= 'z' {
			return []string{w.token(e.String)}
		}
		w.used[e.String] = true
		w.depth++
		defer func() { w.depth-- }()
		p := w.g[e.String].Expr
		if alt, ok := p.(ebnf.Alternative); ok && w.depth > 12 { // a way out of recursion
			return w.tokens(alt[slices.IndexFunc(alt, func(x ebnf.Expression) bool { return !recursive(x) })])
		}
		return w.tokens(p)
	case *ebnf.Token:
		return []string{e.String}
	case *ebnf.Group:
		return w.tokens(e.Body)
	case *ebnf.Option:
		if w.depth < 12 && w.r.Intn(2) == 0 {
			return w.tokens(e.Body)
		}
	case *ebnf.Repetition:
		var out []string
		for w.depth < 12 && w.r.Intn(2) == 0 {
			out = append(out, w.tokens(e.Body)...)
		}
		return out
	default:
		panic(fmt.Sprintf("%T", e))
	}
	return nil
}

// recursive reports whether an alternative of Factor or WeightExpr leads back to
// it: whether it contains the name of a production in upper case.
func recursive(e ebnf.Expression) bool {
	switch e := e.(type) {
	case ebnf.Sequence:
		return slices.ContainsFunc(e, recursive)
	case *ebnf.Name:
		return e.String[0] <= 'Z'
	}
	return false
}

// token makes a random token of a class. Words are now and then those that the
// language uses itself.
func (w *writer) token(class string) string {
	switch class {
	case "word":
		words := []string{"x", "N", "neg", "f32", "weights", "sym", "weight", "in", "tensor", "version", "dtype"}
		return words[w.r.Intn(len(words))]
	case "int":
		return []string{"0", "1", "16", "007"}[w.r.Intn(4)]
	case "float":
		return []string{"1.5", "1e-5", "0x1.8p3"}[w.r.Intn(3)]
	case "string":
		return []string{`"a::b"`, `""`, `"a \"b\" \x00"`}[w.r.Intn(3)]
	case "value":
		return []string{"%x", "%0", `%"a b"`}[w.r.Intn(3)]
	}
	return []string{"@w", "@l0.q", `@"("`}[w.r.Intn(3)]
}

// letters expands a lexical production into text.
func (w *writer) letters(e ebnf.Expression) string {
	switch e := e.(type) {
	case ebnf.Alternative:
		return w.letters(e[w.r.Intn(len(e))])
	case ebnf.Sequence:
		var b strings.Builder
		for _, x := range e {
			b.WriteString(w.letters(x))
		}
		return b.String()
	case *ebnf.Name:
		return w.letters(w.g[e.String].Expr)
	case *ebnf.Token:
		return e.String
	case *ebnf.Range:
		lo, hi := []rune(e.Begin.String)[0], []rune(e.End.String)[0]
		return string(lo + rune(w.r.Intn(int(min(hi-lo, 0x2fff)+1)))) // below the surrogates
	case *ebnf.Group:
		return w.letters(e.Body)
	case *ebnf.Option:
		if w.r.Intn(2) == 0 {
			return w.letters(e.Body)
		}
	case *ebnf.Repetition:
		var b strings.Builder
		for w.r.Intn(3) > 0 {
			b.WriteString(w.letters(e.Body))
		}
		return b.String()
	}
	return ""
}

// TestTokens compares the lexer with the grammar's tokens: a random text of a lexical
// production must be one token of its class.
func TestTokens(t *testing.T) {
	w := &writer{g: loadGrammar(t), r: rand.New(rand.NewSource(1))}
	for _, class := range []string{"word", "int", "float", "string", "value", "global"} {
		for range 2000 {
			text := w.letters(w.g[class].Expr)
			if strings.HasSuffix(text, `""`) || slices.Contains([]string{"inf", "nan", "true", "false", "call", "loc", "mut", "return"}, text) {
				continue // the document excludes these in prose
			}
			if regexp.MustCompile(`\\u[dD][89a-fA-F]|\\U0000[dD][89a-fA-F]`).MatchString(text) {
				continue // half of a surrogate pair
			}
			if _, err := strconv.ParseFloat(text, 64); class == "float" && errors.Is(err, strconv.ErrRange) {
				continue
			}
			tokens, ok := ir.Tokens(text)
			if !ok || len(tokens) != 1 || tokens[0].Class != class || tokens[0].Text != text {
				t.Fatalf("%s %q is %+v, %v", class, text, tokens, ok)
			}
		}
	}
}

// TestSentences compares the parser with the grammar. The parser must accept random sentences
// of the grammar, and sentences with one token changed exactly if the grammar accepts them.
func TestSentences(t *testing.T) {
	g := loadGrammar(t)
	w := &writer{g: g, r: rand.New(rand.NewSource(2)), used: map[string]bool{"Module": true}}
	rec := newRecogniser(g)
	accepted := 0
	for i := range 12000 {
		tokens := w.tokens(g["Module"].Expr)
		tokens[1] = "1" // another version is refused as a whole
		if len(tokens) > 400 {
			continue
		}
		if text := strings.Join(tokens, " "); i%8 == 0 {
			if ok, err := parses(text); !ok {
				t.Fatalf("the parser refuses a sentence: %v\n%s", err, text)
			}
			if !rec.accepts(t, text) {
				t.Fatalf("the recogniser refuses a sentence: %s", text)
			}
		}
		at := 2 + w.r.Intn(len(tokens)-2)
		other := tokens[2+w.r.Intn(len(tokens)-2)]
		switch w.r.Intn(3) {
		case 0:
			tokens = slices.Delete(tokens, at, at+1)
		case 1:
			tokens = slices.Insert(tokens, at, other)
		case 2:
			tokens[at] = other
		}
		text := strings.Join(tokens, " ")
		want := rec.accepts(t, text)
		if got, err := parses(text); got != want {
			t.Fatalf("the grammar says %v, the parser says %v, to %s\n%v", want, got, text, err)
		}
		if want {
			accepted++
		}
	}
	for name := range g {
		if name[0] <= 'Z' && !w.used[name] {
			t.Errorf("no sentence holds a %s", name)
		}
	}
	t.Logf("%d of the changed sentences are sentences", accepted)
}

// TestGrammarAcceptsModules checks that the grammar accepts modules that the parser accepts.
func TestGrammarAcceptsModules(t *testing.T) {
	rec := newRecogniser(loadGrammar(t))
	texts := map[string]string{}
	for file, text := range modules(t) {
		texts[file] = string(text)
	}
	for i, text := range fenced(document(t, docFile), "pwc") {
		texts[fmt.Sprintf("example %d", i)] = text
	}
	for seed := range int64(10) {
		texts[fmt.Sprintf("seed %d", seed)] = ir.Print(irgen.Generate(rand.New(rand.NewSource(seed)), irgen.Options{Odd: true, MixRows: true, MaxOps: 30}))
	}
	for name, text := range texts {
		if !rec.accepts(t, text) {
			t.Errorf("the grammar does not accept %s", name)
		}
	}
}

// TestErrorsBreakTheGrammar compares the grammar with the parser on the chunks of
// testdata/errors: the grammar must accept a chunk exactly if the parser finds no syntax error. It
// skips chunks with a bad token, another version of the language, or an expression over a limit.
func TestErrorsBreakTheGrammar(t *testing.T) {
	rec := newRecogniser(loadGrammar(t))
	for file, around := range chunkAround {
		text, err := os.ReadFile(filepath.Join("testdata/errors", file))
		if err != nil {
			t.Fatal(err)
		}
		for i, chunk := range strings.Split(string(text), "---\n") {
			chunk = around[0] + "\n" + chunk + around[1]
			if _, ok := ir.Tokens(chunk); !ok || strings.Contains(chunk, "there is no version") || strings.Contains(chunk, "the text is in version") || strings.Contains(chunk, "too deep") || strings.Contains(chunk, "too large") {
				continue
			}
			if got, err := parses(chunk); got != rec.accepts(t, chunk) {
				t.Errorf("%s, chunk %d: the parser says %v: %v", file, i, got, err)
			}
		}
	}
}

// recogniser is Earley's algorithm (CACM 13(2), 1970) over tokens.
type recogniser struct {
	ids  map[string]int
	list [][][]symbol // rules by id
}

// symbol is a nonterminal (rule >= 0), a class of tokens or a literal token.
type symbol struct {
	rule  int
	class string
	text  string
}

func newRecogniser(g ebnf.Grammar) *recogniser {
	rec := &recogniser{ids: map[string]int{}}
	rec.id("Module")
	for name := range g {
		rec.id(name)
	}
	for name, p := range g {
		if name[0] <= 'Z' {
			rec.list[rec.id(name)] = rec.alternatives(p.Expr)
		}
	}
	return rec
}

func (rec *recogniser) id(name string) int {
	if i, ok := rec.ids[name]; ok {
		return i
	}
	rec.ids[name] = len(rec.list)
	rec.list = append(rec.list, nil)
	return len(rec.list) - 1
}

// fresh makes a rule of its own for a group, an option or a repetition.
func (rec *recogniser) fresh(alts [][]symbol) symbol {
	rec.list = append(rec.list, alts)
	return symbol{rule: len(rec.list) - 1}
}

func (rec *recogniser) alternatives(e ebnf.Expression) [][]symbol {
	if alt, ok := e.(ebnf.Alternative); ok {
		var out [][]symbol
		for _, x := range alt {
			out = append(out, rec.sequence(x))
		}
		return out
	}
	return [][]symbol{rec.sequence(e)}
}

func (rec *recogniser) sequence(e ebnf.Expression) []symbol {
	if seq, ok := e.(ebnf.Sequence); ok {
		var out []symbol
		for _, x := range seq {
			out = append(out, rec.sequence(x)...)
		}
		return out
	}
	switch e := e.(type) {
	case *ebnf.Name:
		if c := e.String[0]; 'a' <= c && c <= 'z' {
			return []symbol{{rule: -1, class: e.String}}
		}
		return []symbol{{rule: rec.id(e.String)}}
	case *ebnf.Token:
		return []symbol{{rule: -1, text: e.String}}
	case *ebnf.Group:
		return []symbol{rec.fresh(rec.alternatives(e.Body))}
	case *ebnf.Option:
		return []symbol{rec.fresh(append(rec.alternatives(e.Body), nil))}
	case *ebnf.Repetition:
		again := rec.fresh(nil)
		for _, alt := range rec.alternatives(e.Body) {
			rec.list[again.rule] = append(rec.list[again.rule], append(slices.Clone(alt), again))
		}
		rec.list[again.rule] = append(rec.list[again.rule], nil)
		return []symbol{again}
	}
	panic(fmt.Sprintf("%T", e))
}

type item struct{ rule, alt, dot, start int }

func (rec *recogniser) accepts(t testing.TB, text string) bool {
	t.Helper()
	tokens, ok := ir.Tokens(text)
	if !ok {
		t.Fatalf("no tokens: %s", text)
	}
	// A rule without tokens completes in the set in which it starts, before later items of that
	// set expect it. So empty has these rules, and an item that expects one of them advances
	// without waiting.
	sets := make([][]item, len(tokens)+1)
	known := make([]map[item]bool, len(tokens)+1)
	empty := make([]map[int]bool, len(tokens)+1)
	waiting := make([]map[int][]item, len(tokens)+1) // by rule: items of the set that expect it
	for i := range sets {
		known[i], empty[i], waiting[i] = map[item]bool{}, map[int]bool{}, map[int][]item{}
	}
	add := func(i int, it item) {
		if !known[i][it] {
			known[i][it] = true
			sets[i] = append(sets[i], it)
		}
	}
	for a := range rec.list[0] {
		add(0, item{rule: 0, alt: a})
	}
	for i := range sets {
		for k := 0; k < len(sets[i]); k++ {
			it := sets[i][k]
			body := rec.list[it.rule][it.alt]
			if it.dot == len(body) {
				if it.start == i {
					empty[i][it.rule] = true
				}
				for _, w := range waiting[it.start][it.rule] {
					w.dot++
					add(i, w)
				}
				continue
			}
			next := it
			next.dot++
			s := body[it.dot]
			switch {
			case s.rule >= 0:
				waiting[i][s.rule] = append(waiting[i][s.rule], it)
				for a := range rec.list[s.rule] {
					add(i, item{rule: s.rule, alt: a, start: i})
				}
				if empty[i][s.rule] {
					add(i, next)
				}
			case i < len(tokens) && (s.class != "" && s.class == tokens[i].Class || s.text != "" && s.text == tokens[i].Text && !strings.HasPrefix(tokens[i].Text, `"`)):
				add(i+1, next)
			}
		}
	}
	for a, body := range rec.list[0] {
		if known[len(tokens)][item{rule: 0, alt: a, dot: len(body)}] {
			return true
		}
	}
	return false
}

// TestOpTable checks that the tables of ops in docs/ir.md are those of the code.
func TestOpTable(t *testing.T) {
	const begin, end = "<!-- ops: written by go test ./ir -run TestOpTable -update -->\n", "<!-- end of ops -->"
	doc := document(t, docFile)
	head, rest, ok := strings.Cut(doc, begin)
	table, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("the marks of the table are gone")
	}
	want := opTables()
	if *update {
		if err := os.WriteFile(docFile, []byte(head+begin+want+end+tail), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, table); diff != "" {
		t.Errorf("docs/ir.md is not current, run with -update (-code +document):\n%s", diff)
	}
}

var classTitles = map[ir.Class]string{
	ir.Pointwise: "Pointwise", ir.Reduction: "Reductions", ir.Composite: "Norms, softmax and rope", ir.Contract: "GEMMs", ir.Attention: "Attention", ir.Layout: "Layout",
	ir.Index: "Indexing", ir.Creation: "Creation", ir.Scan: "Scans", ir.Select: "Selection", ir.Draw: "Random numbers", ir.Call: "Extern ops", ir.Collective: "Collectives",
}

func opTables() string {
	var b strings.Builder
	var classes []ir.Class
	for _, op := range ir.Ops() {
		if !slices.Contains(classes, op.Class) {
			classes = append(classes, op.Class)
		}
	}
	for _, class := range classes {
		fmt.Fprintf(&b, "\n### %s\n\n| op | operands | attributes | result |\n|---|---|---|---|\n", classTitles[class])
		for _, op := range ir.Ops() {
			if op.Class == class {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", op.Name, operandText(op), attrText(op), strings.NewReplacer("|", `\|`, "*", `\*`).Replace(op.Doc))
			}
		}
	}
	return b.String() + "\n"
}

func operandText(op *ir.Op) string {
	var out []string
	for _, o := range op.Operands {
		s := o.Name
		if o.Mut {
			s = "mut " + s
		}
		if o.Literal {
			s += `\*`
		}
		if o.Optional {
			s += "?"
		}
		if o.Variadic {
			s += "…"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func attrText(op *ir.Op) string {
	var out []string
	for _, a := range op.Attrs {
		s := a.Name
		if a.Default != nil {
			m := &ir.Node{Op: op}
			d, _ := m.Attr(a.Name)
			s += "=" + defaultText(d)
		}
		what := a.Doc
		if a.Enum != nil {
			what += ": " + strings.Join(a.Enum, ", ")
		}
		out = append(out, fmt.Sprintf("`%s` %s", s, what))
	}
	return strings.Join(out, "; ")
}

func defaultText(a ir.Attr) string {
	switch a.Kind {
	case ir.AttrDim:
		return a.Dim.String()
	case ir.AttrBool:
		return fmt.Sprint(a.Bool)
	}
	return a.Str
}
