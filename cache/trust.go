package cache

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"pwc/internal/openfile"
	"pwc/internal/termsafe"
)

// NeedsTrust reports whether programs for a target are machine code. Nothing can be proven about
// machine code, so its source decides whether it runs. Programs for the host are vector code.
// Loading proves that they stay in their buffers, so they need no trust.
func NeedsTrust(target string) bool { return target != "host" }

// Trust lists sources whose machine code is used. Two sources need not be listed: the directory that a
// store writes, if it belongs to the user or root and only they and its group can write it, and layers
// that only the user and root can write. The zero value lists no sources.
type Trust struct {
	Keys         []PublicKey // artifacts with a signature by one of them
	Dirs         []string    // cache directories, absolute, that others may be able to write
	Repositories []string    // of registries: "registry.example/team/model", or "registry.example/team" for all below it
	Artifacts    []Digest    // of manifests
}

// UntrustedError: the cache has machine code, or a tuning record, which selects machine code, from an
// untrusted source. For a look-up it is a miss.
type UntrustedError struct {
	Target string // "cuda:sm_90"; of a tuning record: the name of the GPU
	Source string // the directory or artifact that has it
	Reason string
	Fix    string // the command that makes it trusted, or two to choose from
}

// Error names the source, the reason and the command.
func (e *UntrustedError) Error() string {
	return fmt.Sprintf("cache: code or a tuning record for %s in %s is not trusted: %s; if it is yours, run: %s", termsafe.Clip(e.Target, 80), e.Source, e.Reason, e.Fix)
}

// TrustsDir reports whether the list has a directory.
func (t *Trust) TrustsDir(dir string) bool {
	return t != nil && slices.Contains(t.Dirs, dir)
}

// TrustsArtifact reports whether the list has an artifact, by its digest or by its repository.
// repository is "" for a layout.
func (t *Trust) TrustsArtifact(repository string, d Digest) bool {
	if t == nil {
		return false
	}
	return slices.Contains(t.Artifacts, d) || repository != "" && slices.ContainsFunc(t.Repositories, func(r string) bool {
		return repository == r || strings.HasPrefix(repository, r+"/")
	})
}

// PublicKey verifies signatures: ECDSA over P-256 with SHA-256, as cosign's key pairs, or
// Ed25519.
type PublicKey struct {
	der string // SubjectPublicKeyInfo; a string, so keys are comparable
}

// key returns the key as a type of the standard library.
func (k PublicKey) key() (crypto.PublicKey, error) {
	key, err := x509.ParsePKIXPublicKey([]byte(k.der))
	if err != nil {
		return nil, fmt.Errorf("not a public key: %w", err)
	}
	return key, checkKey(key)
}

// checkKey returns an error for unsupported kinds of public keys.
func checkKey(key crypto.PublicKey) error {
	switch key := key.(type) {
	case ed25519.PublicKey:
		return nil
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() {
			return nil
		}
		return fmt.Errorf("an ECDSA key over %s; it must be over P-256", key.Curve.Params().Name)
	}
	return fmt.Errorf("a key of type %T; it must be ECDSA over P-256 or Ed25519", key)
}

// maxPEM bounds the bytes of a key file; typical ones have some hundred.
const maxPEM = 64 << 10

// ParsePublicKey parses a public key in PEM ("PUBLIC KEY"), as cosign.pub is.
func ParsePublicKey(text []byte) (PublicKey, error) {
	b, rest := pem.Decode(text)
	switch {
	case b == nil:
		return PublicKey{}, errors.New("not PEM; it must begin with -----BEGIN PUBLIC KEY-----")
	case b.Type != "PUBLIC KEY":
		return PublicKey{}, fmt.Errorf("PEM of type %q; it must be PUBLIC KEY", termsafe.Clip(b.Type, 80))
	case len(bytes.TrimSpace(rest)) > 0:
		return PublicKey{}, errors.New("text or another key after the first key; want one key in a file")
	}
	k := PublicKey{string(b.Bytes)}
	_, err := k.key()
	return k, err
}

// ReadPublicKey reads the key of a file; see [ParsePublicKey].
func ReadPublicKey(name string) (PublicKey, error) {
	text, err := openfile.Read(name, maxPEM)
	if err != nil {
		return PublicKey{}, err
	}
	k, err := ParsePublicKey(text)
	if err != nil {
		return PublicKey{}, fmt.Errorf("%s: %w", name, err)
	}
	return k, nil
}

// ID returns the SHA-256 of the key's SubjectPublicKeyInfo in DER, in hex.
func (k PublicKey) ID() string {
	sum := sha256.Sum256([]byte(k.der))
	return hex.EncodeToString(sum[:])
}

// Algorithm returns the kind of the key: "ECDSA P-256" or "Ed25519".
func (k PublicKey) Algorithm() string {
	if key, err := k.key(); err == nil {
		if _, ok := key.(ed25519.PublicKey); ok {
			return "Ed25519"
		}
	}
	return "ECDSA P-256"
}

// Verify reports whether the key signed a message: ECDSA signs its SHA-256, in ASN.1,
// Ed25519 the message itself.
func (k PublicKey) Verify(message, signature []byte) bool {
	key, err := k.key()
	if err != nil {
		return false
	}
	switch key := key.(type) {
	case ed25519.PublicKey:
		return ed25519.Verify(key, message, signature)
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(message)
		return ecdsa.VerifyASN1(key, sum[:], signature)
	}
	return false
}

// Signer signs with a private key.
type Signer struct {
	key crypto.Signer
	pub PublicKey
}

// ParseSigner parses an unencrypted private key in PKCS #8 PEM ("PRIVATE KEY"), as openssl
// genpkey makes: ECDSA over P-256 or Ed25519. Keys of cosign generate-key-pair are encrypted in
// cosign's own format: sign with cosign then.
func ParseSigner(text []byte) (*Signer, error) {
	b, _ := pem.Decode(text)
	switch {
	case b == nil:
		return nil, errors.New("not PEM; it must begin with -----BEGIN PRIVATE KEY-----")
	case strings.HasPrefix(b.Type, "ENCRYPTED"):
		return nil, fmt.Errorf("PEM of type %q, which is encrypted; sign with cosign, or with a key of openssl genpkey -algorithm ed25519", termsafe.Clip(b.Type, 80))
	case b.Type != "PRIVATE KEY":
		return nil, fmt.Errorf("PEM of type %q; it must be PRIVATE KEY (PKCS #8)", termsafe.Clip(b.Type, 80))
	}
	key, err := x509.ParsePKCS8PrivateKey(b.Bytes)
	if err != nil {
		return nil, fmt.Errorf("not a private key: %w", err)
	}
	s, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T does not sign", key)
	}
	if err := checkKey(s.Public()); err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(s.Public())
	if err != nil {
		return nil, err
	}
	return &Signer{s, PublicKey{string(der)}}, nil
}

// ReadSigner reads the key of a file; see [ParseSigner].
func ReadSigner(name string) (*Signer, error) {
	text, err := openfile.Read(name, maxPEM)
	if err != nil {
		return nil, err
	}
	s, err := ParseSigner(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// Public returns the key that verifies signatures of s.
func (s *Signer) Public() PublicKey { return s.pub }

// Sign signs a message for [PublicKey.Verify].
func (s *Signer) Sign(message []byte) ([]byte, error) {
	if s.key == nil {
		return nil, errors.New("a signer without a key")
	}
	if _, ok := s.key.(ed25519.PrivateKey); ok {
		return s.key.Sign(rand.Reader, message, crypto.Hash(0))
	}
	sum := sha256.Sum256(message)
	return s.key.Sign(rand.Reader, sum[:], crypto.SHA256)
}

// The text of a trust file: a header, then one line for each member, sorted by kind. A reader
// accepts any order and repetition, and skips empty lines and lines that begin with #.
const (
	trustHeader = "pwc cache trust 1"
	maxTrust    = 1 << 20
)

// Encode returns the text of a trust file.
func (t *Trust) Encode() []byte {
	var w textWriter
	w.line(trustHeader)
	for _, k := range t.Keys {
		w.line("key", base64.StdEncoding.EncodeToString([]byte(k.der)))
	}
	for _, d := range t.Dirs {
		w.line("dir", strconv.Quote(d))
	}
	for _, r := range t.Repositories {
		w.line("repository", strconv.Quote(r))
	}
	for _, d := range t.Artifacts {
		w.line("artifact", d.String())
	}
	return w.buf
}

// ParseTrust parses the text of a trust file. An unknown line is an error.
func ParseTrust(text []byte) (*Trust, error) {
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if lines[0] != trustHeader {
		return nil, fmt.Errorf("does not begin with %q", trustHeader)
	}
	t := &Trust{}
	for n, line := range lines[1:] {
		if line == "" || line[0] == '#' {
			continue
		}
		l := &textLine{}
		l.word, l.rest, _ = strings.Cut(line, " ")
		switch l.word {
		case "key":
			der, err := base64.StdEncoding.Strict().DecodeString(l.next())
			k := PublicKey{string(der)}
			if err == nil {
				_, err = k.key()
			}
			if err != nil {
				l.fail("key: %w", err)
			}
			t.AddKey(k)
		case "dir":
			if err := t.AddDir(l.quoted()); err != nil {
				l.fail("dir: %w", err)
			}
		case "repository":
			if err := t.AddRepository(l.quoted()); err != nil {
				l.fail("repository: %w", err)
			}
		case "artifact":
			t.AddArtifact(l.digest())
		default:
			l.fail("unknown kind %q", termsafe.Clip(l.word, 80))
		}
		if l.err == nil && l.rest != "" {
			l.fail("%s: text after its value", l.word)
		}
		if l.err != nil {
			return nil, fmt.Errorf("line %d: %w", n+2, l.err)
		}
	}
	return t, nil
}

func add[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(slices.Clip(list), v)
}

// AddKey adds a key if it is new.
func (t *Trust) AddKey(k PublicKey) { t.Keys = add(t.Keys, k) }

// AddDir adds a directory if it is new. It must be an absolute path as filepath.Clean returns it.
func (t *Trust) AddDir(dir string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return fmt.Errorf("%q is no absolute path in its shortest form", termsafe.Clip(dir, 80))
	}
	t.Dirs = add(t.Dirs, dir)
	return nil
}

// AddRepository adds a repository of a registry, or a prefix of repositories, if it is new. It
// has no tag, digest or scheme.
func (t *Trust) AddRepository(name string) error {
	registry, rest, _ := strings.Cut(name, "/")
	if registry == "" || path.Clean("/"+name) != "/"+name || strings.ContainsAny(name, "@ \t\n\\") || strings.Contains(name, "://") || strings.Contains(rest, ":") {
		return fmt.Errorf("%q is not REGISTRY/REPOSITORY without a tag or digest", termsafe.Clip(name, 80))
	}
	t.Repositories = add(t.Repositories, name)
	return nil
}

// AddArtifact adds the digest of an artifact's manifest if it is new.
func (t *Trust) AddArtifact(d Digest) { t.Artifacts = add(t.Artifacts, d) }

// EnvTrust is the environment variable with the trust file of a command line.
const EnvTrust = "PWC_CACHE_TRUST"

// TrustFile returns PWC_CACHE_TRUST, otherwise the file pwc/trust in the user's configuration
// directory; "" if there is no such directory.
func TrustFile() (string, error) {
	if name := os.Getenv(EnvTrust); name != "" {
		return filepath.Abs(name)
	}
	base, err := os.UserConfigDir()
	if err != nil {
		return "", nil
	}
	return filepath.Join(base, "pwc", "trust"), nil
}

// ReadTrust reads a trust file. A missing file lists nothing. A file that others than the user
// and root can write is an error.
func ReadTrust(name string) (*Trust, error) {
	if name == "" {
		return &Trust{}, nil
	}
	f, info, err := openfile.Regular(name)
	if errors.Is(err, fs.ErrNotExist) {
		return &Trust{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if why := foreign(info, othersWrite|groupWrites, true); why != "" {
		return nil, fmt.Errorf("%s says whose code is trusted, and %s; make it your file that only you can write: chown and chmod go-w", name, why)
	}
	text, err := openfile.ReadAll(f, maxTrust)
	if err != nil {
		return nil, err
	}
	t, err := ParseTrust(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

// WriteTrust replaces a trust file as a whole.
func WriteTrust(name string, t *Trust) error {
	if name == "" {
		return fmt.Errorf("cache: no directory for settings; set %s", EnvTrust)
	}
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if t == nil {
		t = &Trust{}
	}
	f, err := os.CreateTemp(dir, ".trust-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(t.Encode())
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// Bits of a mode that let others than the owner write.
const (
	groupWrites fs.FileMode = 0o020
	othersWrite fs.FileMode = 0o002
)

// foreign returns why another user may have written a file or directory, or "". If owned, the
// file must belong to the user of the process or to root. Its mode must have no bit of mask.
func foreign(info fs.FileInfo, mask fs.FileMode, owned bool) string {
	if uid, known := owner(info); owned && known && uid != 0 && uid != os.Geteuid() {
		return fmt.Sprintf("it belongs to user %d, not to user %d or root", uid, os.Geteuid())
	}
	if m := info.Mode().Perm() & mask; modesMean && m != 0 {
		who := "others"
		if m&othersWrite == 0 {
			who = "its group"
		}
		return fmt.Sprintf("%s can write it (mode %04o)", who, info.Mode().Perm())
	}
	return ""
}

// shellWord quotes a word for a shell.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:@=+,", r)
	}
	if strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// vouch returns nil if machine code of an entry, or a tuning record, in an opened root may be used.
// info and name describe the manifest or record.
//
// A layer must belong to the user or to root and be writable by nobody else, down to the
// manifest, which names its blob by hash. The directory to write must belong to the user or to
// root, but its group may write in it, because the user chose it.
func (s *Store) vouch(d root, t *tree, target, name string, info fs.FileInfo) error {
	if !NeedsTrust(target) || s.trust.TrustsDir(d.dir) {
		return nil
	}
	mask, owned := othersWrite, false
	if d.layer {
		mask, owned = othersWrite|groupWrites, true
	}
	why := ""
	if d.layer && !modesMean {
		why = "this system does not say who can write it"
	}
	if why == "" {
		if why = foreign(t.base, mask, true); why != "" {
			why = d.dir + ": " + why
		}
	}
	for dir := path.Dir(name); why == ""; dir = path.Dir(dir) {
		info, err := t.Lstat(dir)
		if err != nil {
			why = fmt.Sprintf("%s: %v", t.file(dir), reason(err))
		} else if why = foreign(info, mask, owned); why != "" {
			why = t.file(dir) + ": " + why
		}
		if dir == "." {
			break
		}
	}
	if why == "" {
		if why = foreign(info, mask, owned); why != "" {
			why = t.file(name) + ": " + why
		}
	}
	if why == "" {
		return nil
	}
	return &UntrustedError{Target: target, Source: d.dir, Reason: why, Fix: "pwc cache trust add --dir " + shellWord(d.dir)}
}

// unusable counts damage and untrusted files at each encounter. It logs damage at each encounter, and
// untrusted machine code or tuning records once for each directory.
func (s *Store) unusable(d root, err error) {
	if _, untrusted := errors.AsType[*UntrustedError](err); !untrusted {
		s.damaged(err)
		return
	}
	s.count.untrusted.Add(1)
	s.mu.Lock()
	said := s.unvouched[d.dir]
	s.unvouched[d.dir] = true
	s.mu.Unlock()
	if !said {
		s.log.Warn("cache: machine code or a tuning record that is not trusted counts as a miss", "dir", d.dir, "reason", err)
	}
}
