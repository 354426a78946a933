package compile_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"pwc/compile"
	hostbackend "pwc/compile/host"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/interp"
)

var update = flag.Bool("update", false, "rewrite the expectations in testdata")

// TestGolden compiles the modules in testdata. A case is in.ir and a comment of
// lines
//
//	N = 1..64        the range that symbol N is compiled for
//	run N = 5        the size that the program runs for
//	off fuse         a pass that is switched off
//
// and expects the result of each pass that changes something (the function, the
// kernels, at last the program with its vector code), and the hash of the
// program's bytes, which is the same on every machine. If the module has no
// symbols, or a line gives their sizes, it also expects the results on random
// inputs. A case that does not compile expects the error.
func TestGolden(t *testing.T) {
	testkit.Golden(t, "testdata/*.txtar", *update, func(t *testing.T, ar *txtar.Archive) { testkit.Check(t, golden(ar)) })
}

// golden appends the expectations to a case that has only in.ir.
func golden(ar *txtar.Archive) error {
	m, err := ir.Parse("in.ir", ar.Files[0].Data)
	if err != nil {
		return err
	}
	shape := compile.Shape{Ranges: make(map[string]dim.Interval)}
	symbols := make(map[string]int64)
	var o compile.Options
	for _, line := range strings.Split(strings.TrimSpace(string(ar.Comment)), "\n") {
		w := strings.Fields(line)
		switch {
		case len(w) == 0 || w[0] == "#":
		case w[0] == "off":
			o.Disable = append(o.Disable, w[1])
		case w[0] == "run" && len(w) == 4:
			if symbols[w[1]], err = strconv.ParseInt(w[3], 10, 64); err != nil {
				return err
			}
		case len(w) == 3 && w[1] == "=":
			lo, hi, _ := strings.Cut(w[2], "..")
			var iv dim.Interval
			iv.Lo, err = strconv.ParseInt(lo, 10, 64)
			iv.Hi = iv.Lo
			if hi != "" && err == nil {
				iv.Hi, err = strconv.ParseInt(hi, 10, 64)
			}
			if err != nil {
				return err
			}
			shape.Ranges[w[0]] = iv
		default:
			return fmt.Errorf("unknown line %q in the comment of the case", line)
		}
	}
	add := func(name, text string) {
		if !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		ar.Files = append(ar.Files, txtar.File{Name: name, Data: []byte(text)})
	}
	last := ""
	o.Dump = func(pass, text string) {
		if text != last {
			add(pass, text)
		}
		last = text
	}
	p, err := compile.Compile(context.Background(), m, shape, hostbackend.New(), o)
	if err != nil {
		var at *ir.Error
		if !errors.As(err, &at) {
			return err
		}
		add("error", err.Error())
		return nil
	}
	code, err := p.Encode()
	if err != nil {
		return err
	}
	add("sha256", fmt.Sprintf("%x", sha256.Sum256(code)))
	if len(symbols) == 0 && len(m.Symbols) > 0 {
		return nil
	}
	b, err := oracle.Draw(rand.New(rand.NewSource(1)), m, symbols, nil)
	if err != nil {
		return err
	}
	o.Dump = nil
	if err := check(m, shape, o, b.Clone(), false); err != nil {
		return err
	}
	results, err := execute(p, m, b)
	if err != nil {
		return err
	}
	var run strings.Builder
	for i, r := range results {
		fmt.Fprintf(&run, "result %d: %s %s\n", i, r, elementsText(r))
	}
	for _, s := range m.States {
		fmt.Fprintf(&run, "state @%s: %s %s\n", s.Name, b.States[s.Name], elementsText(b.States[s.Name]))
	}
	add("run", run.String())
	return nil
}

// elementsText lists the first elements of a tensor with four digits: vector
// functions may differ in the last place from machine to machine.
func elementsText(x *interp.Tensor) string {
	var b strings.Builder
	for i := range min(x.Len(), 24) {
		b.WriteString(" " + strconv.FormatFloat(x.At(i), 'g', 4, 64))
	}
	if x.Len() > 24 {
		b.WriteString(" …")
	}
	return b.String()
}
