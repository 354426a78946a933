package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"pwc/cache"
	"pwc/cache/oci"
	"pwc/pieces"
	"pwc/runtime/host"
)

// shareFlags are the flags of the commands that move a cache between machines.
type shareFlags struct {
	targets   []string
	machine   bool // choose the models that this machine can run
	tag       string
	plainHTTP bool
	trust     bool     // accept machine code, and add its artifact to the trust file
	trustKeys []string // files of public keys to trust in this call
	signKey   string   // file of a private key
}

// addTake adds the flags of commands that take artifacts into the cache.
func (f *shareFlags) addTake(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.targets, "target", nil, "take the models for these `TARGET`s (default: those for this machine)")
	cmd.Flags().BoolVar(&f.trust, "trust", false, "take machine code without a trusted signature, and add the artifact's digest to the trust list")
	cmd.Flags().StringSliceVar(&f.trustKeys, "trust-key", nil, "take machine code that is signed with the key in `FILE`: a public key in PEM, such as cosign.pub")
}

// addSign adds the flag of commands that make artifacts.
func (f *shareFlags) addSign(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.signKey, "sign-key", "", "sign with the private key in `FILE`: PKCS #8 in PEM, ECDSA P-256 or Ed25519, as openssl genpkey makes it")
}

// sharing returns the options of a transfer, from the environment, this machine's targets, the
// user's trust file, and the flags.
func (a *app) sharing(f *shareFlags) (oci.Options, error) {
	o := oci.FromEnv()
	if err := a.trusting(f, &o); err != nil {
		return o, err
	}
	o.Logger = a.logger()
	if f.machine {
		targets, driver := gpuTargets()
		o.Machine = oci.Machine{Targets: append([]string{host.Target}, targets...), Driver: driver}
	}
	o.MinDriver = minDriver
	o.PlainHTTP, o.Tag = f.plainHTTP, f.tag
	if len(f.targets) > 0 {
		o.Targets = f.targets
	}
	bar := &progress{w: a.screen, what: "blobs"}
	o.Observer = func(p oci.Progress) {
		bar.set(p.Done, p.Total, "")
		if p.Done == p.Total {
			bar.end()
		}
	}
	return o, nil
}

// trusting adds the user's trust, the keys of the flags, and the signer.
func (a *app) trusting(f *shareFlags, o *oci.Options) error {
	o.Trust = &cache.Trust{}
	if a.trust != nil {
		*o.Trust = *a.trust
	}
	for _, name := range f.trustKeys {
		k, err := cache.ReadPublicKey(name)
		if err != nil {
			return fmt.Errorf("--trust-key: %w", err)
		}
		o.Trust.AddKey(k)
	}
	if f.trust {
		o.Accept = func(d cache.Digest) error {
			return changeTrust(func(t *cache.Trust) error { t.AddArtifact(d); return nil })
		}
	}
	if f.signKey != "" {
		s, err := cache.ReadSigner(f.signKey)
		if err != nil {
			return fmt.Errorf("--sign-key: %w", err)
		}
		o.Signer = s
	}
	return nil
}

// oldestDriver is the oldest CUDA version of a driver that has all functions that pwc calls.
const oldestDriver = "12.0"

// minDriver returns the oldest driver, as a CUDA version, that loads the output of a compiler for a
// target. A cubin needs a driver of the compiler's major version or later (CUDA Compatibility,
// "Minor Version Compatibility"), and pwc needs oldestDriver. A compiler is a name such as
// "nvrtc 13.0". The host needs no driver: "".
func minDriver(target, compiler string) string {
	if target == host.Target {
		return ""
	}
	var major, minor int
	if _, err := fmt.Sscanf(compiler, "nvrtc %d.%d", &major, &minor); err != nil || major <= 12 {
		return oldestDriver
	}
	return fmt.Sprintf("%d.0", major)
}

// overRemote returns a store that reads pieces missing in s from the artifact of PWC_CACHE_REMOTE. On a GPU of this
// machine it takes only programs that the GPU's driver loads, as cache pull does.
func (a *app) overRemote(s *cache.Store, t *target, frozen bool) (pieces.Store, func(), error) {
	address := os.Getenv(oci.EnvRemote)
	if address == "" {
		return s, func() {}, nil
	}
	o, err := a.sharing(&shareFlags{})
	if err != nil {
		return nil, nil, err
	}
	o.Observer = nil
	if t.driver != "" {
		o.Machine = oci.Machine{Targets: []string{t.name}, Driver: t.driver}
	} else { // the target is the host, or the programs are for other machines
		o.Targets = []string{t.name}
	}
	remote, err := oci.NewRemote(address, o)
	if err != nil {
		return nil, nil, usagef("%s: %w", oci.EnvRemote, err)
	}
	return oci.Layer(s, remote, frozen), remote.Close, nil
}

func (a *app) cacheExport() *cobra.Command {
	var f shareFlags
	var choice modelChoice
	cmd := &cobra.Command{
		Use:   "export FILE.tar|DIR [MODEL…]",
		Short: "write models as an OCI image layout",
		Long: `Write models with all their artifacts as an OCI image layout, to a tar file, which is
replaced, or to a directory. If the directory is a layout already, the models are added to
it. Without MODELs all models are written. The same models and tag give a tar of the same
bytes, except for an ECDSA signature, which contains a random number.`,
		Example: "  pwc cache export cache.tar\n  pwc cache export layout/ llama --tag v1\n  pwc cache export cache.tar --sign-key key.pem",
		Args:    atLeastOne("a file or directory"),

		ValidArgsFunction: a.completeModels(1),
		RunE:              a.sendModels(&f, &choice, oci.Export, "wrote"),
	}
	choice.add(cmd)
	cmd.Flags().StringVar(&f.tag, "tag", "", "`TAG` of the artifact in the layout (default: latest)")
	f.addSign(cmd)
	return cmd
}

func (a *app) cachePush() *cobra.Command {
	var f shareFlags
	var choice modelChoice
	cmd := &cobra.Command{
		Use:   "push REGISTRY/REPO:TAG [MODEL…]",
		Short: "send models to a registry",
		Long: `Send models with all their artifacts to a registry, as one OCI artifact. Without
MODELs all models are sent. Blobs that the registry has are not sent again. Credentials
come from the Docker config; HTTPS_PROXY and NO_PROXY apply.

Signatures are in cosign's format: cosign verify --key accepts them, and pwc cache
pull accepts those of cosign. The signature is pushed before the tag.`,
		Example: "  pwc cache push registry.example/models/llama:sm90 llama --target cuda:sm_90\n  pwc cache push registry.example/models/llama:sm90 llama --sign-key key.pem",
		Args:    atLeastOne("a reference"),

		ValidArgsFunction: a.completeModels(1),
		RunE:              a.sendModels(&f, &choice, oci.Push, "pushed"),
	}
	choice.add(cmd)
	cmd.Flags().BoolVar(&f.plainHTTP, "plain-http", false, "use HTTP, without encryption or authentication of the registry")
	f.addSign(cmd)
	return cmd
}

// sendModels returns a RunE that sends models to its first argument. The other arguments are
// references of the models. done is the verb of the report, such as "pushed".
func (a *app) sendModels(f *shareFlags, choice *modelChoice, send func(context.Context, *cache.Store, []string, string, oci.Options) (*oci.Sent, error), done string) func(*cobra.Command, []string) error {
	return a.withStore(func(ctx context.Context, s *cache.Store, args []string) error {
		o, err := a.sharing(f)
		if err != nil {
			return err
		}
		refs, err := choice.all(ctx, s, args[1:])
		if err != nil {
			return err
		}
		r, err := send(ctx, s, refs, args[0], o)
		if err != nil {
			return err
		}
		return a.printSent(done+" "+args[0], r)
	})
}

func (a *app) printSent(what string, r *oci.Sent) error {
	if a.json {
		return a.printJSON(map[string]any{"digest": r.Digest.String(), "modules": r.Modules, "entries": r.Entries, "blobs": r.Blobs, "bytes": r.Bytes,
			"written": r.Written, "written_bytes": r.WrittenBytes, "signed_by": r.SignedBy})
	}
	fmt.Fprintf(a.out, "%s: %s, %s; %d of %s were new (%s)\n", what, plural(int64(r.Modules), "model"), plural(int64(r.Entries), "artifact"),
		r.Written, plural(int64(r.Blobs), "blob"), byteCount(r.WrittenBytes))
	if r.SignedBy != "" {
		fmt.Fprintf(a.out, "  signed by key %s\n", r.SignedBy[:16])
	}
	_, err := fmt.Fprintln(a.out, r.Digest)
	return err
}

func (a *app) cacheImport() *cobra.Command {
	f := shareFlags{machine: true}
	cmd := &cobra.Command{
		Use:   "import FILE.tar|DIR",
		Short: "take models from an OCI image layout",
		Long: `Take the models of an OCI image layout that this machine can use into the cache.
Every digest is verified, without network access. Machine code is taken if it is signed
with a trusted key, if pwc cache trust lists the artifact, or with --trust.`,
		Example: "  pwc cache import cache.tar\n  pwc cache import layout/ --target cuda:sm_90\n  pwc cache import cache.tar --trust-key cosign.pub",
		Args:    exactly(1, "one file or directory"),
		RunE: a.withStore(func(ctx context.Context, s *cache.Store, args []string) error {
			o, err := a.sharing(&f)
			if err != nil {
				return err
			}
			r, err := oci.Import(ctx, s, args[0], o)
			if err != nil {
				return err
			}
			return a.printReceived("imported "+args[0], r)
		}),
	}
	cmd.Flags().StringVar(&f.tag, "tag", "", "`TAG` or digest of the artifact in the layout (default: the only one, else latest)")
	f.addTake(cmd)
	return cmd
}

func (a *app) cachePull() *cobra.Command {
	f := shareFlags{machine: true}
	cmd := &cobra.Command{
		Use:   "pull REGISTRY/REPO:TAG|@sha256:…",
		Short: "take models from a registry",
		Long: `Take the models of an artifact that this machine can use into the cache. If the
artifact has no such model, it is refused with the reasons before blobs are fetched.
Every digest is verified. Repeat an interrupted pull: it continues where it stopped.

Programs for the host are verified when they are loaded. Machine code for GPUs is
taken if it is signed with a trusted key (by cosign or push --sign-key), if pwc cache
trust lists the artifact or its repository, or with --trust. With a tag the registry
chooses the artifact, so you trust the registry; with a digest you do not.`,
		Example: `  pwc cache pull registry.example/models/llama:sm90
  pwc cache pull registry.example/models/llama:sm90 --trust-key cosign.pub
  pwc cache pull registry.example/models/llama@sha256:… --trust`,
		Args: exactly(1, "one reference"),
		RunE: a.withStore(func(ctx context.Context, s *cache.Store, args []string) error {
			o, err := a.sharing(&f)
			if err != nil {
				return err
			}
			r, err := oci.Pull(ctx, s, args[0], o)
			if err != nil {
				return err
			}
			return a.printReceived("pulled "+args[0], r)
		}),
	}
	f.addTake(cmd)
	cmd.Flags().BoolVar(&f.plainHTTP, "plain-http", false, "use HTTP, without encryption or authentication of the registry")
	return cmd
}

func (a *app) printReceived(what string, r *oci.Received) error {
	refused := make([]string, len(r.Refused))
	for i, x := range r.Refused {
		refused[i] = x.String()
	}
	if a.json {
		ids := make([]string, len(r.Modules))
		for i, id := range r.Modules {
			ids[i] = id.String()
		}
		return a.printJSON(map[string]any{"digest": r.Digest.String(), "modules": ids, "refused": refused, "entries": r.Entries, "kept": r.Kept,
			"fetched": r.Fetched, "fetched_bytes": r.FetchedBytes, "trusted": r.Trusted})
	}
	fmt.Fprintf(a.out, "%s: %s, %s, %d of them already in the cache; %s fetched (%s)\n", what, plural(int64(len(r.Modules)), "model"), plural(int64(r.Entries), "artifact"),
		r.Kept, plural(int64(r.Fetched), "blob"), byteCount(r.FetchedBytes))
	if r.Trusted != "" {
		fmt.Fprintf(a.out, "  machine code is trusted: %s\n", r.Trusted)
	}
	for _, x := range refused {
		fmt.Fprintf(a.out, "  not taken: %s\n", x)
	}
	_, err := fmt.Fprintln(a.out, r.Digest)
	return err
}
