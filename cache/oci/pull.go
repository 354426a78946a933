package oci

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"pwc/cache"
	"pwc/internal/termsafe"
)

// Received is the result of Import and Pull.
type Received struct {
	Digest       cache.Digest // of the manifest
	Modules      []cache.ID
	Refused      []Refusal // modules that were not taken
	Entries      int       // of the modules
	Kept         int       // entries that the store had already
	Fetched      int       // blobs and graphs read from the source
	FetchedBytes int64

	// Trusted is why machine code was taken: "listed", "signed by key …" or "accepted" (by Options.Accept). "": no
	// machine code was taken.
	Trusted string
}

// Info is the manifest's digest and the config of an artifact.
type Info struct {
	Digest cache.Digest
	Config *Config
}

// Inspect reads the manifest and the config of REGISTRY/REPO:TAG or REGISTRY/REPO@sha256:….
func Inspect(ctx context.Context, ref string, o Options) (*Info, error) {
	r, err := newRepository(ref, &o)
	if err != nil {
		return nil, err
	}
	defer r.close()
	a, err := open(ctx, r)
	if err != nil {
		return nil, err
	}
	return &Info{a.digest, a.config}, nil
}

// Pull takes modules from REGISTRY/REPO:TAG or REGISTRY/REPO@sha256:… into a store. It reads the config first and
// skips modules that cannot be used, with the reasons in the result. If it skips all modules, the error is a
// *[RefusedError]. If the store cannot keep an entry or a module, Pull ends with the *[cache.NotCachedError].
//
// Every blob of an entry is compared with its digest, checked to be a program, and put by [cache.Store.Put] when it
// has arrived whole. A module is put when the store has all its entries. So an interrupted pull leaves whole entries,
// and the next pull continues with the others. An entry that [cache.Store.Get] returns stays, even if the artifact has
// other bytes for its key; a damaged or untrusted entry is fetched again.
func Pull(ctx context.Context, s *cache.Store, ref string, o Options) (*Received, error) {
	r, err := newRepository(ref, &o)
	if err != nil {
		return nil, err
	}
	defer r.close()
	return receive(ctx, s, r, &o)
}

func receive(ctx context.Context, s *cache.Store, src source, o *Options) (*Received, error) {
	a, err := open(ctx, src)
	if err != nil {
		return nil, err
	}
	rx := &receiver{s: s, a: a, o: o, result: &Received{Digest: a.digest}, sizes: map[int]int64{}}
	if err := rx.choose(ctx); err != nil {
		return nil, err
	}
	if err := rx.entries(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", src.name(), cause(ctx, err))
	}
	for _, m := range rx.modules {
		if err := rx.module(ctx, m); err != nil {
			return nil, fmt.Errorf("%s: module %q: %w", src.name(), termsafe.Clip(m.Name, 80), cause(ctx, err))
		}
	}
	return rx.result, nil
}

// A receiver is one run of receive.
type receiver struct {
	s        *cache.Store
	a        *remoteArtifact
	o        *Options
	modules  []*Module
	blobs    [][]int // indices of the wanted entries, by blob
	progress *tracker

	mu     sync.Mutex
	result *Received
	sizes  map[int]int64 // by entry for which the store has other bytes: their size
}

// choose selects the modules, and sets modules, blobs and progress.
func (rx *receiver) choose(ctx context.Context) error {
	c := rx.a.config
	wanted := make([]bool, len(c.Entries))
	var untrusted *cache.UntrustedError // why the artifact is not trusted, once that was checked
	for i := range c.Modules {
		m := &c.Modules[i]
		why := rx.o.refusesModule(c, m)
		if why == "" && c.needsTrust(m) {
			if rx.result.Trusted == "" && untrusted == nil {
				var err error
				if rx.result.Trusted, err = rx.o.trusted(ctx, rx.a); err != nil && !errors.As(err, &untrusted) {
					return err
				}
			}
			if untrusted != nil {
				why = fmt.Sprintf("it has machine code, and %s; if it is yours, run: %s", untrusted.Reason, untrusted.Fix)
			}
		}
		if why != "" {
			rx.result.Refused = append(rx.result.Refused, Refusal{m.Name, m.Target, why})
			continue
		}
		rx.modules = append(rx.modules, m)
		for _, e := range m.Entries {
			wanted[e] = true
		}
	}
	if len(rx.modules) == 0 {
		return &RefusedError{rx.a.src.name(), rx.result.Refused, untrusted}
	}
	for _, r := range rx.result.Refused {
		rx.o.log().Info("cache: not taken", "from", rx.a.src.name(), "module", r.Module, "target", r.Target, "reason", r.Reason)
	}
	total := Progress{Total: len(rx.modules)}
	at := map[cache.Digest]int{}
	for i, want := range wanted {
		if !want {
			continue
		}
		rx.result.Entries++
		b := c.Entries[i].Blob
		j, seen := at[b.Digest]
		if !seen {
			j = len(rx.blobs)
			at[b.Digest] = j
			rx.blobs = append(rx.blobs, nil)
			total.Total++
			total.TotalBytes += b.Size
		}
		rx.blobs[j] = append(rx.blobs[j], i)
	}
	for _, m := range rx.modules {
		total.TotalBytes += m.Graph.Size
	}
	if limit := rx.o.maxBytes(); total.TotalBytes > limit {
		return &FormatError{rx.a.src.name(), "config", fmt.Errorf("the modules to take have %d bytes, above the limit of %d (Options.MaxBytes)", total.TotalBytes, limit)}
	}
	rx.progress = &tracker{observe: rx.o.Observer, at: total}
	return nil
}

// entries fetches all blobs that the store lacks.
func (rx *receiver) entries(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(rx.o.jobs())
	for _, of := range rx.blobs {
		g.Go(func() error { return rx.blob(gctx, of) })
	}
	return g.Wait()
}

// blob puts the entries that share a blob.
func (rx *receiver) blob(ctx context.Context, of []int) error {
	entries := rx.a.config.Entries
	want := entries[of[0]].Blob
	var data []byte
	var missing []int
	for _, i := range of {
		// A damaged or untrusted entry counts as missing; the store has logged it.
		have, ok, _ := rx.s.Get(ctx, entries[i].Key())
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !ok:
			missing = append(missing, i)
		case cache.DigestOf(have) == want.Digest:
			data = have
		default:
			rx.o.log().Info("cache: the store has other bytes for an entry; they stay", "entry", entries[i].Key(), "from", rx.a.src.name())
			rx.mu.Lock()
			rx.sizes[i] = int64(len(have))
			rx.mu.Unlock()
		}
	}
	fetched := false
	if data == nil && len(missing) > 0 {
		var err error
		if data, err = rx.a.content(ctx, want); err != nil {
			return err
		}
		fetched = true
	}
	for _, i := range missing {
		key := entries[i].Key()
		if err := checkProgram(data, key); err != nil {
			return err
		}
		if err := rx.s.Put(ctx, key, data, cache.Provenance{Compiler: entries[i].Compiler, Origin: rx.a.origin()}); err != nil {
			return err
		}
	}
	rx.mu.Lock()
	rx.result.Kept += len(of) - len(missing)
	rx.count(fetched, want.Size)
	rx.mu.Unlock()
	rx.progress.done(want.Size)
	return nil
}

// count adds a blob to the result if it was fetched. It is called with mu held.
func (rx *receiver) count(fetched bool, bytes int64) {
	if fetched {
		rx.result.Fetched++
		rx.result.FetchedBytes += bytes
	}
}

// module puts a module. The store has all its entries.
func (rx *receiver) module(ctx context.Context, m *Module) error {
	out := rx.a.config.module(m)
	for j, e := range m.Entries {
		if size, other := rx.sizes[e]; other {
			out.Entries[j].Size = size
		}
	}
	id := out.ID()
	fetched := false
	if have, err := rx.s.Show(ctx, id.String()); err == nil && have.Graph != nil && cache.DigestOf(have.Graph) == m.Graph.Digest {
		out.Graph = have.Graph
	} else {
		if out.Graph, err = rx.a.content(ctx, m.Graph); err != nil {
			return err
		}
		fetched = m.Graph.Size > 0
	}
	if err := rx.s.PutModule(ctx, out); err != nil {
		return err
	}
	rx.result.Modules = append(rx.result.Modules, id)
	rx.mu.Lock()
	rx.count(fetched, m.Graph.Size)
	rx.mu.Unlock()
	rx.progress.done(m.Graph.Size)
	return nil
}

// Usable returns the modules of an artifact that the options take, and why they refuse the others. It does not check
// trust.
func (i *Info) Usable(o Options) (modules []Module, refused []Refusal) {
	for _, m := range i.Config.Modules {
		if why := o.refusesModule(i.Config, &m); why != "" {
			refused = append(refused, Refusal{m.Name, m.Target, why})
		} else {
			modules = append(modules, m)
		}
	}
	return modules, refused
}
