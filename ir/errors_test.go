package ir_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pwc/ir"
)

// chunkAround has the text before and after each chunk of testdata/errors, by file. The
// text before is one line, so that the lines of a chunk are known.
var chunkAround = map[string][2]string{
	"text.ir":         {"", ""},
	"declarations.ir": {`pwc 1 module "m" {`, `}`},
	"groups.ir": {`pwc 1 module "m" { sym N in [1, 64] batch sym r in [0, 1] load group tp in 2 rank r group dp in 2` +
		` op "ns::w"(tensor, mut tensor) weight @whole : f32[4, 4] weight @in : f32[4, 4] = shard("t", axis=1, group=tp) weight @out : f32[4, 4] = shard("t", axis=0, group=tp)` +
		` weight @b : f32[4] state @same : f32[2, 4] state @parts : f32[2, 4] shard 1 over tp`, `}`},
	"statements.ir": {`pwc 1 module "m" { sym N in [1, 64] batch sym Z in [0, 64]` +
		` op "ns::w"(tensor, mut tensor) op "ns::r"(tensor) -> (tensor) op "ns::two"(mut tensor, mut tensor)` +
		` weight @w : f32[4] weight @f8 : f8e4m3[2] weight @u4 : u4[2] state @s : f32[2, 4] weight @rngw : i64[2] state @rng : i64[2] state @rng2 : i64[2] state @rng3 : i64[2]` +
		` func @f(%x: f32[N, 4], %x2: f32[N, 5], %x3: f32[N, 1, 2], %h2: f16[N, 4], %i: i32[N], %i2: i32[N, 2], %i4: i32[4],` +
		` %b1: bool[N], %b2: bool[2, 2], %m: mut f32[N, 4], %m2: f32[N, 4], %v: f32[3], %one: f32[1, 4], %nn: f32[N, N], %zero: f32[Z], %sc: f32[], %k1: f32[2, 4, 4], %k2: f32[3, 4, 4]) {`, `} }`},
}

var (
	wantComment = regexp.MustCompile(`// ### (.*)$`)
	wantString  = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
)

// TestErrors reads the chunks of testdata/errors, which are divided by lines
// of "---". Each must give exactly the errors that its "###" comments name, on
// their lines: regular expressions that match the start of a message.
func TestErrors(t *testing.T) {
	for file, around := range chunkAround {
		text, err := os.ReadFile(filepath.Join("testdata/errors", file))
		if err != nil {
			t.Fatal(err)
		}
		line := 0 // lines of the file before the chunk
		for chunk := range strings.SplitSeq(string(text), "---\n") {
			checkChunk(t, file, line, around[0]+"\n"+chunk+around[1])
			line += strings.Count(chunk, "\n") + 1
		}
	}
}

func checkChunk(t *testing.T, file string, offset int, text string) {
	t.Helper()
	want := map[int][]string{}
	for i, line := range strings.Split(text, "\n") {
		if m := wantComment.FindStringSubmatch(line); m != nil {
			for _, s := range wantString.FindAllString(m[1], -1) {
				s = strings.ReplaceAll(s[1:len(s)-1], `\"`, `"`)
				want[i] = append(want[i], s)
			}
		}
	}
	_, err := ir.Parse(file, []byte(text))
	var list ir.ErrorList
	if err != nil && !errors.As(err, &list) {
		t.Fatalf("%s:%d: the error is a %T", file, offset, err)
	}
	for _, e := range list {
		i := int(e.Pos.Line) - 1
		matched := false
		for j, s := range want[i] {
			if regexp.MustCompile("^(?:" + s + ")").MatchString(e.Msg) {
				want[i] = append(want[i][:j:j], want[i][j+1:]...)
				matched = true
				break
			}
		}
		if !matched {
			t.Errorf("%s:%d: unexpected error: %s", file, i+offset, e.Msg)
		}
		if prefix := file + ":" + strconv.Itoa(i+1) + ":" + strconv.Itoa(int(e.Pos.Col)) + ": "; !strings.HasPrefix(e.Error(), prefix) {
			t.Errorf("%q does not start with %q", e.Error(), prefix)
		}
	}
	for i, rest := range want {
		for _, s := range rest {
			t.Errorf("%s:%d: no error matches %q", file, i+offset, s)
		}
	}
}

// TestEveryMessage checks that the tests of errors see the messages that the package formats, except
// that of texts over a gigabyte. It searches the package, without hash.go, for calls that report or format;
// each format string with a space must match an error of the tests.
func TestEveryMessage(t *testing.T) {
	var messages []string
	collect := func(err error) {
		var list ir.ErrorList
		if errors.As(err, &list) {
			for _, e := range list {
				messages = append(messages, e.Msg)
			}
		}
	}
	for file, around := range chunkAround {
		text, err := os.ReadFile(filepath.Join("testdata/errors", file))
		if err != nil {
			t.Fatal(err)
		}
		for chunk := range strings.SplitSeq(string(text), "---\n") {
			_, err := ir.Parse(file, []byte(around[0]+"\n"+chunk+around[1]))
			collect(err)
		}
	}
	for _, c := range refused {
		collect(c.make())
	}
	for _, text := range hostile() {
		_, err := ir.Parse("hostile", []byte(text))
		collect(err)
	}
	tooLong := regexp.MustCompile(`the text is longer than`) // takes a gigabyte

	reporters := map[string]bool{"errorf": true, "errorAt": true, "invalid": true, "Errorf": true, "errf": true, "fail": true, "report": true, "Sprintf": true}
	verb := regexp.MustCompile(`%[a-z]`)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || file == "hash.go" {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name := ""
			switch fun := call.Fun.(type) {
			case *ast.Ident:
				name = fun.Name
			case *ast.SelectorExpr:
				name = fun.Sel.Name
			}
			if !reporters[name] {
				return true
			}
			for _, arg := range call.Args {
				lit, ok := arg.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					continue
				}
				format, _ := strconv.Unquote(lit.Value)
				if !strings.Contains(format, " ") || tooLong.MatchString(format) {
					break
				}
				pattern := strings.ReplaceAll(regexp.QuoteMeta(format), "%%", "%")
				pattern = verb.ReplaceAllString(pattern, `(?s:.*)`)
				re := regexp.MustCompile(pattern)
				if !slices.ContainsFunc(messages, re.MatchString) {
					t.Errorf("%s: no test sees the message %q", file, format)
				}
				break
			}
			return true
		})
	}
}

// hostile returns texts that are no module: each is large or deep in one way, or not UTF-8.
func hostile() map[string]string {
	var unread, groups strings.Builder
	for i := range 300 {
		fmt.Fprintf(&unread, "unread \"t%d\" ", i)
	}
	for i := range 100000 {
		fmt.Fprintf(&groups, "group g%d in 1 ", i)
	}
	body := func(s string) string { return `pwc 1 module "m" { func @f(%x: f32[2]) {` + s + `} }` }
	decl := func(s string) string { return `pwc 1 module "m" { sym N in [1, 2] ` + s + `}` }
	return map[string]string{
		"errors":        body(strings.Repeat("%y = foo(%x)\n", 2000)),
		"not UTF-8":     "pwc 1\nmodule \"m\" {\n // \xff\n}",
		"attributes":    body("neg(%x" + strings.Repeat(", a=1", 1000) + ")"),
		"tensors":       decl(`op "a::b"(tensor` + strings.Repeat(", tensor", 5000) + ")"),
		"dim operators": decl("state @s : f32[N" + strings.Repeat("*1", 100000) + "]"),
		"dim nesting":   decl("state @s : f32[" + strings.Repeat("(", 100000) + "]"),
		"dim signs":     decl("state @s : f32[" + strings.Repeat("- ", 100000) + "N]"),
		"weight depth":  decl("weight @w : f32[2] = " + strings.Repeat("concat(", 100000)),
		"unread":        decl(unread.String()),
		"weight attrs":  decl("weight @w : f32[2] = cast(\"t\"" + strings.Repeat(", a=1", 100000) + ")"),
		"groups":        decl(groups.String()),
		"eos":           decl("eos [1" + strings.Repeat(", 1", 100000) + "]"),
		"placements":    decl("group tp in 2 weight @w : f32[2]" + strings.Repeat(" shard 0 over tp", 100000)),
		"rank":          decl("weight @w : f32[1" + strings.Repeat(",1", 100000) + "]"),
		"rank of shape": body("%y = reshape(%x, shape=[2" + strings.Repeat(",1", 100000) + "])"),
		"open lists":    body(strings.Repeat("%y = neg(\n", 100000)),
		"names":         body("%a\n" + strings.Repeat(",%a\n", 100000)),
		"braces":        strings.Repeat("{", 100000),
		"strings":       "pwc 1 module \"m\" {" + strings.Repeat("\"\n", 100000),
	}
}

// TestHostile checks that large and deep texts give errors, and at most 1001 of them: the
// limit and the error that says so.
func TestHostile(t *testing.T) {
	for name, text := range hostile() {
		_, err := ir.Parse(name, []byte(text))
		var list ir.ErrorList
		if !errors.As(err, &list) {
			t.Errorf("%s: %v", name, err)
		} else if len(list) > 1001 {
			t.Errorf("%s: %d errors", name, len(list))
		}
		_ = err.Error()
	}
}

// TestErrorText checks the form of errors: the position, the line and a caret below it, for
// lines with tabs, with letters other than ASCII, with CR LF, and for long lines.
func TestErrorText(t *testing.T) {
	long := strings.Repeat("a", 300)
	for _, c := range []struct{ text, want string }{
		{"pwc 1\n\tmodule x {", "f.ir:2:9: expected a string, found x\n\t\tmodule x {\n\t\t       ^"},
		{"pwc 1 module \"é\" x", "f.ir:1:19: expected {, found x\n\tpwc 1 module \"é\" x\n\t                 ^"},
		{"pwc 1 module\r\n  x", "f.ir:2:3: expected a string, found x\n\t  x\n\t  ^"},
		{"pwc 1 module", "f.ir:1:13: expected a string, found the end of the text\n\tpwc 1 module\n\t            ^"},
		{"pwc 1 module \"" + long + "\" x" + long, "f.ir:1:317: expected {, found x" + long[:59] + "…\n\t…" + long[:118] + "\" x" + long[:239] + "…\n\t" + strings.Repeat(" ", 121) + "^"},
	} {
		_, err := ir.Parse("f.ir", []byte(c.text))
		if err == nil || err.Error() != c.want {
			t.Errorf("%q gives\n%v\nwant\n%s", c.text, err, c.want)
		}
	}
	if got := (&ir.Error{Func: "f", Node: 3, Origin: ir.Origin{Loc: "layers.0"}, Msg: "m"}).Error(); got != "@f node 3 (layers.0): m" {
		t.Error(got)
	}
	if got := (&ir.Error{Node: -1, Msg: "m", Origin: ir.Origin{Pos: ir.Pos{Line: 1, Col: 2}}}).Error(); got != "1:2: m" {
		t.Error(got)
	}
	at := func(line, col int32) ir.Origin { return ir.Origin{Pos: ir.Pos{Line: line, Col: col}} }
	list := ir.ErrorList{{Origin: at(2, 1), Msg: "b"}, {Origin: at(1, 9), Msg: "c"}, {Origin: at(1, 2), Msg: "a"}}
	if got := list.Err().Error(); got != "1:2: a\n1:9: c\n2:1: b" {
		t.Error(got)
	}
	var e *ir.Error
	if ir.ErrorList(nil).Err() != nil || !errors.As(list.Err(), &e) || e.Msg != "a" {
		t.Error("Err of an empty list is not nil, or errors.As does not find the first error of a list")
	}
}
