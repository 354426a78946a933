package oci

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"pwc/cache"
	"pwc/internal/termsafe"
)

// EnvRemote is the variable with the address of the artifact that a command line consults after the local cache:
// oci://REGISTRY/REPO:TAG or oci://REGISTRY/REPO@sha256:…, or oci+http://… without encryption. The library does not
// read it.
const EnvRemote = "PWC_CACHE_REMOTE"

// Remote is an artifact in a registry from which single entries are fetched when they are looked up. Its config is
// read once, at the first look-up. The first failure ends its use, with one warning, so that a build does not wait
// for a broken registry at every piece. Methods are safe for concurrent use.
type Remote struct {
	repo *repository
	o    Options

	opening chan struct{} // holds a token while no goroutine reads the config
	opened  atomic.Pointer[remoteIndex]

	mu      sync.Mutex
	failure error
	refused map[string]bool // reasons that were logged already

	fetched, fetchedBytes atomic.Int64
}

// A remoteIndex is an artifact and its entries by id.
type remoteIndex struct {
	*remoteArtifact
	at        map[cache.ID]*Entry
	untrusted error // why its machine code is not used; nil: there is none, or it is trusted
}

// NewRemote returns the remote of an address as in [EnvRemote]. It does not connect before the first look-up.
// Options.Targets or else Machine limit the entries that a look-up may return.
func NewRemote(address string, o Options) (*Remote, error) {
	scheme, ref, ok := strings.Cut(address, "://")
	switch {
	case ok && scheme == "oci":
	case ok && scheme == "oci+http":
		o.PlainHTTP = true
	default:
		return nil, fmt.Errorf("%q is not oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:…, or such an address with oci+http:// for a registry without encryption", termsafe.Clip(address, 80))
	}
	r, err := newRepository(ref, &o)
	if err != nil {
		return nil, err
	}
	m := &Remote{repo: r, o: o, opening: make(chan struct{}, 1), refused: map[string]bool{}}
	m.opening <- struct{}{}
	return m, nil
}

// Close closes the idle connections.
func (m *Remote) Close() { m.repo.close() }

// Err returns the failure that ended the use of the remote, or nil.
func (m *Remote) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failure
}

// Fetched returns the number of fetched blobs, and their bytes.
func (m *Remote) Fetched() (blobs, bytes int64) { return m.fetched.Load(), m.fetchedBytes.Load() }

// fail ends the use of the remote, unless ctx has ended, which is not a failure of the remote.
func (m *Remote) fail(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure == nil {
		m.failure = fmt.Errorf("remote cache %s: %w", m.repo.name(), err)
		m.o.log().Warn("cache: the remote cache fails; going on without it", "remote", m.repo.name(), "reason", err)
	}
	return m.failure
}

// index returns the entries. The first caller reads them.
func (m *Remote) index(ctx context.Context) (*remoteIndex, error) {
	if x := m.opened.Load(); x != nil {
		return x, nil
	}
	select {
	case <-m.opening:
		defer func() { m.opening <- struct{}{} }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := m.Err(); err != nil {
		return nil, err
	}
	if x := m.opened.Load(); x != nil {
		return x, nil
	}
	a, err := open(ctx, m.repo)
	if limit := m.o.maxBytes(); err == nil && a.config.Bytes > limit {
		err = fmt.Errorf("it lists %d bytes, above the limit of %d (Options.MaxBytes)", a.config.Bytes, limit)
	}
	var untrusted *cache.UntrustedError
	if err == nil && slices.ContainsFunc(a.config.Targets, func(t Target) bool { return cache.NeedsTrust(t.Name) && m.o.refuses(a.config, t.Name) == "" }) {
		trust := m.o
		trust.Accept = nil // only Import and Pull call it
		if _, err = trust.trusted(ctx, a); errors.As(err, &untrusted) {
			err = nil
		}
	}
	if err != nil {
		return nil, m.fail(ctx, err)
	}
	x := &remoteIndex{remoteArtifact: a, at: make(map[cache.ID]*Entry, len(a.config.Entries))}
	if untrusted != nil {
		x.untrusted = untrusted
	}
	for i, id := range a.config.ids {
		x.at[id] = &a.config.Entries[i]
	}
	m.opened.Store(x)
	m.o.log().Info("cache: remote cache", "remote", m.repo.name(), "digest", a.digest, "entries", len(x.at), "bytes", a.config.Bytes)
	return x, nil
}

// find returns the entry of a key, or nil if the remote has no entry that this machine can use. The error is the
// failure of the remote, or says why its entry cannot be used. It is a *cache.UntrustedError if the entry is machine
// code that is not trusted.
func (m *Remote) find(ctx context.Context, key cache.Key) (*remoteIndex, *Entry, error) {
	x, err := m.index(ctx)
	if err != nil {
		return nil, nil, err
	}
	e := x.at[key.Sum()]
	if e == nil {
		return x, nil, nil
	}
	why := m.o.refusesEntry(x.config, e)
	switch {
	case why != "":
		err = fmt.Errorf("the entry of remote cache %s cannot be used: %s", m.repo.name(), why)
	case cache.NeedsTrust(e.Target) && x.untrusted != nil:
		why, err = x.untrusted.Error(), x.untrusted
	default:
		return x, e, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.refused[why] {
		m.refused[why] = true
		m.o.log().Warn("cache: entries of the remote cache cannot be used", "remote", m.repo.name(), "target", e.Target, "reason", why)
	}
	return x, nil, err
}

// fetch returns the blob of an entry, after all checks.
func (m *Remote) fetch(ctx context.Context, x *remoteIndex, e *Entry) ([]byte, error) {
	blob, err := x.content(ctx, e.Blob)
	if err == nil {
		err = checkProgram(blob, e.Key())
	}
	if err != nil {
		return nil, m.fail(ctx, err)
	}
	m.fetched.Add(1)
	m.fetchedBytes.Add(int64(len(blob)))
	return blob, nil
}

// Layered is a store that fetches entries that it lacks from a remote, and stores them. It sends nothing to the
// remote.
type Layered struct {
	*cache.Store
	remote *Remote
	frozen bool
}

// Layer returns a store over a remote. After a failure of the remote its entries are misses, with one warning. Entries
// that cannot be used are misses too, with one warning for each reason. If frozen is set, such a miss is an error that
// contains the failure or the reason.
func Layer(s *cache.Store, m *Remote, frozen bool) *Layered {
	return &Layered{Store: s, remote: m, frozen: frozen}
}

// Get returns the blob of a key from the store, or else from the remote. An error of the store is returned as by
// [cache.Store.Get], unless the remote has the blob, which then repairs the store.
func (l *Layered) Get(ctx context.Context, key cache.Key) (blob []byte, ok bool, err error) {
	blob, ok, err = l.Store.Get(ctx, key)
	if ok || ctx.Err() != nil {
		return blob, ok, err
	}
	blob, remoteErr := l.getRemote(ctx, key, err == nil)
	switch {
	case blob != nil:
		return blob, true, nil
	case ctx.Err() != nil:
		return nil, false, context.Cause(ctx)
	case l.frozen && remoteErr != nil:
		return nil, false, errors.Join(err, remoteErr)
	}
	return nil, false, err
}

// getRemote returns nil if the remote does not have the key. If several processes want it, one of them fetches it,
// and the others find it in the store, unless the store returned an error (missed is false). The lock is not the lock
// of the key: the caller may hold that one to compile the key.
func (l *Layered) getRemote(ctx context.Context, key cache.Key, missed bool) ([]byte, error) {
	x, e, err := l.remote.find(ctx, key)
	if e == nil {
		return nil, err
	}
	unlock, err := l.Store.Lock(ctx, cache.Key{Piece: key.Sum(), Shape: "remote"})
	if err != nil {
		return nil, err
	}
	defer unlock()
	if missed {
		if blob, ok, err := l.Store.Get(ctx, key); ok || err != nil {
			return blob, nil
		}
	}
	if err := l.remote.Err(); err != nil {
		return nil, err
	}
	blob, err := l.remote.fetch(ctx, x, e)
	if err != nil {
		return nil, err
	}
	p := cache.Provenance{Compiler: e.Compiler, Origin: x.origin()}
	if err := l.Store.Put(ctx, key, blob, p); err != nil {
		l.remote.o.log().Debug("cache: a blob of the remote cache is used and not kept", "entry", key, "reason", err) // the store has warned
	}
	return blob, nil
}
