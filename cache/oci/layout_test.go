package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/flock"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"

	"pwc/cache"
)

func mustExport(t testing.TB, s *cache.Store, name string, o Options, refs ...string) *Sent {
	t.Helper()
	sent, err := Export(t.Context(), s, refs, name, o)
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

func TestExportImport(t *testing.T) {
	from, srv := filled(t, 4), newServer(t)
	pushed := mustPush(t, from, srv.ref("v1"))
	for _, name := range []string{"layout", "layout.tar"} {
		name = filepath.Join(t.TempDir(), name)
		sent := mustExport(t, from, name, plain())
		if sent.Digest != pushed.Digest || sent.Written != 6 || sent.WrittenBytes != sent.Bytes {
			t.Errorf("%s: %+v; pushed it has the digest %s", name, sent, pushed.Digest)
		}
		srv.counts()
		to, journal := newStore(t)
		got, err := Import(t.Context(), to, name, plain())
		if err != nil {
			t.Fatal(err)
		}
		if got.Digest != sent.Digest || got.Entries != 4 || got.Fetched != 5 || len(got.Modules) != 1 {
			t.Errorf("%s: %+v", name, got)
		}
		wantWhole(t, to, 4, 1)
		for i := range 4 {
			wantHit(t, to, i, "host")
		}
		m, err := to.Show(t.Context(), "toy")
		if err != nil || m.Found[0].Provenance.Origin != "from layout@"+sent.Digest.String() {
			t.Errorf("%+v, %v", m.Found[0], err)
		}
		info, err := InspectLayout(t.Context(), name, Options{})
		if err != nil || info.Digest != sent.Digest || len(info.Config.Entries) != 4 {
			t.Errorf("%+v, %v", info, err)
		}
		if n := srv.counts(); len(n) != 0 {
			t.Errorf("requests: %v", n)
		}
		if text := journal.Take(); text != "" {
			t.Errorf("messages: %s", text)
		}
		o := plain()
		o.Machine = Machine{Targets: []string{"cuda:sm_90"}}
		if _, err := Import(t.Context(), to, name, o); !errors.As(err, new(*RefusedError)) {
			t.Errorf("%v; want a refusal", err)
		}
	}
}

// TestTarIsLayout checks that two exports write the same tar, that tar unpacks it to a layout, and that a layout that
// tar packed can be imported.
func TestTarIsLayout(t *testing.T) {
	s, dir := filled(t, 2), t.TempDir()
	mustExport(t, s, filepath.Join(dir, "a.tar"), Options{Tag: "v1"})
	mustExport(t, s, filepath.Join(dir, "b.tar"), Options{Tag: "v1"})
	a, err := os.ReadFile(filepath.Join(dir, "a.tar"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "b.tar"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("two tars of the same modules differ")
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	program, err := exec.LookPath("tar")
	if err != nil {
		t.Skip(err)
	}
	layout := filepath.Join(dir, "unpacked")
	if err := os.Mkdir(layout, 0o777); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(program, "-xf", filepath.Join(dir, "a.tar"), "-C", layout).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	to, _ := newStore(t)
	if _, err := Import(t.Context(), to, layout, plain()); err != nil {
		t.Error(err)
	}
	// Other tools write member names in another form, and add directories.
	if out, err := exec.Command(program, "-cf", filepath.Join(dir, "packed.tar"), "-C", layout, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	again, _ := newStore(t)
	if _, err := Import(t.Context(), again, filepath.Join(dir, "packed.tar"), plain()); err != nil {
		t.Error(err)
	}
	wantWhole(t, again, 2, 1)
}

// TestOtherTools copies the tar to a registry and an artifact from a registry to a directory with another tool. The
// digest does not change, and both are complete.
func TestOtherTools(t *testing.T) {
	from, srv := filled(t, 3), newServer(t)
	file := filepath.Join(t.TempDir(), "layout.tar")
	sent := mustExport(t, from, file, Options{})
	layout, err := oci.NewFromTar(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	repo, err := remote.NewRepository(srv.Listener.Addr().String() + "/team/toy")
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	repo.PlainHTTP, repo.Client = true, client
	if d, err := oras.Copy(t.Context(), layout, "latest", repo, "copied", oras.DefaultCopyOptions); err != nil || d.Digest.String() != sent.Digest.String() {
		t.Fatalf("%v, %v", d, err)
	}
	to, _ := newStore(t)
	if got, err := Pull(t.Context(), to, srv.ref("copied"), plain()); err != nil || got.Digest != sent.Digest {
		t.Fatalf("%+v, %v", got, err)
	}
	wantWhole(t, to, 3, 1)
	dir := filepath.Join(t.TempDir(), "layout")
	back, err := oci.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := oras.Copy(t.Context(), repo, "copied", back, "back", oras.DefaultCopyOptions); err != nil {
		t.Fatal(err)
	}
	again, _ := newStore(t)
	if got, err := Import(t.Context(), again, dir, plain()); err != nil || got.Digest != sent.Digest {
		t.Fatalf("%+v, %v", got, err)
	}
	wantWhole(t, again, 3, 1)
}

func TestSeveralInLayout(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	one := mustExport(t, filled(t, 3), dir, Options{Tag: "small"})
	more := mustExport(t, filled(t, 5), dir, Options{Tag: "big"})
	if more.Written != 3 { // two programs and the config
		t.Errorf("%+v; want only the three new blobs", more)
	}
	take := func(tag string) (int, error) {
		to, _ := newStore(t)
		o := plain()
		o.Tag = tag
		got, err := Import(t.Context(), to, dir, o)
		if err != nil {
			return 0, err
		}
		return got.Entries, nil
	}
	for tag, want := range map[string]int{"small": 3, "big": 5, one.Digest.String(): 3, more.Digest.String(): 5} {
		if n, err := take(tag); n != want || err != nil {
			t.Errorf("%s: %d entries, %v; want %d", tag, n, err, want)
		}
	}
	_, err := take("")
	wantErr(t, err, "several", "small", "big")
	_, err = take("huge")
	wantErr(t, err, `no "huge"`, "small", "big")
	// The artifact of the last export has the default tag.
	for n := 6; n < 8; n++ {
		mustExport(t, filled(t, n), dir, Options{})
		if got, err := take(""); got != n || err != nil {
			t.Errorf("%d entries, %v; want %d", got, err, n)
		}
	}
}

func TestNotLayouts(t *testing.T) {
	dir := t.TempDir()
	from := filled(t, 2)
	mustExport(t, from, filepath.Join(dir, "good.tar"), Options{})
	good, err := os.ReadFile(filepath.Join(dir, "good.tar"))
	if err != nil {
		t.Fatal(err)
	}
	imports := func(name string) error {
		t.Helper()
		to, _ := newStore(t)
		_, err := Import(t.Context(), to, name, plain())
		if v, verr := to.Verify(t.Context()); verr != nil || len(v.Problems) > 0 || v.Modules > 0 {
			t.Errorf("%s: %+v, %v", name, v, verr)
		}
		return err
	}
	file := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		writeFile(t, name, data)
		return name
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(good)
	z.Close()
	wantErr(t, imports(filepath.Join(dir, "nowhere")), "no such file")
	wantErr(t, imports(file("zipped.tar", zipped.Bytes())), "compressed")
	wantErr(t, imports(file("empty.tar", nil)), "not an OCI image layout")
	wantErr(t, imports(file("text.tar", []byte("hello"))), "not a tar")
	for cut := 0; cut < len(good)-1024; cut += 700 { // the last kilobyte is the end mark
		if imports(file("cut.tar", good[:cut])) == nil {
			t.Errorf("a tar cut at %d of %d was imported", cut, len(good))
		}
	}
	var many bytes.Buffer
	w := tar.NewWriter(&many)
	for range maxMembers + 1 {
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "d/"})
	}
	w.Close()
	wantErr(t, imports(file("many.tar", many.Bytes())), "more than")

	layout := func(name, version, index string) string {
		writeFile(t, filepath.Join(dir, name, "oci-layout"), []byte(version))
		writeFile(t, filepath.Join(dir, name, "index.json"), []byte(index))
		return filepath.Join(dir, name)
	}
	const v1 = `{"imageLayoutVersion":"1.0.0"}`
	wantErr(t, imports(filepath.Dir(file("bare/x", nil))), "not an OCI image layout")
	wantErr(t, imports(layout("v2", `{"imageLayoutVersion":"2.0.0"}`, `{}`)), "layout version")
	wantErr(t, imports(layout("none", v1, `{"manifests":[]}`)), "no pwc cache")
	wantErr(t, imports(layout("junk", v1, `{"manifests":[`)), "index.json")
	wantErr(t, imports(layout("huge", v1, strings.Repeat(" ", maxManifest+1)+`{}`)), "above the limit")
	wantErr(t, imports(layout("absent", v1, `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:`+strings.Repeat("0", 64)+`","size":7}]}`)), "does not have it")
	wantErr(t, imports(layout("outside", v1, `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:../../../good.tar","size":7}]}`)), "SHA-256")
	wantErr(t, imports(layout("index", v1, `{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","artifactType":"`+ArtifactType+`","digest":"sha256:`+strings.Repeat("0", 64)+`","size":7}]}`)), "of type")
}

// TestLayoutLinks checks that links out of a layout are not followed, and that only regular files are read.
func TestLayoutLinks(t *testing.T) {
	dir := t.TempDir()
	from := filled(t, 1)
	blob := cache.DigestOf(testBlob(t, 0, "host")).String()[len("sha256:"):]
	for name, swap := range map[string]func(file string) error{
		"link":      func(file string) error { return os.Symlink(filepath.Join(dir, "secret"), file) },
		"directory": func(file string) error { return os.Mkdir(file, 0o777) },
		"absent":    func(string) error { return nil },
		"pipe":      mkfifo,
	} {
		layout := filepath.Join(dir, name)
		mustExport(t, from, layout, Options{})
		file := filepath.Join(layout, "blobs", "sha256", blob)
		if err := os.Rename(file, filepath.Join(dir, "secret")); err != nil {
			t.Fatal(err)
		}
		if err := swap(file); errors.Is(err, errors.ErrUnsupported) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		to, _ := newStore(t)
		if _, err := Import(t.Context(), to, layout, plain()); err == nil {
			t.Errorf("%s: imported", name)
		}
		wantWhole(t, to, 0, 0)
	}
}

// TestLayoutDamage flips a bit in some bytes of each file of a layout, one after the other. Each import fails, or takes
// the right contents.
func TestLayoutDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	mustExport(t, filled(t, 1), dir, Options{})
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.Chmod(name, 0o666); err != nil {
			return err
		}
		for i := 0; i < len(data); i += 1 + len(data)/16 {
			data[i] ^= 4
			if err := os.WriteFile(name, data, 0o666); err != nil {
				return err
			}
			data[i] ^= 4
			to, _ := newStore(t)
			got, err := Import(t.Context(), to, dir, plain())
			switch {
			case err == nil && !strings.HasSuffix(name, ".json"):
				t.Errorf("%s: byte %d was flipped, and the import went well: %+v", name, i, got)
			case err == nil:
				wantWhole(t, to, 1, 1)
				wantHit(t, to, 0, "host")
			default:
				if v, err := to.Verify(t.Context()); err != nil || len(v.Problems) > 0 || v.Modules > 0 {
					t.Errorf("%s: byte %d: %+v, %v", name, i, v, err)
				}
			}
		}
		return os.WriteFile(name, data, 0o666)
	})
	if err != nil {
		t.Fatal(err)
	}
	to, _ := newStore(t)
	if _, err := Import(t.Context(), to, dir, plain()); err != nil {
		t.Error(err)
	}
}

// TestExportRepairsLayout checks that an export replaces a damaged blob of the layout.
func TestExportRepairsLayout(t *testing.T) {
	from, dir := filled(t, 2), filepath.Join(t.TempDir(), "layout")
	first := mustExport(t, from, dir, Options{})
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
	if err != nil || len(blobs) != first.Blobs+1 {
		t.Fatalf("%q, %v", blobs, err)
	}
	for _, file := range blobs {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		flipped := append([]byte{data[0] ^ 1}, data[1:]...)
		for name, bad := range map[string][]byte{"empty": nil, "cut": data[:len(data)-1], "longer": append(data[:len(data):len(data)], 'x'), "flipped": flipped} {
			if err := errors.Join(os.Remove(file), os.WriteFile(file, bad, 0o666)); err != nil {
				t.Fatal(err)
			}
			got := mustExport(t, from, dir, Options{})
			if want := int64(len(data)); got.Digest != first.Digest || got.Written == 1 && got.WrittenBytes != want || got.Written == 0 && !strings.HasSuffix(first.Digest.String(), filepath.Base(file)) {
				t.Errorf("%s, %s: %+v", filepath.Base(file), name, got)
			}
			to, _ := newStore(t)
			if _, err := Import(t.Context(), to, dir, plain()); err != nil {
				t.Errorf("%s, %s: %v", filepath.Base(file), name, err)
			}
			wantWhole(t, to, 2, 1)
		}
	}
	if got := mustExport(t, from, dir, Options{}); got.Written != 0 {
		t.Errorf("an export into a layout that has all blobs writes some: %+v", got)
	}
}

// TestExportsAtOnce exports into one layout concurrently. No artifact is lost, and concurrent readers find a whole
// index.
func TestExportsAtOnce(t *testing.T) {
	from, dir := filled(t, 1), filepath.Join(t.TempDir(), "layout")
	mustExport(t, from, dir, Options{})
	const n = 8
	var exports, reader sync.WaitGroup
	for i := range n {
		exports.Go(func() {
			for k := range 3 {
				if _, err := Export(t.Context(), from, nil, dir, Options{Tag: fmt.Sprintf("v%d.%d", i, k)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	reader.Go(func() {
		for {
			if _, err := InspectLayout(t.Context(), dir, Options{}); err != nil {
				t.Errorf("while it is written: %v", err)
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	exports.Wait()
	close(done)
	reader.Wait()
	for i := range n {
		for k := range 3 {
			if _, err := InspectLayout(t.Context(), dir, Options{Tag: fmt.Sprintf("v%d.%d", i, k)}); err != nil {
				t.Error(err)
			}
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestFirstExportsAtOnce is TestExportsAtOnce without a layout: the first exports create it.
func TestFirstExportsAtOnce(t *testing.T) {
	const exports, layouts = 4, 20
	from := filled(t, 1)
	for range layouts {
		dir := filepath.Join(t.TempDir(), "layout")
		var all sync.WaitGroup
		for i := range exports {
			all.Go(func() {
				if _, err := Export(t.Context(), from, nil, dir, Options{Tag: fmt.Sprint("v", i)}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for i := range exports {
			if _, err := InspectLayout(t.Context(), dir, Options{Tag: fmt.Sprint("v", i)}); err != nil {
				t.Error(err)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// TestReplaceFile checks that a file stays as it was if the new contents cannot be written completely.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	writeFile(t, filepath.Join(dir, "index.json"), []byte("old"))
	full := errors.New("no space left")
	err = replaceFile(root, "index.json", func(w io.Writer) error { io.WriteString(w, "ne"); return full })
	if !errors.Is(err, full) {
		t.Error(err)
	}
	entries, _ := os.ReadDir(dir)
	if data, err := os.ReadFile(filepath.Join(dir, "index.json")); err != nil || string(data) != "old" || len(entries) != 1 {
		t.Errorf("%q, %v, and %v", data, err, entries)
	}
}

// TestRetag moves a tag to another artifact. The artifact that had the tag stays in the layout by its digest, and is
// listed once.
func TestRetag(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	one := mustExport(t, filled(t, 1), dir, Options{Tag: "v1"})
	two := mustExport(t, filled(t, 2), dir, Options{Tag: "v1"})
	for range 2 {
		mustExport(t, filled(t, 2), dir, Options{Tag: "v2"})
	}
	for ref, want := range map[string]cache.Digest{"v1": two.Digest, "v2": two.Digest, one.Digest.String(): one.Digest} {
		if got, err := InspectLayout(t.Context(), dir, Options{Tag: ref}); err != nil || got.Digest != want {
			t.Errorf("%s: %+v, %v; want %s", ref, got, err, want)
		}
	}
	l, err := openLayout(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	var index ocispec.Index
	if err := l.readJSON("index.json", &index); err != nil || len(index.Manifests) != 3 {
		t.Errorf("%d manifests, %v; want v1, v2 and the one without a tag", len(index.Manifests), err)
	}
	mustExport(t, filled(t, 1), dir, Options{Tag: "v3"}) // the manifest without a tag gets one
	if err := l.readJSON("index.json", &index); err != nil || len(index.Manifests) != 3 {
		t.Errorf("%d manifests, %v; want v1, v2 and v3", len(index.Manifests), err)
	}
}

func TestExportErrors(t *testing.T) {
	s := filled(t, 2)
	dir := t.TempDir()
	_, err := Export(t.Context(), s, []string{"nobody"}, filepath.Join(dir, "x"), Options{})
	if !errors.Is(err, cache.ErrNotFound) {
		t.Error(err)
	}
	_, err = Export(t.Context(), s, nil, filepath.Join(dir, "no", "where.tar"), Options{})
	wantErr(t, err, "where.tar")
	writeFile(t, filepath.Join(dir, "file"), nil)
	_, err = Export(t.Context(), s, nil, filepath.Join(dir, "file"), Options{})
	wantErr(t, err, "file")
	// A failed export leaves the old tar.
	old := filepath.Join(dir, "old.tar")
	writeFile(t, old, []byte("old"))
	ctx, cancel := context.WithCancel(t.Context())
	_, err = Export(ctx, s, nil, old, Options{Observer: func(Progress) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if data, err := os.ReadFile(old); err != nil || string(data) != "old" {
		t.Errorf("%q, %v", data, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestLayoutTag checks that the index has the tag and the type of the artifact, and that the tag changes no digest.
func TestLayoutTag(t *testing.T) {
	for _, name := range []string{"layout", "layout.tar"} {
		untagged := mustExport(t, filled(t, 1), filepath.Join(t.TempDir(), name), Options{})
		name = filepath.Join(t.TempDir(), name)
		if sent := mustExport(t, filled(t, 1), name, Options{Tag: "v1"}); sent.Digest != untagged.Digest {
			t.Errorf("with a tag the digest is %s, without one %s", sent.Digest, untagged.Digest)
		}
		l, err := openLayout(name, "v1")
		if err != nil {
			t.Fatal(err)
		}
		defer l.close()
		var index ocispec.Index
		if err := l.readJSON("index.json", &index); err != nil {
			t.Fatal(err)
		}
		if len(index.Manifests) != 1 || index.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "v1" || index.Manifests[0].ArtifactType != "application/vnd.pwc.cache.v1" {
			text, _ := json.Marshal(index)
			t.Errorf("%s", text)
		}
	}
}

// TestExportContext checks that an export whose context has ended returns the error of the context.
func TestExportContext(t *testing.T) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	for _, name := range []string{"layout", "layout.tar"} {
		if _, err := Export(ctx, filled(t, 2), nil, filepath.Join(t.TempDir(), name), Options{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLayoutLockIsNotWaitedForLong exports into a layout whose lock a reader holds forever.
func TestLayoutLockIsNotWaitedForLong(t *testing.T) {
	from, dir := filled(t, 1), filepath.Join(t.TempDir(), "layout")
	mustExport(t, from, dir, Options{})
	held := flock.New(filepath.Join(dir, ocispec.ImageLayoutFile), flock.SetFlag(os.O_RDONLY))
	if ok, err := held.TryLock(); !ok {
		t.Skip(err)
	}
	defer held.Unlock()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if _, err := Export(t.Context(), from, nil, dir, Options{Tag: "second"}); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 2*lockPatience {
			t.Errorf("it took %v", took)
		}
	})
	o := plain()
	o.Tag = "second"
	to, _ := newStore(t)
	if _, err := Import(t.Context(), to, dir, o); err != nil {
		t.Error(err)
	}
}

// TestChoose: without a reference, a layout must have one artifact, or one with the default tag.
func TestChoose(t *testing.T) {
	tagged := func(digest, tag string) descriptor {
		d := descriptor{ArtifactType: ArtifactType, Digest: digest}
		d.Annotations.RefName = tag
		return d
	}
	for _, c := range []struct {
		list      []descriptor
		ref, want string // want: a digest, or a part of the error
	}{
		{[]descriptor{tagged("d1", "")}, "", "d1"},
		{[]descriptor{tagged("d1", "v1"), tagged("d1", "stable")}, "", "d1"},
		{[]descriptor{tagged("d1", "v1"), tagged("d2", "v2")}, "", `several artifacts; name one of ["v1" "v2"]`},
		{[]descriptor{tagged("d1", "v1"), tagged("d2", defaultTag)}, "", "d2"},
		{[]descriptor{tagged("d1", "v1"), tagged("d2", "v2")}, "v2", "d2"},
		{[]descriptor{tagged("d1", "v1"), tagged("d2", "v2")}, "d1", "d1"},
		{[]descriptor{tagged("d1", "v1")}, "v3", `no "v3"; it has ["v1"]`},
		{[]descriptor{tagged("d1", "sha256-0123.sig")}, "", "no pwc cache"},
	} {
		switch d, err := choose(c.list, c.ref); {
		case err != nil:
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v, %q: %v, want %s", c.list, c.ref, err, c.want)
			}
		case d.Digest != c.want:
			t.Errorf("%+v, %q: %s, want %s", c.list, c.ref, d.Digest, c.want)
		}
	}
}
