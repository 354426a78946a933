package oci

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"pwc/cache"
	"pwc/internal/testkit"
)

const gpu = "cuda:sm_90"

// gpuStore returns a store with the module "gpu" of two entries of machine code.
func gpuStore(t testing.TB) *cache.Store {
	t.Helper()
	s, _ := newStore(t)
	fill(t, s, "gpu", gpu, 0, 2)
	return s
}

func gpuOptions() Options {
	o := plain()
	o.Machine = Machine{Targets: []string{"host", gpu}, Driver: "13.0"}
	return o
}

// keys returns one key of each supported kind.
func keys(t testing.TB) map[string]crypto.Signer {
	t.Helper()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]crypto.Signer{"ECDSA": ec, "Ed25519": ed}
}

func signer(t testing.TB, key crypto.Signer) *cache.Signer {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	s, err := cache.ParseSigner(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func trustKey(t testing.TB, key crypto.Signer) *cache.Trust {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	k, err := cache.ParsePublicKey(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	trust := &cache.Trust{}
	trust.AddKey(k)
	return trust
}

func wantUntrusted(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	var u *cache.UntrustedError
	if !errors.As(err, &u) {
		t.Errorf("%s: %v; want an UntrustedError", what, err)
		return
	}
	for _, p := range append(parts, "pwc cache trust add") {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%s: error %q lacks %q", what, err, p)
		}
	}
}

// TestSignedArtifacts signs artifacts in a push and an export. A reader takes them if it trusts the key, lists their
// digest or accepts them, and refuses them otherwise.
func TestSignedArtifacts(t *testing.T) {
	for name, key := range keys(t) {
		from, srv, dir := gpuStore(t), newServer(t), t.TempDir()
		o := gpuOptions()
		o.Signer = signer(t, key)
		sent, err := Push(t.Context(), from, nil, srv.ref("v1"), o)
		if err != nil || sent.SignedBy != o.Signer.Public().ID() {
			t.Fatalf("%s: %+v, %v", name, sent, err)
		}
		srv.counts()
		if again, err := Push(t.Context(), from, nil, srv.ref("v1"), o); err != nil || again.Digest != sent.Digest || srv.counts()["PUT manifests"] != 0 {
			t.Errorf("%s: a second push sends something: %+v, %v", name, again, err)
		}
		tar, layout := filepath.Join(dir, "a.tar"), filepath.Join(dir, "layout")
		for range 2 {
			for _, at := range []string{tar, layout} {
				if _, err := Export(t.Context(), from, nil, at, o); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
		}
		take := map[string]func(o Options) (*Received, error){
			"tag": func(o Options) (*Received, error) { s, _ := newStore(t); return Pull(t.Context(), s, srv.ref("v1"), o) },
			"digest": func(o Options) (*Received, error) {
				s, _ := newStore(t)
				return Pull(t.Context(), s, srv.at(sent.Digest), o)
			},
			"tar":    func(o Options) (*Received, error) { s, _ := newStore(t); return Import(t.Context(), s, tar, o) },
			"layout": func(o Options) (*Received, error) { s, _ := newStore(t); return Import(t.Context(), s, layout, o) },
		}
		for what, pull := range take {
			what = name + ", " + what
			o := gpuOptions()
			_, err := pull(o)
			wantUntrusted(t, what+", nothing trusted", err, "no key is trusted")
			o.Trust = trustKey(t, keys(t)[name])
			_, err = pull(o)
			wantUntrusted(t, what+", another key", err, "none of its 1 signatures is by a trusted key")
			o.Accept = func(cache.Digest) error { return errors.New("not recorded") }
			if _, err := pull(o); err == nil || !strings.Contains(err.Error(), "not recorded") {
				t.Errorf("%s, not accepted: %v", what, err)
			}
			var accepted cache.Digest
			o.Accept = func(d cache.Digest) error { accepted = d; return nil }
			if r, err := pull(o); err != nil || r.Trusted != "accepted" || r.Entries != 2 || accepted != sent.Digest {
				t.Errorf("%s, accepted: %+v, %v", what, r, err)
			}
			o.Accept, o.Trust = nil, trustKey(t, key)
			if r, err := pull(o); err != nil || r.Trusted != "signed by key "+o.Trust.Keys[0].ID()[:16] || r.Entries != 2 {
				t.Errorf("%s: %+v, %v", what, r, err)
			}
			o.Trust = &cache.Trust{Artifacts: []cache.Digest{sent.Digest}}
			if r, err := pull(o); err != nil || r.Trusted != "listed" {
				t.Errorf("%s, listed: %+v, %v", what, r, err)
			}
		}
	}
}

// TestSignaturesAddUp has an artifact with two signatures: each of the two keys is enough.
func TestSignaturesAddUp(t *testing.T) {
	from, srv := gpuStore(t), newServer(t)
	for _, key := range keys(t) {
		o := gpuOptions()
		o.Signer = signer(t, key)
		if _, err := Push(t.Context(), from, nil, srv.ref("v1"), o); err != nil {
			t.Fatal(err)
		}
		defer func() {
			to, _ := newStore(t)
			o := gpuOptions()
			o.Trust = trustKey(t, key)
			if _, err := Pull(t.Context(), to, srv.ref("v1"), o); err != nil {
				t.Errorf("%T: %v", key, err)
			}
		}()
	}
}

// TestUnsigned pushes without a key, and takes modules that need no trust.
func TestUnsigned(t *testing.T) {
	from, srv := gpuStore(t), newServer(t)
	fill(t, from, "toy", "host", 0, 3)
	mustPush(t, from, srv.ref("v1"))
	o := gpuOptions()
	o.Trust = trustKey(t, keys(t)["ECDSA"])
	to, _ := newStore(t)
	r, err := Pull(t.Context(), to, srv.ref("v1"), o)
	if err != nil || len(r.Modules) != 1 || len(r.Refused) != 1 || r.Trusted != "" || !strings.Contains(r.Refused[0].Reason, "it is not signed; if it is yours, run: pwc cache trust add --key") {
		t.Errorf("%+v, %v; want only the module for the host", r, err)
	}
	wantWhole(t, to, 3, 1)
}

// TestUntrustedRemote looks up machine code in a remote: a miss with one warning, or, if frozen, an error that names
// the command. With a signature it is a hit.
func TestUntrustedRemote(t *testing.T) {
	from, srv, key := gpuStore(t), newServer(t), keys(t)["ECDSA"]
	mustPush(t, from, srv.ref("v1"))
	look := func(trust *cache.Trust, frozen bool) (hit bool, said string, err error) {
		j := &testkit.Log{}
		o := gpuOptions()
		o.Trust, o.Logger, o.Accept = trust, j.Logger(), func(cache.Digest) error { return nil } // only Pull and Import call it
		r, err := NewRemote("oci+http://"+srv.ref("v1"), o)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s, _ := newStore(t)
		for i := range 2 {
			_, hit, err = Layer(s, r, frozen).Get(t.Context(), testKey(i, gpu))
		}
		if r.Err() != nil {
			t.Error(r.Err())
		}
		return hit, j.Take(), err
	}
	if hit, said, err := look(trustKey(t, key), false); hit || err != nil || strings.Count(said, "\n") != 1 || !strings.Contains(said, "it is not signed") {
		t.Errorf("%v, %v, messages:\n%s", hit, err, said)
	}
	hit, _, err := look(trustKey(t, key), true)
	if hit {
		t.Error("a hit")
	}
	wantUntrusted(t, "frozen", err, "it is not signed")
	o := gpuOptions()
	o.Signer = signer(t, key)
	if _, err := Push(t.Context(), from, nil, srv.ref("v1"), o); err != nil {
		t.Fatal(err)
	}
	if hit, said, err := look(trustKey(t, key), true); !hit || err != nil || said != "" {
		t.Errorf("signed: %v, %v, messages:\n%s", hit, err, said)
	}
}

// cosigned is a signature as cosign writes it, with the changes of a test.
type cosigned struct {
	payload, manifest func(text string) string
	key               crypto.Signer
	signed            string // signed in place of the payload
}

// TestCosignSignatures adds signatures in cosign's format to an artifact. The test makes them from cosign's
// specification, not with package oci. Signatures that say anything other than "this key signed this digest" are
// refused.
func TestCosignSignatures(t *testing.T) {
	same := func(s string) string { return s }
	swap := func(old, new string) func(string) string {
		return func(s string) string { return strings.Replace(s, old, new, 1) }
	}
	key, other := keys(t)["ECDSA"], keys(t)["ECDSA"]
	for name, test := range map[string]struct {
		cosigned
		want string // "": it is taken
	}{
		"as it is":         {cosigned{same, same, key, ""}, ""},
		"another name":     {cosigned{swap("registry.example", "elsewhere.example"), same, key, ""}, ""},
		"claims":           {cosigned{swap("null", `{"creator":"x"}`), same, key, ""}, ""},
		"another key":      {cosigned{same, same, other, ""}, "none of its 1"},
		"another text":     {cosigned{same, same, key, "x"}, "none of its 1"},
		"another digest":   {cosigned{swap("manifest-digest\":\"sha256:", "manifest-digest\":\"sha256:00"), same, key, ""}, "none of its 1"},
		"another type":     {cosigned{swap("cosign container", "some other"), same, key, ""}, "none of its 1"},
		"no type":          {cosigned{swap(`"type"`, `"typo"`), same, key, ""}, "none of its 1"},
		"a key's case":     {cosigned{swap("docker-manifest-digest", "Docker-manifest-digest"), same, key, ""}, "none of its 1"},
		"a key twice":      {cosigned{swap(`"type"`, `"type":"x","type"`), same, key, ""}, "none of its 1"},
		"no JSON":          {cosigned{func(string) string { return "x" }, same, key, ""}, "none of its 1"},
		"another media":    {cosigned{same, swap("simplesigning", "complexsigning"), key, ""}, "it is not signed"},
		"no annotation":    {cosigned{same, swap("cosign/signature", "cosign/certificate"), key, ""}, "none of its 1"},
		"not base64":       {cosigned{same, swap(`cosign/signature":"`, `cosign/signature":"!`), key, ""}, "it is not signed"},
		"manifest's case":  {cosigned{same, swap(`"layers"`, `"Layers"`), key, ""}, `must be \"layers\"`},
		"manifest no JSON": {cosigned{same, func(string) string { return "[]" }, key, ""}, "not JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			from, dir := gpuStore(t), filepath.Join(t.TempDir(), "layout")
			sent, err := Export(t.Context(), from, nil, dir, Options{})
			if err != nil {
				t.Fatal(err)
			}
			test.write(t, dir, sent.Digest)
			o := gpuOptions()
			o.Trust = trustKey(t, key)
			to, _ := newStore(t)
			_, err = Import(t.Context(), to, dir, o)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), strings.ReplaceAll(test.want, `\"`, `"`))):
				t.Errorf("%v, want %q", err, test.want)
			case test.want != "":
				wantWhole(t, to, 0, 0)
			}
		})
	}
}

// TestSigningKeepsSignatures signs an artifact whose manifest of signatures has a layer with a certificate and a
// bundle, a layer of another type, and an annotation of its own. They stay as they are, and one layer is added.
func TestSigningKeepsSignatures(t *testing.T) {
	from, dir := gpuStore(t), filepath.Join(t.TempDir(), "layout")
	sent, err := Export(t.Context(), from, nil, dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	other := keys(t)["ECDSA"]
	c := cosigned{func(s string) string { return s }, func(s string) string {
		s = strings.Replace(s, `"annotations":{`, `"annotations":{"dev.sigstore.cosign/certificate":"PEM","dev.sigstore.cosign/bundle":"{\"Payload\":\"<&>\"}",`, 1)
		foreign := `{"mediaType":"application/vnd.dsse.envelope.v1+json","size":2,"digest":"` + digest.FromString("{}").String() + `","urls":["https://x.example"]}`
		return strings.TrimSuffix(s, "]}") + "," + foreign + `],"annotations":{"x.example/of":"the manifest"}}`
	}, other, ""}
	c.write(t, dir, sent.Digest)
	read := func() (m map[string]any) {
		t.Helper()
		l, err := openLayout(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		defer l.close()
		have, err := signatures(t.Context(), l, sent.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(have.manifest, &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	before := read()
	key := keys(t)["Ed25519"]
	o := gpuOptions()
	o.Signer = signer(t, key)
	if _, err := Export(t.Context(), from, nil, dir, o); err != nil {
		t.Fatal(err)
	}
	after := read()
	layers := after["layers"].([]any)
	if len(layers) != 3 {
		t.Fatalf("%d layers, want 3", len(layers))
	}
	after["layers"] = layers[:2]
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("other parts of the manifest (-before +after):\n%s", diff)
	}
	for _, k := range []crypto.Signer{other, key} {
		to, _ := newStore(t)
		o := gpuOptions()
		o.Trust = trustKey(t, k)
		if _, err := Import(t.Context(), to, dir, o); err != nil {
			t.Errorf("%T: %v", k, err)
		}
	}
}

func (c *cosigned) write(t *testing.T, dir string, of cache.Digest) {
	t.Helper()
	text := c.payload(fmt.Sprintf(`{"critical":{"identity":{"docker-reference":"registry.example/team/toy"},"image":{"docker-manifest-digest":"%s"},"type":"cosign container image signature"},"optional":null}`, of))
	signed := text
	if c.signed != "" {
		signed = c.signed
	}
	sum := sha256.Sum256([]byte(signed))
	sig, err := c.key.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	config := []byte(`{"architecture":"","created":"0001-01-01T00:00:00Z","history":[{"created":"0001-01-01T00:00:00Z"}],"os":"","rootfs":{"type":"layers","diff_ids":[]},"config":{}}`)
	manifest := []byte(c.manifest(fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",`+
		`"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":%d,"digest":"%s"},`+
		`"layers":[{"mediaType":"application/vnd.dev.cosign.simplesigning.v1+json","size":%d,"digest":"%s","annotations":{"dev.cosignproject.cosign/signature":"%s"}}]}`,
		len(config), digest.FromBytes(config), len(text), digest.FromString(text), base64.StdEncoding.EncodeToString(sig))))
	blob := func(data []byte) part {
		return part{ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(data), Size: int64(len(data))},
			func(context.Context) ([]byte, error) { return data, nil }}
	}
	a := &artifact{manifest: blob(manifest), parts: []part{blob(config), blob([]byte(text))}}
	if err := exportDir(t.Context(), a, dir, "sha256-"+of.String()[len("sha256:"):]+".sig", &Sent{}, &tracker{}); err != nil {
		t.Fatal(err)
	}
}

// TestWithheldSignature has a registry that hides a signature, or answers with an error: nothing is taken.
func TestWithheldSignature(t *testing.T) {
	from, srv, key := gpuStore(t), newServer(t), keys(t)["Ed25519"]
	o := gpuOptions()
	o.Signer = signer(t, key)
	sent, err := Push(t.Context(), from, nil, srv.ref("v1"), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{http.StatusNotFound, http.StatusInternalServerError} {
		srv.setMeddle(func(w http.ResponseWriter, r *http.Request) bool {
			hide := strings.HasSuffix(r.URL.Path, signatureTag(sent.Digest))
			if hide {
				w.WriteHeader(status)
			}
			return hide
		})
		to, _ := newStore(t)
		o := gpuOptions()
		o.Trust = trustKey(t, key)
		if _, err := Pull(t.Context(), to, srv.ref("v1"), o); err == nil {
			t.Errorf("status %d: taken", status)
		}
		wantWhole(t, to, 0, 0)
	}
}

// FuzzSignature checks that only the signed text is taken.
func FuzzSignature(f *testing.F) {
	key := keys(f)["Ed25519"]
	trust := trustKey(f, key)
	of := cache.DigestOf([]byte("x"))
	a, err := sign(signer(f, key), of, "r.example/x", &signatureSet{})
	if err != nil {
		f.Fatal(err)
	}
	text, err := a.parts[0].load(context.Background())
	if err != nil {
		f.Fatal(err)
	}
	sig, err := base64.StdEncoding.DecodeString(a.parts[0].Annotations[signatureAnnotation])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text, sig)
	f.Fuzz(func(t *testing.T, payload, signed []byte) {
		_, ok := (&signature{payload: payload, bytes: signed}).by(trust.Keys, of)
		if want := string(payload) == string(text) && string(signed) == string(sig); ok != want {
			t.Fatalf("%q: %v, want %v", payload, ok, want)
		}
	})
}
