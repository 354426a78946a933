package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pwc/cache"
	"pwc/internal/termsafe"
	"pwc/pieces"
	"pwc/piecewise"
)

func (a *app) cacheCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cache",
		Short: "list, explain, verify, clean, share and trust the compiled artifacts",
		Long: `The cache keeps compiled pieces in a directory, so that a model is compiled once,
and finds them by a hash of the factors that they depend on, except the version of
NVRTC: code for GPUs that any version compiled is used. PWC_CACHE_DIR is the
directory that is written (default: pwc in the user's cache directory).
PWC_CACHE_PATH lists read-only directories that are searched first.
PWC_CACHE_REMOTE is an artifact in a registry (oci://REGISTRY/REPO:TAG) from which
missing pieces are fetched. PWC_CACHE=off turns the cache off. Code for GPUs is
machine code, which cannot be checked: pwc cache trust lists whose code is accepted.

gc removes, and pin keeps, whole models. A MODEL is a name, or at least the first four
digits of an id that ls prints; --target chooses among models of one name. If several
models have one name and target, the last column of ls has their other differences.`,
		Example: `  pwc cache ls
  pwc cache explain model.ir          # which pieces are found, and why others are not
  pwc cache gc --max-bytes 1GiB
  pwc cache push registry.example/models/llama:v1 llama`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q of pwc cache", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.cacheList(), a.cacheShow(), a.cacheExplain(), a.cacheVerify(), a.cacheGC(), a.cachePin(true), a.cachePin(false), a.cacheClear(),
		a.cacheExport(), a.cacheImport(), a.cachePush(), a.cachePull(), a.cacheTrust())
	return cmd
}

// openStore opens the cache of the environment variables. The store is nil if PWC_CACHE is off.
func (a *app) openStore() (*cache.Store, error) {
	o, off, err := cache.FromEnv()
	switch {
	case off:
		return nil, nil
	case errors.Is(err, cache.ErrNoDir):
		if !a.saidNoDir {
			a.logger().Warn("artifacts are not kept", "reason", err)
		}
		a.saidNoDir = true
	case err != nil:
		return nil, usagef("%w", err)
	}
	o.Logger = a.logger()
	a.trust = o.Trust
	return cache.New(o), nil
}

// logger prints warnings on standard error, and with --verbose all messages.
func (a *app) logger() *slog.Logger {
	level := slog.LevelWarn
	if a.verbose {
		level = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, at slog.Attr) slog.Attr {
		if len(groups) == 0 && at.Key == slog.TimeKey {
			return slog.Attr{}
		}
		if text := at.Value.String(); len(text) > termsafe.MaxLine {
			at.Value = slog.StringValue(termsafe.Clip(text, termsafe.MaxLine))
		}
		return at
	}}))
}

// withStore returns a RunE that opens the cache for run. It is a usage error if the cache is off.
func (a *app) withStore(run func(ctx context.Context, s *cache.Store, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := a.openStore()
		if err != nil {
			return err
		}
		if s == nil {
			return usagef("the cache is turned off (PWC_CACHE=off)")
		}
		if info, err := os.Stat(s.Dir()); err == nil && !info.IsDir() {
			return fmt.Errorf("the cache directory %s is not a directory", s.Dir())
		}
		return run(cmd.Context(), s, args)
	}
}

// cacheModule is a row of `cache ls`.
type cacheModule struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Target   string    `json:"target"`
	Entries  int       `json:"entries"`
	Bytes    int64     `json:"bytes"`
	Created  time.Time `json:"created"`
	LastUsed time.Time `json:"last_used"`
	Pinned   bool      `json:"pinned"`
	Dir      string    `json:"dir"`
	Layer    bool      `json:"layer"`
	Differs  string    `json:"differs,omitempty"` // of `ls`: differences from other models of its name and target
}

func cacheModuleOf(m cache.ModuleInfo) cacheModule {
	return cacheModule{ID: m.ID.String(), Name: m.Name, Target: m.Target, Entries: m.Entries, Bytes: m.Bytes, Created: m.Created, LastUsed: m.LastUsed,
		Pinned: m.Pinned, Dir: m.Dir, Layer: m.Layer}
}

func (m *cacheModule) note() string {
	var out []string
	if m.Differs != "" {
		out = append(out, m.Differs)
	}
	if m.Pinned {
		out = append(out, "pinned")
	}
	if m.Layer {
		out = append(out, "in "+m.Dir)
	}
	return strings.Join(out, ", ")
}

func (a *app) cacheList() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "list the models in the cache",
		Example: "  pwc cache ls\n  pwc cache ls --json",
		Args:    none,
		RunE: a.withStore(func(ctx context.Context, s *cache.Store, _ []string) error {
			list, err := s.Modules(ctx)
			if err != nil {
				return err
			}
			differ := tellApart(ctx, s, list)
			rows := make([]cacheModule, len(list))
			for i, m := range list {
				rows[i] = cacheModuleOf(m)
				rows[i].Differs = differ[rows[i].ID]
			}
			if a.json {
				return a.printJSON(map[string]any{"dir": s.Dir(), "modules": rows})
			}
			switch {
			case len(rows) > 0:
			case s.Dir() == "": // openStore has said why
				fmt.Fprintln(a.out, "the cache has no models, and no directory")
				return nil
			default:
				fmt.Fprintf(a.out, "the cache in %s has no models\n", s.Dir())
				return nil
			}
			t := table{head: []string{"id", "model", "target", ">artifacts", ">bytes", "last used", ""}}
			for _, m := range rows {
				t.add(m.ID[:12], m.Name, m.Target, fmt.Sprint(m.Entries), byteCount(m.Bytes), m.LastUsed.Local().Format(time.DateTime), m.note())
			}
			return t.write(a.out, "")
		}),
	}
}

// cacheEntry is an artifact of `cache show`.
type cacheEntry struct {
	Key      string            `json:"key"`
	Bytes    int64             `json:"bytes"`
	Missing  bool              `json:"missing,omitempty"`
	Factors  map[string]string `json:"factors,omitempty"`
	Origin   string            `json:"origin,omitempty"`
	Compiler string            `json:"compiler,omitempty"`
	Seconds  float64           `json:"seconds,omitempty"`
}

func (a *app) cacheShow() *cobra.Command {
	graph := false
	var choice modelChoice
	cmd := &cobra.Command{
		Use:     "show MODEL",
		Short:   "show the artifacts of a model, or its graph",
		Example: "  pwc cache show llama\n  pwc cache show llama --target cuda:sm_90 --graph",
		Args:    exactly(1, "one model"),

		ValidArgsFunction: a.completeModels(0),
		RunE: a.withStore(func(ctx context.Context, s *cache.Store, args []string) error {
			ref, err := choice.one(ctx, s, args[0])
			if err != nil {
				return err
			}
			d, err := s.Show(ctx, ref)
			if err != nil {
				return err
			}
			m := cacheModuleOf(d.ModuleInfo)
			switch {
			case graph && d.Graph == nil:
				return fmt.Errorf("the graph of %s is damaged; compile it again", termsafe.Line(d.Name, termsafe.MaxLine))
			case graph && a.json:
				return a.printJSON(map[string]any{"module": m, "graph": string(d.Graph)})
			case graph:
				_, err := a.out.Write(d.Graph)
				return err
			}
			entries := make([]cacheEntry, len(d.Keys))
			for i, k := range d.Keys {
				entries[i] = cacheEntry{Key: k.ID.String(), Bytes: k.Size, Missing: d.Found[i] == nil}
				if e := d.Found[i]; e != nil {
					entries[i].Factors = map[string]string{}
					for _, f := range e.Key.Factors() {
						entries[i].Factors[f.Name] = f.Value
					}
					entries[i].Origin, entries[i].Compiler, entries[i].Seconds = e.Provenance.Origin, e.Provenance.Compiler, e.Provenance.Duration.Seconds()
				}
			}
			if a.json {
				return a.printJSON(map[string]any{"module": m, "entries": entries})
			}
			facts := []string{plural(int64(m.Entries), "artifact"), byteCount(m.Bytes), "created " + m.Created.Local().Format(time.DateTime), "last used " + m.LastUsed.Local().Format(time.DateTime)}
			if note := m.note(); note != "" {
				facts = append(facts, note)
			}
			fmt.Fprintf(a.out, "%s for %s, id %s\n  %s\n\n", termsafe.Line(m.Name, termsafe.MaxLine), m.Target, m.ID, strings.Join(facts, ", "))
			t := table{head: []string{"key", ">bytes", "shape", ">compiled in", "first use"}, width: terminalWidth(a.out)}
			for _, e := range entries {
				if e.Missing {
					t.add(e.Key[:16], byteCount(e.Bytes), "", "", "missing: compile the model again")
					continue
				}
				t.add(e.Key[:16], byteCount(e.Bytes), e.Factors["shape"], fmt.Sprintf("%.3f s", e.Seconds), e.Origin)
			}
			return t.write(a.out, "  ")
		}),
	}
	choice.add(cmd)
	cmd.Flags().BoolVar(&graph, "graph", false, "print the split module (computation_graph.ir)")
	return cmd
}

// explained is one artifact of `cache explain`.
type explained struct {
	Origin  string         `json:"origin"`
	Key     string         `json:"key"`
	Shape   string         `json:"shape"`
	Hit     bool           `json:"hit"`
	Nearest string         `json:"nearest,omitempty"` // origin of the nearest entry
	Changes []cache.Change `json:"changes,omitempty"` // from the nearest entry's key to this key
	Damaged []string       `json:"damaged,omitempty"`

	Untrusted []string `json:"untrusted,omitempty"` // why machine code in the cache is not used

	alone bool // a miss, and the cache has no entry to compare with
}

func (a *app) cacheExplain() *cobra.Command {
	var f modelFlags
	var b buildFlags
	cmd := &cobra.Command{
		Use:   "explain FILE",
		Short: "show for each piece of a model whether the cache has it, and if not, which factors differ",
		Long: `Split a model and look up every artifact that compiling it with these flags
would need. For a missing artifact it prints the nearest entry and each factor of
the key in which the two differ. Nothing is compiled, fetched or written: an
artifact that only PWC_CACHE_REMOTE has is a miss.`,
		Example: "  pwc cache explain model.ir\n  pwc cache explain models/llama --compile-sizes 8",
		Args:    exactly(1, "one module or checkpoint"),
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			b.fix(cmd)
			return refuse(cmd, noEffect{true, "dump-passes", ": explain compiles nothing; pwc compile --dump-passes writes the passes"})
		},
		RunE: a.withStore(func(ctx context.Context, s *cache.Store, args []string) error {
			return a.explain(ctx, s, args[0], &f, &b)
		}),
	}
	f.addImport(cmd, "auto")
	b.add(cmd)
	b.addSymbols(cmd)
	return cmd
}

func (a *app) explain(ctx context.Context, s *cache.Store, path string, f *modelFlags, bf *buildFlags) (err error) {
	m, err := a.open(path, f)
	if err != nil {
		return err
	}
	t, closeAll, err := openTargetFor(ctx, m.module, bf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	bf.frozen, bf.unrecorded, bf.local = true, true, true
	module := m.module
	if served, err := a.serves(module); err != nil {
		return err
	} else if served != nil {
		module = served
	}
	type found struct {
		use pieces.Use
		explained
	}
	var all []found
	t.events = func(e pieces.Event) {
		if e.Kind != pieces.Finished && e.Kind != pieces.Failed {
			return
		}
		x := explained{Origin: e.Artifact.Origin, Key: e.Artifact.Key.String(), Shape: e.Artifact.Key.Shape, Hit: e.Kind == pieces.Finished}
		var miss *pieces.MissError
		if errors.As(e.Err, &miss) {
			if why := miss.Why; why != nil {
				x.Changes = why.Changes
				for _, d := range why.Damaged {
					x.Damaged = append(x.Damaged, d.Error())
				}
				for _, u := range why.Untrusted {
					x.Untrusted = append(x.Untrusted, u.Error())
				}
				if miss.Err != nil && len(x.Damaged) == 0 && len(x.Untrusted) == 0 { // an undamaged entry that is not a program
					x.Damaged = []string{miss.Err.Error()}
				}
				x.alone = why.Nearest == nil && !why.Hit
				if why.Nearest != nil {
					x.Nearest = why.Nearest.Provenance.Origin
				}
			}
		}
		first := pieces.Use{Plan: len(module.Funcs)} // kernels of ops belong to no function, and are last
		if len(e.Artifact.Uses) > 0 {
			first = e.Artifact.Uses[0]
		}
		all = append(all, found{first, x})
	}
	b, err := a.newBackend(ctx, module, t, bf, piecewise.Piecewise, nil, loadSymbols(module))
	var miss *pieces.MissError
	switch {
	case err == nil:
		defer func() { err = errors.Join(err, b.Close()) }()
	case !errors.As(err, &miss):
		return err
	}
	slices.SortFunc(all, func(x, y found) int {
		return cmp.Or(cmp.Compare(x.use.Plan, y.use.Plan), cmp.Compare(x.use.Unit, y.use.Unit), cmp.Compare(x.Origin, y.Origin))
	})
	rows := make([]explained, len(all))
	misses := 0
	for i, x := range all {
		rows[i] = x.explained
		if !rows[i].Hit {
			misses++
		}
	}
	if a.json {
		return a.printJSON(map[string]any{"dir": s.Dir(), "hits": len(rows) - misses, "misses": misses, "artifacts": rows})
	}
	for _, x := range rows {
		word := "hit "
		if !x.Hit {
			word = "miss"
		}
		fmt.Fprintf(a.out, "%s  %s  %s  %s\n", word, x.Key, x.Shape, x.Origin)
		for _, d := range x.Damaged {
			fmt.Fprintf(a.out, "        damaged: %s\n", d)
		}
		for _, u := range x.Untrusted {
			fmt.Fprintf(a.out, "        %s\n", u)
		}
		switch {
		case x.Hit || len(x.Damaged) > 0 || len(x.Untrusted) > 0:
		case x.alone:
			fmt.Fprintln(a.out, "        the cache has no readable entry")
		case len(x.Changes) > 0:
			fmt.Fprintf(a.out, "        nearest: %s\n", x.Nearest)
			for _, c := range x.Changes {
				fmt.Fprintf(a.out, "          %s\n", c)
			}
		}
	}
	fmt.Fprintf(a.out, "%s, %d to be compiled\n", plural(int64(len(rows)-misses), "hit"), misses)
	return nil
}

func (a *app) cacheVerify() *cobra.Command {
	return &cobra.Command{
		Use:     "verify",
		Short:   "read every file and check it against its hash",
		Example: "  pwc cache verify",
		Args:    none,
		RunE: a.withStore(func(ctx context.Context, s *cache.Store, _ []string) error {
			r, err := s.Verify(ctx)
			if err != nil {
				return err
			}
			problems := make([]string, len(r.Problems))
			for i, p := range r.Problems {
				problems[i] = p.Error()
			}
			if a.json {
				if err := a.printJSON(map[string]any{"modules": r.Modules, "entries": r.Entries, "blobs": r.Blobs, "tuning_records": r.Tunings, "bytes": r.Bytes, "problems": problems}); err != nil {
					return err
				}
			} else {
				for _, p := range problems {
					fmt.Fprintln(a.out, p)
				}
				fmt.Fprintf(a.out, "%s, %s, %s, %s: %s\n", plural(int64(r.Modules), "model"), plural(int64(r.Entries), "artifact"), plural(int64(r.Blobs), "blob"),
					byteCount(r.Bytes), plural(int64(len(problems)), "problem"))
			}
			if len(problems) > 0 {
				return errReported
			}
			return nil
		}),
	}
}

func (a *app) cacheGC() *cobra.Command {
	limit := int64(-1) // not given
	grace := time.Hour
	cmd := &cobra.Command{
		Use:   "gc --max-bytes N",
		Short: "remove unusable files and the least recently used models",
		Long: `Remove entries that cannot be used. Then, until the directory is within --max-bytes, remove
artifacts that belong to no model, and the least recently used models, each with the artifacts
that no other model uses. Pinned models, tuning records and the directories of PWC_CACHE_PATH
are not touched. gc does not read the bytes of programs: pwc cache verify does, and the next
compilation repairs what it finds.`,
		Example: "  pwc cache gc --max-bytes 500MiB",
		Args:    none,
		RunE: a.withStore(func(ctx context.Context, s *cache.Store, _ []string) error {
			if limit < 0 {
				return usagef("--max-bytes needs the number of bytes to keep, as in 1048576, 500MiB or 1.5GB")
			}
			r, err := s.GC(ctx, cache.GCOptions{MaxBytes: limit, Grace: grace})
			if a.json {
				doc := map[string]any{"modules": r.Modules, "entries": r.Entries, "blobs": r.Blobs, "freed_bytes": r.Freed, "left_bytes": r.Left}
				if err == nil {
					return a.printJSON(doc)
				}
				doc["error"] = err.Error() // the counts are valid also after an error, and there is only one document
				fmt.Fprintln(a.err, "pwc: "+err.Error())
				return errors.Join(a.printJSON(doc), errReported)
			}
			fmt.Fprintf(a.out, "removed %s, %s: %s freed, %s left\n", plural(int64(r.Modules), "model"), plural(int64(r.Entries), "artifact"), byteCount(r.Freed), byteCount(r.Left))
			return err
		}),
	}
	cmd.Flags().Var(byteFlag{&limit, 0}, "max-bytes", "`BYTES` to keep at most, as in 500MiB or 2GB")
	cmd.Flags().Lookup("max-bytes").DefValue = ""
	cmd.Flags().Var(&duration{&grace, false}, "grace", "keep artifacts that belong to no model if they are younger than this")
	return cmd
}

func (a *app) cachePin(pin bool) *cobra.Command {
	name, short, done := "pin", "keep a model from being collected", "pinned"
	if !pin {
		name, short, done = "unpin", "let a model be collected again", "not pinned"
	}
	var choice modelChoice
	cmd := &cobra.Command{
		Use:     name + " MODEL",
		Short:   short,
		Example: "  pwc cache " + name + " llama",
		Args:    exactly(1, "one model"),

		ValidArgsFunction: a.completeModels(0),
		RunE: a.withStore(func(ctx context.Context, s *cache.Store, args []string) error {
			act := s.Unpin
			if pin {
				act = s.Pin
			}
			ref, err := choice.one(ctx, s, args[0])
			if err != nil {
				return err
			}
			m, err := act(ctx, ref)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(cacheModuleOf(m))
			}
			fmt.Fprintf(a.out, "%s (%s) is %s\n", termsafe.Line(m.Name, termsafe.MaxLine), m.ID.String()[:12], done)
			return nil
		}),
	}
	choice.add(cmd)
	return cmd
}

func (a *app) cacheClear() *cobra.Command {
	return &cobra.Command{
		Use:     "clear",
		Short:   "remove all models from the cache directory, also pinned ones, and the tuning records",
		Example: "  pwc cache clear",
		Args:    none,
		RunE: a.withStore(func(ctx context.Context, s *cache.Store, _ []string) error {
			if err := s.Clear(ctx); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"cleared": s.Dir()})
			}
			_, err := io.WriteString(a.out, "cleared "+s.Dir()+"\n")
			return err
		}),
	}
}

// none is the cobra.PositionalArgs of a command that takes no arguments.
func none(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("takes no arguments, got %d", len(args))
	}
	return nil
}
