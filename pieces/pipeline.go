package pieces

import (
	"context"

	"pwc/compile"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/program"
)

// Pipeline is the Compiler that runs the passes of package compile for one backend. It calls the
// backend, and the functions in the options, concurrently for several pieces.
type Pipeline struct {
	Backend compile.Backend
	Options compile.Options
	Tools   string // versions of the tools behind the backend, for provenance; empty: the backend's Version, if it has one
}

// Target implements [Compiler].
func (p Pipeline) Target() string {
	if p.Backend == nil {
		return ""
	}
	return p.Backend.Target()
}

// Fingerprint implements [Compiler].
func (p Pipeline) Fingerprint() string { return p.Options.Fingerprint() }

// Version implements [Compiler].
func (p Pipeline) Version() string {
	if v, ok := p.Backend.(interface{ Version() string }); ok && p.Tools == "" {
		return v.Version()
	}
	return p.Tools
}

// Compile implements [Compiler].
func (p Pipeline) Compile(ctx context.Context, piece *ir.Module, ranges map[string]dim.Interval) (*program.Program, error) {
	return compile.Compile(ctx, piece, compile.Shape{Ranges: ranges}, p.Backend, p.Options)
}
