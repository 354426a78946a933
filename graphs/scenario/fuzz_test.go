package scenario_test

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pwc/graphs/scenario"
)

// place is the prefix of every error of Parse.
var place = regexp.MustCompile(`^fuzz\.txtar:([0-9]+):([0-9]+): .`)

// FuzzParse holds that no file makes Parse panic, that each error has a column and a line of the file, or
// the line after its end, and that Parse accepts an accepted file again.
func FuzzParse(f *testing.F) {
	for _, file := range files(f) {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("-- functions --\nF(x) { t = empty f32[2]; on side { fill t 1 }; return t[0:1] }\n-- steps --\nrepeat 3 { repeat 2 {\nmark\n} }\n"))
	f.Add([]byte("-- options --\nskip-warmup re-record-limit=0 capture-sizes=[1,2] device=host\n-- steps --\nerror \"x\": warn \"y\" 1: f(x) key=3\n"))
	for _, text := range []string{"-- --\n", "-- steps --\nd = f(", "-- steps --\nf(", "-- steps --\nrepeat 3 {\n \x00", "-- functions --\nF(x) {\n \x00", "-- functions --\nF(x) { a", "-- options --\ncapture-sizes=[1,"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := scenario.Parse("fuzz.txtar", text)
		if err == nil {
			if file == nil {
				t.Fatal("Parse returned neither a scenario nor an error")
			}
			if _, err := scenario.Parse("fuzz.txtar", bytes.Clone(text)); err != nil {
				t.Fatalf("a file that was accepted is refused the second time: %v", err)
			}
			return
		}
		if file != nil {
			t.Fatal("Parse returned a scenario and an error")
		}
		lines := bytes.Count(text, []byte("\n")) + 2
		for _, e := range leaves(err) {
			at := place.FindStringSubmatch(e.Error())
			if at == nil {
				t.Fatalf("an error without a position: %q", e.Error())
			}
			if line, err := strconv.Atoi(at[1]); err != nil || line < 1 || line > lines {
				t.Fatalf("line %s of %d: %q", at[1], lines, strings.SplitN(e.Error(), "\n", 2)[0])
			}
		}
	})
}

// leaves returns the errors that were joined to err.
func leaves(err error) []error {
	j, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range j.Unwrap() {
		all = append(all, leaves(e)...)
	}
	return all
}
