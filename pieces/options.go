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

// Compiler compiles one piece for one target. All methods are safe for concurrent use.
type Compiler interface {
	// Target names the target of programs: "host", "cuda:sm_90".
	Target() string

	// Fingerprint names what determines the bytes of a program in the compiler: the version of its
	// passes, disabled passes, the user's own passes. The tools behind the target are not part of it.
	Fingerprint() string

	// Version names the tools behind the target, such as NVRTC. It is in no key, only provenance.
	Version() string

	// Compile compiles the only function of the piece. Ranges narrow symbols of the piece; a
	// range with Lo == Hi is a constant. The same arguments and tools give the same program on every
	// machine (C3). Compile does not change the piece. An [ir.Error] at a node of the piece is
	// reported at the original node.
	Compile(ctx context.Context, piece *ir.Module, ranges map[string]dim.Interval) (*program.Program, error)
}

// ArtifactCompiler is a Compiler that receives the artifact, to record it. The artifact does not
// change the program.
type ArtifactCompiler interface {
	Compiler

	// For returns the compiler of an artifact, with the same target and fingerprint. The artifact
	// has Key, Origin, Func, Item and Range. For is safe for concurrent use.
	For(a *Artifact) Compiler
}

// Options configure a build.
type Options struct {
	Compiler Compiler
	Store    Store             // nil: there is no look-up
	Shapes   map[string]Shapes // by size symbol; a symbol without an entry has its declared range
	Jobs     int               // concurrent jobs; 0: GOMAXPROCS
	Frozen   bool              // an artifact that the store lacks is a [MissError]

	// Unrecorded: the store gets no record of the module, because its artifacts are part of
	// another module's record.
	Unrecorded bool

	// PartOf, if not nil, is the build of a module that contains this one. Artifacts that it has
	// are reused.
	PartOf *Result

	// Extras are made and recorded with the pieces.
	Extras []Extra

	// Observer, if not nil, receives progress. Calls do not overlap.
	Observer func(Event)
}

// Extra is a further program that the module needs: a kernel of an extern op. It is looked up,
// compiled and recorded as pieces are.
type Extra struct {
	Key    cache.Key
	Origin string // for messages: "kernel paged_bf16_d128 of attention::paged"

	// Compile compiles the program if the store lacks it.
	Compile func(ctx context.Context) (*program.Program, error)

	// Use, if not nil, receives the program once for each build, before Build returns.
	Use func(p *program.Program)
}

// EventKind is the kind of an event.
type EventKind uint8

const (
	Started  EventKind = iota // look-up, then compilation if necessary
	Finished                  // the artifact is available
	Failed                    // the artifact cannot be made: Err
	Warning                   // the store failed and the build continues without it: Err
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
	Artifact    *Artifact // complete if Finished
	Done, Total int       // distinct artifacts
	Err         error
}

// Source is the origin of a program.
type Source uint8

const (
	Compiled Source = iota // by this build, or by the build of [Options].PartOf
	Loaded                 // from the store, by one of the two
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
	Origin   string // the first piece that needs it: "@forward item 2 (model.layers.0.mlp)"; of an extra: Extra.Origin
	Func     string // the function of that piece; empty for extras
	Item     int    // the item of its plan, as pwc split counts them
	Range    Range  // of sizes; zero for a piece that does not depend on the size
	Source   Source
	Program  *program.Program
	Bytes    int // of the encoded program
	Duration time.Duration
	Uses     []Use // in order of plans and units; empty for extras
}

// Use is one piece that an artifact serves.
type Use struct{ Plan, Unit int }

// MissError: a frozen build lacks an artifact.
type MissError struct {
	Key    cache.Key
	Origin string             // as in [Artifact]
	Why    *cache.Explanation // of a store that can explain misses; otherwise nil
	Err    error              // why the store's artifact cannot be used; nil: the store has none
}

// Unwrap returns Err.
func (e *MissError) Unwrap() error { return e.Err }

// Error names the piece, the key, the store's problem, and the factors that differ from the
// nearest entry.
func (e *MissError) Error() string {
	s := fmt.Sprintf("%s: no artifact for key %s (shape %q, target %s), and a frozen build compiles nothing", e.Origin, e.Key, e.Key.Shape, e.Key.Target)
	if e.Err != nil {
		s += fmt.Sprintf("; %v", e.Err)
	}
	switch {
	case e.Why == nil || e.Why.Hit || len(e.Why.Untrusted) > 0: // a hit: another process made it meanwhile, or Err has the reason
	case e.Why.Nearest == nil && len(e.Why.Damaged) == 0:
		s += "; the cache has no readable entry"
	case e.Why.Nearest == nil || len(e.Why.Changes) == 0:
		if e.Err == nil && len(e.Why.Damaged) > 0 {
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

// explainer is a store that can explain misses, such as [cache.Store].
type explainer interface {
	Explain(ctx context.Context, keys ...cache.Key) ([]cache.Explanation, error)
}

// UncoveredError: no artifact serves a size.
type UncoveredError struct {
	Size   int64
	Ranges []Range // covered ranges
}

// Error names the size and the ranges.
func (e *UncoveredError) Error() string {
	return fmt.Sprintf("no artifact serves size %d: there are %v", e.Size, e.Ranges)
}
