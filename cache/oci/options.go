package oci

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/retry"

	"pwc/cache"
)

// Options say how to reach a registry, what to take from it, and where to report progress. The zero value means HTTPS
// without proxy or credentials, and takes nothing.
type Options struct {
	// The connection to a registry (Push, Pull, Inspect, NewRemote).
	PlainHTTP  bool                // HTTP, without encryption or authentication of the registry
	Credential auth.CredentialFunc // nil: none
	Transport  http.RoundTripper   // nil: one without a proxy
	Retry      retry.Policy        // for requests that fail; nil: retry.DefaultPolicy
	Stall      time.Duration       // a transfer that moves too few bytes in this time fails, see MinRate; 0: 30 s

	MinRate int64 // least bytes per second of a transfer, measured over each Stall; 0: 4 KiB, negative: one byte in each Stall

	// Trust lists the artifacts, repositories and keys whose machine code is taken (Import, Pull, NewRemote): an
	// artifact with machine code is taken if the list has it or its repository, or a key that signed it. Nil: no
	// machine code is trusted. Programs for the host need no trust.
	Trust *cache.Trust

	// Accept is called before Import or Pull takes machine code that Trust does not cover, and before anything else is
	// taken, with the digest of the manifest. An error ends the transfer. Nil: such code is refused.
	Accept func(cache.Digest) error

	// Signer signs the artifact (Export, Push), unless it has a signature by the same key. Nil: no signature is
	// added.
	Signer *cache.Signer

	// What to take (Import, Pull, NewRemote).
	Machine  Machine
	Targets  []string // not nil: take modules for these targets, whatever Machine is
	MaxBytes int64    // of the modules that are taken, for NewRemote of the whole artifact; 0: 16 GiB

	// MinDriver returns the oldest driver that loads the output of a compiler for a target, as numbers and dots; ""
	// if no driver is needed (Export, Push). Nil: no driver is needed. The result is part of the artifact's digest,
	// so it should depend on the arguments only.
	MinDriver func(target, compiler string) string

	// Tag is the tag that Export gives the artifact in a layout ("": latest), or the tag or digest of the artifact
	// that Import takes ("": the only artifact, or else latest).
	Tag string

	Jobs   int          // concurrent transfers; 0: 4
	Logger *slog.Logger // nil: no messages

	// Observer is called after every blob, or once for all blobs if the tag of a push names the artifact already, by
	// one goroutine at a time. Nil: not called.
	Observer func(Progress)
}

// Machine describes which programs a machine can run.
type Machine struct {
	Targets []string // "host", "cuda:sm_90"
	Driver  string   // version of the GPU's driver, in the form of Target.MinDriver; empty: no driver
}

// Progress counts the blobs of a transfer.
type Progress struct {
	Done, Total           int   // blobs, including those that the destination had already
	DoneBytes, TotalBytes int64 // bytes of these blobs
}

const (
	defaultStall    = 30 * time.Second
	defaultMinRate  = 4 << 10 // bytes a second
	defaultMaxBytes = 16 << 30
	defaultJobs     = 4
)

func (o *Options) stall() time.Duration { return cmp.Or(o.Stall, defaultStall) }
func (o *Options) minRate() int64       { return max(0, cmp.Or(o.MinRate, defaultMinRate)) }
func (o *Options) maxBytes() int64      { return cmp.Or(o.MaxBytes, defaultMaxBytes) }
func (o *Options) jobs() int            { return cmp.Or(max(o.Jobs, 0), defaultJobs) }

func (o *Options) log() *slog.Logger {
	if o.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Logger
}

// FromEnv returns the options of a command line. It is the only function of the package that reads the environment:
// HTTPS_PROXY, HTTP_PROXY and NO_PROXY choose a proxy ([http.ProxyFromEnvironment]). Credentials come from Docker's
// config.json, in DOCKER_CONFIG or the home directory, and from the credential helpers that it names. It is read when
// a registry first asks for credentials, so a machine without the file, or without a home directory, can use
// registries that ask for none.
func FromEnv() Options {
	t := newTransport()
	t.Proxy = http.ProxyFromEnvironment
	docker := sync.OnceValues(func() (*credentials.DynamicStore, error) {
		return credentials.NewStoreFromDocker(credentials.StoreOptions{})
	})
	return Options{Transport: t, Credential: func(ctx context.Context, host string) (auth.Credential, error) {
		store, err := docker()
		if err != nil {
			return auth.EmptyCredential, fmt.Errorf("credentials of Docker: %w", err)
		}
		return credentials.Credential(store)(ctx, host)
	}}
}

// A tracker counts blobs for an observer.
type tracker struct {
	mu      sync.Mutex
	observe func(Progress)
	at      Progress
}

func (t *tracker) done(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at.Done++
	t.at.DoneBytes += bytes
	if t.observe != nil {
		t.observe(t.at)
	}
}

// allDone counts all blobs at once.
func (t *tracker) allDone() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at.Done, t.at.DoneBytes = t.at.Total, t.at.TotalBytes
	if t.observe != nil {
		t.observe(t.at)
	}
}

// cause returns err, or in place of an error the cause of ctx if ctx has ended.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
