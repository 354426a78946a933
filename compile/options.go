package compile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pwc/compile/loop"
	"pwc/ir"
)

// Version is the version of the pipeline. It changes whenever the same piece
// may give another program.
const Version = "57"

// Pass is a pass that a user adds. Run gets the function after pass static and the passes
// before it in Options. It returns another function (see [ir.Rewrite]) or the same. The types
// of parameters and results stay.
//
// The result may depend only on the input without its origins: of pieces that differ only in
// origins, only one is compiled. Each node of the result must have the [ir.Origin] of a node
// of the input, as a Rewriter sets it, or the zero Origin if it comes from no node. An error
// is reported as a [PassError]. If it is an [ir.Error] or an [ir.ErrorList], it keeps its
// position.
type Pass struct {
	Name    string
	Version string // with Name its identity, which is part of keys
	Run     func(m *ir.Module, f *ir.Func) (*ir.Func, error)
}

// Options change what the pipeline does.
type Options struct {
	Disable []string // names of passes that are switched off

	// MatMul is the precision of f32 GEMMs; the zero value is [loop.Ordered].
	MatMul loop.Precision

	// Passes run in their order after pass static, in the place of pass user. If Disable names
	// user, they do not run.
	Passes []Pass

	// Dump, if not nil, is called after each pass with its result: the text of the
	// function, of the steps (kernels and calls), or of the program.
	Dump func(pass, text string)

	// Time, if not nil, is called with the time of each pass and its verification. Like
	// Dump, it is called in the order of the passes, by the goroutine that compiles.
	Time func(pass string, took time.Duration)
}

// Fingerprint identifies everything in the options that may change a program,
// and the pipeline itself: compilations of one piece for one shape, with one
// backend and equal fingerprints, give equal programs.
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

// rows returns the pipeline of the options: the table with the user's passes in their place.
// A disabled pass runs its off function, or is left out if it has none. The error lists all passes
// that the options must not have.
func (o Options) rows() ([]pass, error) {
	var errs []error
	off := make(map[string]bool)
	for _, name := range o.Disable {
		i := slices.IndexFunc(table, func(p pass) bool { return p.Name == name })
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("compile: unknown pass %q in Options.Disable, want one that compile.Passes lists", name))
		case table[i].Required:
			errs = append(errs, fmt.Errorf("compile: pass %s cannot be switched off", name))
		}
		off[name] = true
	}
	var users []pass
	for i, u := range o.Passes {
		if u.Name == "" || u.Run == nil {
			errs = append(errs, fmt.Errorf("compile: Options.Passes[%d] has no name or no function", i))
		}
		users = append(users, pass{PassInfo: PassInfo{Name: u.Name}, run: u.run, user: true})
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
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
