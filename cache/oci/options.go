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

// Options say how a registry is reached, what is taken from it, and who is
// told. The zero value: HTTPS, no proxy, no credentials, nothing is wanted.
type Options struct {
	// How a registry is reached (Push, Pull, NewRemote).
	PlainHTTP  bool                // HTTP, without encryption or proof of who answers
	Credential auth.CredentialFunc // nil: none
	Transport  http.RoundTripper   // nil: one of Go's defaults that uses no proxy
	Retry      retry.Policy        // of requests that fail; nil: retry.DefaultPolicy
	Stall      time.Duration       // a transfer in which no byte moves for this long has failed; 0: 30 s

	MinRate int64 // bytes a second that a transfer must move, over each Stall; 0: 4 KiB, less than 0: one byte in all

	// Trust says whose machine code is taken (Import, Pull, NewRemote): an artifact with
	// some is taken if it or its repository is listed, or if a key of the list signed it.
	// Nil: none is. Programs for the host need no trust.
	Trust *cache.Trust

	// Accept is asked about an artifact with machine code that Trust does not cover
	// (Import, Pull), by the digest of its manifest and before anything is taken: an error
	// ends the transfer. Nil: such code is refused.
	Accept func(cache.Digest) error

	// Signer signs the artifact (Export, Push), unless its signature is there. Nil: no
	// signature is added.
	Signer *cache.Signer

	// What is wanted (Import, Pull, NewRemote).
	Machine  Machine
	Targets  []string // not nil: modules of these targets are wanted, whatever Machine is
	MaxBytes int64    // of an artifact; 0: 16 GiB

	// MinDriver gives the oldest driver that loads what a compiler makes for a
	// target, in numbers and dots; "" where none is needed (Export, Push). Nil:
	// none is needed. It should depend on its arguments alone: the digest of the
	// artifact does depend on its result.
	MinDriver func(target, compiler string) string

	// Tag of the artifact in a layout (Export; "": latest), or which one, by tag
	// or digest (Import; "": the only one, or else latest).
	Tag string

	Jobs     int            // transfers at once; 0: 4
	Logger   *slog.Logger   // nil: no messages
	Observer func(Progress) // nil, or told of every blob; calls do not overlap
}

// Machine is what a machine can run.
type Machine struct {
	Targets []string // "host", "cuda:sm_90"
	Driver  string   // version of the GPU's driver, in the form of Target.MinDriver; empty: there is none
}

// Progress is how far a transfer is.
type Progress struct {
	Done, Total           int   // blobs, those included that were there already
	DoneBytes, TotalBytes int64 // of the blobs
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

// FromEnv returns the options of a command line. It is the only function of
// the package that looks around in the machine: HTTPS_PROXY, HTTP_PROXY and
// NO_PROXY say how a registry is reached ([http.ProxyFromEnvironment]), and
// credentials come from Docker's config.json in DOCKER_CONFIG or the home
// directory, and the credential helpers that it names. The config is read when
// a registry first asks who is there: a machine without one, or without a home
// directory, reaches those that do not.
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

// tracker counts blobs for an observer.
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

// cause returns the cause of ctx's end if it has ended, and else err.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
