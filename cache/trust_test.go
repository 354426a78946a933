package cache

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// gpuKey is the key of machine code.
func gpuKey() Key {
	k := testKey(0)
	k.Target = "cuda:sm_90"
	return k
}

func untrusted(err error) *UntrustedError {
	u, _ := errors.AsType[*UntrustedError](err)
	return u
}

// machineCode returns a directory with an entry and a tuning record for a GPU, and an
// entry for the host, all of them writable by their owner alone.
func machineCode(t *testing.T) (dir, manifest string, tuned TuningKey) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "cache")
	s, _ := logged(dir)
	tuned = TuningKey{Device: "NVIDIA H200", Library: "cublaslt 130100", Problem: "p"}
	for _, err := range []error{
		s.Put(t.Context(), gpuKey(), []byte("machine code"), testProvenance),
		s.Put(t.Context(), testKey(1), testBlob(1), testProvenance),
		s.PutTuning(t.Context(), Tuning{TuningKey: tuned, Choice: "c", Created: time.Now()}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	// With any umask of the test.
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil {
			info, _ := e.Info()
			err = os.Chmod(name, info.Mode().Perm()&^0o022)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	chmod(t, dir, 0o755)
	return dir, filepath.Join(dir, "v1", filepath.FromSlash(keyFile(gpuKey().id()))), tuned
}

func chmod(t *testing.T, name string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

// TestMachineCodeNeedsTrust changes the mode of each parent directory of an entry, and of its
// manifest. If others can write it, or in a layer its group, machine code is a miss, with the reason
// and the command to run. Programs for the host are still found: they are validated when they are
// loaded.
func TestMachineCodeNeedsTrust(t *testing.T) {
	if !modesMean {
		t.Skip("modes say nothing here")
	}
	for _, layer := range []bool{true, false} {
		for what, test := range map[string]struct {
			of      func(dir, manifest string) string
			mode    os.FileMode
			trusted bool
		}{
			"as it is made":            {func(dir, _ string) string { return dir }, 0o755, true},
			"private":                  {func(dir, _ string) string { return dir }, 0o700, true},
			"directory of a group":     {func(dir, _ string) string { return dir }, 0o775, !layer},
			"directory of all":         {func(dir, _ string) string { return dir }, 0o777, false},
			"sticky directory of all":  {func(dir, _ string) string { return dir }, 0o777 | os.ModeSticky, false},
			"version of all":           {func(dir, _ string) string { return dir + "/v1" }, 0o777, false},
			"version of a group":       {func(dir, _ string) string { return dir + "/v1" }, 0o770, !layer},
			"keys of all":              {func(_, m string) string { return filepath.Dir(filepath.Dir(m)) }, 0o707, false},
			"first digits of all":      {func(_, m string) string { return filepath.Dir(m) }, 0o777, false},
			"manifest of all":          {func(_, m string) string { return m }, 0o666, false},
			"manifest of a group":      {func(_, m string) string { return m }, 0o664, !layer},
			"blobs, which have hashes": {func(dir, _ string) string { return dir + "/v1/blobs" }, 0o777, true},
		} {
			dir, manifest, tuned := machineCode(t)
			chmod(t, test.of(dir, manifest), test.mode)
			s, j := logged(dir)
			if layer {
				s, j = logged("", dir)
			}
			_, ok, err := s.Get(t.Context(), gpuKey())
			u := untrusted(err)
			if ok != test.trusted || (u == nil) != test.trusted {
				t.Errorf("layer %v, %s: Get = %v, %v; want %v", layer, what, ok, err, test.trusted)
			}
			wantHit(t, s, 1)
			x, err := s.Explain(t.Context(), gpuKey())
			if err != nil || x[0].Hit != test.trusted || (len(x[0].Untrusted) == 0) != test.trusted || len(x[0].Damaged) > 0 {
				t.Errorf("layer %v, %s: Explain = %+v, %v", layer, what, x, err)
			}
			if !test.trusted {
				if u.Source != dir || u.Fix != "pwc cache trust add --dir "+dir || !strings.Contains(u.Error(), "can write it (mode") {
					t.Errorf("layer %v, %s: %v", layer, what, u)
				}
				s.Get(t.Context(), gpuKey())
				if text := j.Take(); strings.Count(text, "not trusted") != 2 || strings.Count(text, "\n") != 1 { // in the message and in its reason
					t.Errorf("layer %v, %s: messages:\n%s", layer, what, text)
				}
				if n := s.Stats(); n.Untrusted != 2 || n.Damaged != 0 {
					t.Errorf("layer %v, %s: %+v", layer, what, n)
				}
			}
			// A listed directory is trusted with any mode.
			o := Options{Dir: dir, Trust: &Trust{}}
			if layer {
				o = Options{Layers: []string{dir}, Trust: &Trust{}}
			}
			if err := o.Trust.AddDir(dir); err != nil {
				t.Fatal(err)
			}
			listed := New(o)
			if _, ok, err := listed.Get(t.Context(), gpuKey()); !ok || err != nil {
				t.Errorf("layer %v, %s, listed: %v, %v", layer, what, ok, err)
			}
			if _, ok := listed.Tuning(tuned); !ok {
				t.Errorf("layer %v, %s, listed: the tuning record is a miss", layer, what)
			}
		}
	}
}

// TestTuningNeedsTrust: tuning records, which select code of a library, are used only from
// directories whose machine code is trusted.
func TestTuningNeedsTrust(t *testing.T) {
	if !modesMean {
		t.Skip("modes say nothing here")
	}
	dir, _, tuned := machineCode(t)
	for _, trusted := range []bool{true, false} {
		if !trusted {
			chmod(t, dir, 0o777)
		}
		s, _ := logged("", dir)
		if _, ok := s.Tuning(tuned); ok != trusted {
			t.Errorf("Tuning = %v, want %v", ok, trusted)
		}
		if list, err := s.Tunings(t.Context()); err != nil || len(list) == 1 != trusted {
			t.Errorf("Tunings = %v, %v, want %v", list, err, trusted)
		}
	}
}

// TestForeignOwner changes the owner of directories and manifests to another user.
func TestForeignOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	for _, layer := range []bool{true, false} {
		for what, test := range map[string]struct {
			of      func(dir, manifest string) string
			trusted bool
		}{
			"directory": {func(dir, _ string) string { return dir }, false},
			"version":   {func(dir, _ string) string { return dir + "/v1" }, !layer},
			"manifest":  {func(_, m string) string { return m }, !layer}, // a colleague's, in a directory that is shared
		} {
			dir, manifest, _ := machineCode(t)
			if err := os.Chown(test.of(dir, manifest), 12345, -1); err != nil {
				t.Skip(err)
			}
			s, _ := logged(dir)
			if layer {
				s, _ = logged("", dir)
			}
			_, ok, err := s.Get(t.Context(), gpuKey())
			if ok != test.trusted || !ok && !strings.Contains(err.Error(), "belongs to user 12345") {
				t.Errorf("layer %v, %s: %v, %v; want %v", layer, what, ok, err, test.trusted)
			}
		}
	}
}

// Public keys and signatures of "the message", made by OpenSSL 3: ecparam -name
// prime256v1 and dgst -sha256 -sign, genpkey -algorithm ed25519 and pkeyutl -rawin.
const (
	ecdsaKey = `-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEp4SOAYildosyN6+CBJSt4aV1WFwf
Lxkr2FqjoLtWr5j+ffx5wf45Q0QI7D6U7Dedpez74V6w3Kd/mh81aiBeaQ==
-----END PUBLIC KEY-----
`
	ecdsaSignature = "MEUCIElHA3YPWcEnmh74JML/efoJeO3ltuizaE9yKCr+d/fzAiEAkvhM1LKv+c33I/X1v+LzhgPrLVcVDLOahYo2EbvPByk="
	ed25519Key     = `-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAPRONAyo8vBPte6TqNxLNUEHOh+6T2ZEwmuwSJN2/Z9Y=
-----END PUBLIC KEY-----
`
	ed25519Signature = "i8IrZHYRV//KAN2843pIGeVTbnwMMCIWTZxqHyb96jSj+4P+2mc2t/3oy0H0w11utZVx1JTdccYUAkA6vBKJBw=="
	p384Key          = `-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEq42RHAiDwaF2rcrJzS8u5Jq76vy5A9mm
MexLVFUQD+cNdxoNjr3tmdKNNxqCu0qald3n1dx9bQ3J1W7a34aHUNFmRtiDNSHd
BSxvz+MVIuU6Ia8kkZFY2wlN6H98ET13
-----END PUBLIC KEY-----
`
)

func mustKey(t testing.TB, text string) PublicKey {
	t.Helper()
	k, err := ParsePublicKey([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestSignatures(t *testing.T) {
	for name, test := range map[string]struct{ key, signature string }{
		"ECDSA":   {ecdsaKey, ecdsaSignature},
		"Ed25519": {ed25519Key, ed25519Signature},
	} {
		k := mustKey(t, test.key)
		sig, err := base64.StdEncoding.DecodeString(test.signature)
		if err != nil {
			t.Fatal(err)
		}
		if !k.Verify([]byte("the message"), sig) {
			t.Errorf("%s: a right signature is refused", name)
		}
		if k.Verify([]byte("another message"), sig) || k.Verify([]byte("the message"), nil) || (PublicKey{}).Verify([]byte("the message"), sig) {
			t.Errorf("%s: a wrong one is taken", name)
		}
		for i := range sig {
			bad := bytes.Clone(sig)
			bad[i] ^= 1
			if k.Verify([]byte("the message"), bad) {
				t.Errorf("%s: a signature with a flipped bit in byte %d is taken", name, i)
			}
		}
	}
	if mustKey(t, ecdsaKey).ID() == mustKey(t, ed25519Key).ID() {
		t.Error("two keys have one id")
	}
}

func TestParsePublicKeyRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "not PEM",
		p384Key:               "over P-256",
		ecdsaKey + ed25519Key: "want one key",
		strings.ReplaceAll(ecdsaKey, "PUBLIC", "PRIVATE"):                      "must be PUBLIC KEY",
		"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n":         "not a public key",
		strings.ReplaceAll(ecdsaKey, "PUBLIC KEY", "ENCRYPTED COSIGN SECRETS"): "must be PUBLIC KEY",
	} {
		if _, err := ParsePublicKey([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// pkcs8 returns a private key as openssl genpkey writes it.
func pkcs8(t testing.TB, key crypto.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func TestSign(t *testing.T) {
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []crypto.PrivateKey{ec, ed} {
		s, err := ParseSigner(pkcs8(t, key))
		if err != nil {
			t.Fatal(err)
		}
		sig, err := s.Sign([]byte("x"))
		if err != nil || !s.Public().Verify([]byte("x"), sig) || s.Public().Verify([]byte("y"), sig) {
			t.Errorf("%T: %v", key, err)
		}
	}
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"x":                    "not PEM",
		string(pkcs8(t, p521)): "over P-256",
		ecdsaKey:               "must be PRIVATE KEY",
		"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n": "sign with cosign",
	} {
		if _, err := ParseSigner([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}

func TestTrustFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "made", "trust")
	if got, err := ReadTrust(name); err != nil || len(got.Encode()) != len(trustHeader)+1 {
		t.Errorf("one that is not there: %+v, %v", got, err)
	}
	want := &Trust{}
	want.AddKey(mustKey(t, ecdsaKey))
	want.AddKey(mustKey(t, ed25519Key))
	want.AddKey(mustKey(t, ecdsaKey))
	for _, err := range []error{want.AddDir("/opt/pwc \"cache\""), want.AddRepository("registry.example:5000/team/llama"), want.AddRepository("registry.example")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want.AddArtifact(DigestOf([]byte("manifest")))
	if err := WriteTrust(name, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadTrust(name)
	if err != nil || !bytes.Equal(got.Encode(), want.Encode()) || len(got.Keys) != 2 {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if modesMean {
		for _, mode := range []os.FileMode{0o622, 0o602, 0o620} {
			chmod(t, name, mode)
			if _, err := ReadTrust(name); err == nil || !strings.Contains(err.Error(), "can write it") {
				t.Errorf("mode %o: %v", mode, err)
			}
		}
		t.Setenv(EnvTrust, name)
		if _, _, err := FromEnv(); err == nil {
			t.Error("a trust file that others can write is used")
		}
	}
}

func TestParseTrustRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                              "does not begin",
		"pwc cache trust 2\n":                           "does not begin",
		trustHeader + "\nkey AAAA\n":                    "line 2: key",
		trustHeader + "\n\nkey\n":                       "line 3: key",
		trustHeader + "\ndir \"relative\"\n":            "no absolute path",
		trustHeader + "\ndir \"/a/../b\"\n":             "shortest form",
		trustHeader + "\ndir /a\n":                      "not a quoted string",
		trustHeader + "\nrepository \"oci://x/y\"\n":    "without a tag",
		trustHeader + "\nrepository \"x/y:tag\"\n":      "without a tag",
		trustHeader + "\nrepository \"x/y@sha256:a\"\n": "without a tag",
		trustHeader + "\nrepository \"x/../y\"\n":       "REGISTRY",
		trustHeader + "\nrepository \"\"\n":             "REGISTRY",
		trustHeader + "\nartifact sha256:00\n":          "artifact",
		trustHeader + "\neverything yes\n":              "unknown kind",
		trustHeader + "\ndir \"/a\" \"/b\"\n":           "text after its value",
	} {
		if _, err := ParseTrust([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestTrustsArtifact(t *testing.T) {
	d := DigestOf([]byte("x"))
	trust := &Trust{Repositories: []string{"registry.example/team"}, Artifacts: []Digest{d}}
	for repository, want := range map[string]bool{"registry.example/team": true, "registry.example/team/llama": true, "registry.example/teams": false,
		"registry.example": false, "evil.example/registry.example/team": false, "": false} {
		if trust.TrustsArtifact(repository, DigestOf(nil)) != want || !trust.TrustsArtifact(repository, d) {
			t.Errorf("%q: want %v", repository, want)
		}
	}
	if (*Trust)(nil).TrustsArtifact("registry.example", d) || (*Trust)(nil).TrustsDir("/") {
		t.Error("a nil Trust trusts an artifact or a directory")
	}
}

// FuzzTrust: a trust file that was parsed, encoded and parsed again gives the same value.
func FuzzTrust(f *testing.F) {
	t := &Trust{Dirs: []string{"/a"}, Repositories: []string{"r.example/x"}, Artifacts: []Digest{DigestOf(nil)}}
	t.AddKey(mustKey(f, ed25519Key))
	f.Add(t.Encode())
	f.Add([]byte(trustHeader + "\n# a comment\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		trust, err := ParseTrust(text)
		if err != nil {
			return
		}
		again, err := ParseTrust(trust.Encode())
		if err != nil || !slices.Equal(again.Keys, trust.Keys) || !slices.Equal(again.Dirs, trust.Dirs) || !slices.Equal(again.Repositories, trust.Repositories) || !slices.Equal(again.Artifacts, trust.Artifacts) {
			t.Fatalf("%+v, %v; was %+v", again, err, trust)
		}
	})
}
