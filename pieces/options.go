package pieces

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pwc/cache"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/program"
)

// Compiler compiles one piece for one target. All methods may be called
// concurrently.
type Compiler interface {
	// Target names what programs run on: "host", "cuda:sm_90".
	Target() string

	// Fingerprint names everything in the compiler that decides about the bytes of
	// a program: the version of its passes, those switched off, the user's own.
	Fingerprint() string

	// Version names the tools behind the target, for provenance alone.
	Version() string

	// Compile compiles the only function of the piece. Ranges narrow symbols of
	// the piece; one with Lo == Hi is a constant. The same arguments give the same
	// program on every machine (C3). The piece is not changed. An [ir.Error] at a
	// node of the piece is reported at the node that it came from.
	Compile(ctx context.Context, piece *ir.Module, ranges map[string]dim.Interval) (*program.Program, error)
}

// ArtifactCompiler is a Compiler that is told what it compiles: to write it down, not to
// compile it otherwise.
type ArtifactCompiler interface {
	Compiler

	// For returns the compiler of an artifact, with the same target and fingerprint. Of
	// the artifact Key, Origin, Func, Item and Range are known. It may be called
	// concurrently.
	For(a *Artifact) Compiler
}

// Options says how pieces are built.
type Options struct {
	Compiler Compiler
	Store    Store             // nil: everything is compiled, once each
	Shapes   map[string]Shapes // by size symbol; one without an entry has its declared range
	Jobs     int               // artifacts made at once; 0: GOMAXPROCS
	Frozen   bool              // an artifact that the store does not have is a [MissError]

	// Unrecorded leaves the store without a record of the module: its artifacts are
	// part of another one's.
	Unrecorded bool

	// PartOf, if not nil, is the build of a module that this one is a part of: the
	// artifacts that it has are taken from it, as it made or loaded them.
	PartOf *Result

	// Extras are made beside the pieces and recorded with them.
	Extras []Extra

	// Observer, if not nil, is told of progress, one call at a time.
	Observer func(Event)
}

// Extra is a program beside the pieces that the module needs: a kernel of an
// extern op. It is looked up, compiled and recorded as pieces are.
type Extra struct {
	Key    cache.Key
	Origin string // for messages: "kernel paged_bf16_d128 of attention::paged"

	// Compile makes the program where the store does not have it.
	Compile func(ctx context.Context) (*program.Program, error)

	// Use, if not nil, is given the program, once for each build, before Build
	// returns.
	Use func(p *program.Program)
}

// EventKind says what happened.
type EventKind uint8

const (
	Started  EventKind = iota // an artifact is looked up, and compiled if it must be
	Finished                  // it is there
	Failed                    // it cannot be had: Err
	Warning                   // the store failed and work goes on without it: Err
)

var eventKindNames = [...]string{"started", "finished", "failed", "warning"}

// String returns the kind in one word.
func (k EventKind) String() string {
	if int(k) >= len(eventKindNames) {
		return fmt.Sprintf("EventKind(%d)", uint8(k))
	}
	return eventKindNames[k]
}

// Event is one step of progress.
type Event struct {
	Kind        EventKind
	Artifact    *Artifact // complete when Finished, else what is known
	Done, Total int       // distinct artifacts
	Err         error
}

// Source says where a program came from.
type Source uint8

const (
	Compiled Source = iota // by this build
	Loaded                 // from the store
)

// String returns the source in one word.
func (s Source) String() string {
	names := [...]string{"compiled", "loaded"}
	if int(s) >= len(names) {
		return fmt.Sprintf("Source(%d)", uint8(s))
	}
	return names[s]
}

// Artifact is one distinct program of a build.
type Artifact struct {
	Key      cache.Key
	Origin   string // the first piece that needs it: "@forward item 2 (model.layers.0.mlp)"
	Func     string // the function of that piece; empty for extras
	Item     int    // the item of its plan, as pwc split counts them
	Range    Range  // of sizes; zero for a piece that does not depend on the size
	Source   Source
	Program  *program.Program
	Bytes    int // of the encoded program
	Duration time.Duration
	Uses     []Use // in order of plans and units; none for extras
}

// Use is one piece that an artifact serves.
type Use struct{ Plan, Unit int }

// MissError says that a frozen build would have had to compile.
type MissError struct {
	Key    cache.Key
	Origin string             // the first piece that needs it
	Why    *cache.Explanation // from a store that can explain itself, else nil
	Err    error              // why what the store has, or asked for, cannot be used; nil: it has nothing
}

// Unwrap returns Err.
func (e *MissError) Unwrap() error { return e.Err }

// Error names the piece and the look-up key, what kept the store from serving it, and
// in which factors the nearest entry of the store differs.
func (e *MissError) Error() string {
	s := fmt.Sprintf("%s: no artifact for key %s (shape %q, target %s), and a frozen build compiles nothing", e.Origin, e.Key, e.Key.Shape, e.Key.Target)
	if e.Err != nil {
		s += fmt.Sprintf("; %v", e.Err)
	}
	switch {
	case e.Why == nil || e.Why.Hit || len(e.Why.Untrusted) > 0: // a hit by now: another process made it, or Err says what is wrong with it
	case e.Why.Nearest == nil && len(e.Why.Damaged) == 0:
		s += "; the cache is empty"
	case e.Why.Nearest == nil || len(e.Why.Changes) == 0:
		if e.Err == nil {
			s += fmt.Sprintf("; its entry is damaged: %v", errors.Join(e.Why.Damaged...))
		}
	default:
		s += fmt.Sprintf("; the nearest entry (%s) differs in", e.Why.Nearest.Provenance.Origin)
		for i, c := range e.Why.Changes {
			if i > 0 {
				s += ","
			}
			s += " " + c.String()
		}
	}
	return s
}

// explainer is a store that can say why a look-up missed, as [cache.Store] can.
type explainer interface {
	Explain(ctx context.Context, keys ...cache.Key) ([]cache.Explanation, error)
}

// UncoveredError says that no artifact serves a size.
type UncoveredError struct {
	Size   int64
	Ranges []Range // those that there are
}

// Error names the size and the ranges.
func (e *UncoveredError) Error() string {
	return fmt.Sprintf("no artifact serves size %d: there are %v", e.Size, e.Ranges)
}
