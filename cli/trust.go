package cli

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pwc/cache"
)

func (a *app) cacheTrust() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trust",
		Short: "list and change the trusted sources of machine code",
		Long: `Machine code cannot be verified: malicious code for a GPU can read and write all of
the GPU's memory. So pwc only uses machine code from these sources: the
directory that pwc writes, if it belongs to you or root and only they and its
group can write it; layers (PWC_CACHE_PATH) that only you and root can write;
artifacts that are signed with a key on this list, or of --trust-key; and
directories, repositories and artifacts on this list. Programs for the host are
verified when they are loaded, and need no trust.

The list is the file PWC_CACHE_TRUST (default: pwc/trust in the user's
configuration directory). Other users must not be able to write it.`,
		Example: `  pwc cache trust add --key cosign.pub
  pwc cache trust list
  pwc cache trust remove /opt/pwc`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q of pwc cache trust", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.trustAdd(), a.trustList(), a.trustRemove())
	return cmd
}

// changeTrust reads the trust file, calls change and writes the file.
func changeTrust(change func(t *cache.Trust) error) error {
	name, err := cache.TrustFile()
	if err != nil {
		return err
	}
	t, err := cache.ReadTrust(name)
	if err != nil {
		return err
	}
	if err := change(t); err != nil {
		return err
	}
	return cache.WriteTrust(name, t)
}

func (a *app) trustAdd() *cobra.Command {
	var keys, dirs, repositories, artifacts []string
	cmd := &cobra.Command{
		Use:   "add",
		Short: "trust a signer's key, a directory, a repository or an artifact",
		Example: `  pwc cache trust add --key cosign.pub
  pwc cache trust add --dir /opt/pwc
  pwc cache trust add --repository registry.example/models/llama
  pwc cache trust add --artifact sha256:…`,
		Args: none,
		RunE: func(*cobra.Command, []string) error {
			if len(keys)+len(dirs)+len(repositories)+len(artifacts) == 0 {
				return usagef("nothing to trust: give --key, --dir, --repository or --artifact")
			}
			err := changeTrust(func(t *cache.Trust) error {
				for _, name := range keys {
					k, err := cache.ReadPublicKey(name)
					if err != nil {
						return fmt.Errorf("--key: %w", err)
					}
					t.AddKey(k)
				}
				for _, dir := range dirs {
					abs, err := filepath.Abs(dir)
					if err == nil {
						err = t.AddDir(abs)
					}
					if err != nil {
						return usagef("--dir: %w", err)
					}
				}
				for _, name := range repositories {
					if err := t.AddRepository(name); err != nil {
						return usagef("--repository: %w", err)
					}
				}
				for _, text := range artifacts {
					d, err := cache.ParseDigest(text)
					if err != nil {
						return usagef("--artifact: %w", err)
					}
					t.AddArtifact(d)
				}
				return nil
			})
			if err != nil {
				return err
			}
			return a.printTrust()
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&keys, "key", nil, "`FILE` with a public key in PEM, ECDSA P-256 or Ed25519: artifacts that are signed with it are trusted")
	f.StringArrayVar(&dirs, "dir", nil, "`DIR`ectory of a cache, also if other users can write it")
	f.StringSliceVar(&repositories, "repository", nil, "`REGISTRY/REPO`: all artifacts of the repository, and of repositories below it")
	f.StringSliceVar(&artifacts, "artifact", nil, "`DIGEST` of an artifact, as push and pull print it")
	return cmd
}

func (a *app) trustList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list trusted keys, directories, repositories and artifacts",
		Example: "  pwc cache trust list\n  pwc cache trust list --json",
		Args:    none,
		RunE:    func(*cobra.Command, []string) error { return a.printTrust() },
	}
}

// trustedKey is a key of `cache trust list`.
type trustedKey struct {
	ID        string `json:"id"` // SHA-256 of the key in DER
	Algorithm string `json:"algorithm"`
}

func (a *app) printTrust() error {
	name, err := cache.TrustFile()
	if err != nil {
		return err
	}
	t, err := cache.ReadTrust(name)
	if err != nil {
		return err
	}
	keys := make([]trustedKey, len(t.Keys))
	rows := table{head: []string{"kind", "what"}}
	for i, k := range t.Keys {
		keys[i] = trustedKey{k.ID(), k.Algorithm()}
		rows.add("key", k.ID()+" "+k.Algorithm())
	}
	for _, dir := range t.Dirs {
		rows.add("dir", dir)
	}
	for _, r := range t.Repositories {
		rows.add("repository", r)
	}
	artifacts := make([]string, len(t.Artifacts))
	for i, d := range t.Artifacts {
		artifacts[i] = d.String()
		rows.add("artifact", artifacts[i])
	}
	if a.json {
		return a.printJSON(map[string]any{"file": name, "keys": keys, "dirs": append([]string{}, t.Dirs...), "repositories": append([]string{}, t.Repositories...), "artifacts": artifacts})
	}
	switch {
	case len(rows.rows) > 0:
	case name == "":
		_, err := fmt.Fprintf(a.out, "there is no directory for a list: set %s\n", cache.EnvTrust)
		return err
	default:
		_, err := fmt.Fprintf(a.out, "the list in %s is empty\n", name)
		return err
	}
	return rows.write(a.out, "")
}

// minKeyDigits is the smallest number of digits that identify a key.
const minKeyDigits = 8

func (a *app) trustRemove() *cobra.Command {
	return &cobra.Command{
		Use:     "remove WHAT…",
		Aliases: []string{"rm"},
		Short:   "remove entries from the list of trusted sources",
		Long: `Remove keys, directories, repositories or artifacts from the list. WHAT is an entry as
pwc cache trust list prints it; the first 8 digits of a key are enough. Artifacts that
are already in the cache stay there: pwc cache clear removes them.`,
		Example: "  pwc cache trust remove /opt/pwc\n  pwc cache trust remove 3f9a02bc",
		Args:    atLeastOne("entries of pwc cache trust list"),
		RunE: func(_ *cobra.Command, args []string) error {
			err := changeTrust(func(t *cache.Trust) error {
				for _, what := range args {
					before := len(t.Keys) + len(t.Dirs) + len(t.Repositories) + len(t.Artifacts)
					t.Keys = slices.DeleteFunc(t.Keys, func(k cache.PublicKey) bool {
						return len(what) >= minKeyDigits && strings.HasPrefix(k.ID(), what)
					})
					t.Dirs = slices.DeleteFunc(t.Dirs, func(s string) bool { return s == what })
					t.Repositories = slices.DeleteFunc(t.Repositories, func(s string) bool { return s == what })
					t.Artifacts = slices.DeleteFunc(t.Artifacts, func(d cache.Digest) bool { return d.String() == what })
					if len(t.Keys)+len(t.Dirs)+len(t.Repositories)+len(t.Artifacts) == before {
						return fmt.Errorf("%s is not on the list; pwc cache trust list prints the list", what)
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			return a.printTrust()
		},
	}
}
