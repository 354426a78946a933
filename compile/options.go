package compile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pwc/compile/loop"
	"pwc/ir"
)

// Version is the version of the pipeline. It changes whenever the same piece
// may give another program.
const Version = "52"

// Pass is a pass that a user adds. Run gets a function whose nodes are as
// written, and returns another one (see [ir.Rewrite]) or the same.
//
// It must be a function of its input without the origins: of pieces that differ in
// nothing else one is compiled. Each node that it returns has the [ir.Origin] of a
// node that it got, as those have that a Rewriter makes, or the zero Origin where it
// is made for none of them. An error is reported as a [PassError]; one that is an
// [ir.Error] or an [ir.ErrorList] keeps its position.
type Pass struct {
	Name    string
	Version string // together with Name its identity, which enters keys
	Run     func(m *ir.Module, f *ir.Func) (*ir.Func, error)
}

// Options change what the pipeline does.
type Options struct {
	Disable []string // names of passes that are switched off

	// MatMul says how products of f32 may be computed; the zero value is [loop.Ordered].
	MatMul loop.Precision

	Passes []Pass

	// Dump, if not nil, is given after each pass what it left: the text of the
	// function, of the kernels, or of the program.
	Dump func(pass, text string)

	// Time, if not nil, is told how long each pass took, with its verification. Like
	// Dump it is called in the order of the passes, by the goroutine that compiles.
	Time func(pass string, took time.Duration)
}

// Fingerprint identifies everything in the options that may change a program,
// and the pipeline itself; two compilations of one piece with equal
// fingerprints give equal programs.
func (o Options) Fingerprint() string {
	disable := slices.Compact(slices.Sorted(slices.Values(o.Disable)))
	s := "pipeline " + Version
	if len(disable) > 0 {
		s += " without " + strings.Join(disable, ",")
	}
	if o.MatMul != loop.Ordered {
		s += " products " + o.MatMul.String()
	}
	for _, p := range o.Passes {
		s += fmt.Sprintf(" pass %q %q", p.Name, p.Version)
	}
	return s
}

// rows returns the pipeline of the options: the table with what is switched off and
// the user's passes in their place.
func (o Options) rows() ([]pass, error) {
	off := make(map[string]bool)
	for _, name := range o.Disable {
		i := slices.IndexFunc(table, func(p pass) bool { return p.Name == name })
		switch {
		case i < 0:
			return nil, fmt.Errorf("compile: unknown pass %q in Options.Disable", name)
		case table[i].Required:
			return nil, fmt.Errorf("compile: pass %s cannot be switched off", name)
		}
		off[name] = true
	}
	var users []pass
	for _, u := range o.Passes {
		if u.Name == "" || u.Run == nil {
			return nil, fmt.Errorf("compile: a pass of the options has no name or no function")
		}
		users = append(users, pass{PassInfo: PassInfo{Name: u.Name}, run: u.run, user: true})
	}
	var rows []pass
	for _, p := range table {
		if off[p.Name] {
			p.run = p.off
		}
		switch {
		case p.Name == userRow && !off[userRow]:
			rows = append(rows, users...)
		case p.run != nil:
			rows = append(rows, p)
		}
	}
	return rows, nil
}
