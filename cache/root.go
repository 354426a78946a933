package cache

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"pwc/internal/openfile"
)

// Modes of new files and directories, before the umask. Others can never write them.
const (
	dirMode  = 0o775
	fileMode = 0o664
)

// FormatVersion is the version of the layout and of the manifests. Each version has its own
// directory, which no other version reads or writes.
const FormatVersion = 1

// Directories under the root of a format version.
const (
	keysDir    = "keys"
	blobsDir   = "blobs"
	modulesDir = "modules"
	pinsDir    = "pins"
	locksDir   = "locks"
	tmpDir     = "tmp"
)

func keyFile(id ID) string     { h := id.String(); return path.Join(keysDir, h[:2], h) }
func blobFile(d Digest) string { h := d.hex(); return path.Join(blobsDir, h[:2], h) }
func pinFile(id ID) string     { return path.Join(pinsDir, id.String()) }

// Writers lock their files in tmp. A file without a lock belongs to a writer that died, unless it
// is so new that the writer may not have locked it yet. Without locks only the date decides; a
// writer that was suspended then fails to rename, which it logs.
const (
	youngWithin = time.Minute
	staleAfter  = time.Hour
)

// root is one directory of the cache: the directory to write, or a layer. Every operation opens
// it again, so a replaced directory is found.
type root struct {
	dir     string
	version int
	layer   bool // read-only: never written, not even a lock or a time
}

func (d root) versionDir() string { return "v" + strconv.Itoa(d.version) }

// open opens the directory of the format version. fs.ErrNotExist: it does not exist.
func (d root) open() (*tree, error) {
	base, err := openfile.Dir(d.dir)
	if err != nil {
		return nil, err
	}
	defer base.Close()
	info, err := base.Stat(".")
	if err != nil {
		return nil, err
	}
	r, err := openfile.DirIn(base, d.versionDir())
	if err != nil {
		return nil, err
	}
	return &tree{Root: r, base: info, path: filepath.Join(d.dir, d.versionDir())}, nil
}

// create makes the directory of the format version and opens it.
func (d root) create() (*tree, error) {
	if d.dir == "" {
		return nil, ErrNoDir
	}
	if err := os.MkdirAll(filepath.Join(d.dir, d.versionDir()), dirMode); err != nil {
		return nil, err
	}
	return d.open()
}

// tree is an opened root. Names are slash-separated, below it, and made of constants and hex digits.
type tree struct {
	*os.Root
	base fs.FileInfo // of the parent directory, which has all versions
	path string
}

// file returns the name of a file in messages.
func (t *tree) file(name string) string { return filepath.Join(t.path, filepath.FromSlash(name)) }

// damage returns the error of an unusable file.
func (t *tree) damage(name, format string, args ...any) *DamageError {
	return &DamageError{File: t.file(name), Reason: fmt.Sprintf(format, args...)}
}

// read returns a whole file of at most limit bytes. The error matches fs.ErrNotExist if the file
// does not exist, and is a *DamageError otherwise. read allocates no more than the size of the
// file.
func (t *tree) read(name string, limit int64) ([]byte, error) {
	data, _, err := t.readInfo(name, limit)
	return data, err
}

// readInfo is read, and returns the file's information.
func (t *tree) readInfo(name string, limit int64) ([]byte, fs.FileInfo, error) {
	f, info, err := t.openRegular(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if info.Size() > limit {
		return nil, nil, t.damage(name, "%d bytes, above the limit of %d", info.Size(), limit)
	}
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, nil, t.damage(name, "cannot be read: %v", reason(err))
	}
	return data, info, nil
}

// openRegular opens a regular file that is not a link.
func (t *tree) openRegular(name string) (*os.File, fs.FileInfo, error) {
	info, err := t.Lstat(name)
	if err == nil && !info.Mode().IsRegular() {
		return nil, nil, t.damage(name, "not a regular file (%s)", info.Mode().Type())
	}
	var f *os.File
	if err == nil { // the opened file may be another one, so check it again
		f, info, err = openfile.RegularIn(t.Root, name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, err
	case err != nil:
		return nil, nil, t.damage(name, "cannot be read: %v", reason(err))
	}
	return f, info, nil
}

// reason strips the operation and the file name from an error, because the message has them.
func reason(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// write writes a temporary file, syncs it and renames it, so that a reader sees the old file, the
// new one or none. It does not sync the directory: a rename that a power failure reverts is a
// miss.
func (t *tree) write(name string, data []byte) error {
	for _, dir := range []string{tmpDir, path.Dir(name)} {
		if err := t.MkdirAll(dir, dirMode); err != nil {
			return err
		}
	}
	var random [16]byte
	rand.Read(random[:])
	tmp := path.Join(tmpDir, hex.EncodeToString(random[:]))
	f, err := t.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return err
	}
	// The lock is held until the rename, or the end of the process: see sweepTemp. Without locks
	// the date protects the file.
	held := flock.New(t.file(tmp), flock.SetFlag(os.O_RDWR))
	defer held.Unlock()
	_, _ = held.TryLock()
	_, err = f.Write(data)
	if err == nil {
		// File systems that cannot sync return these errors.
		if err = f.Sync(); errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
			err = nil
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = t.replace(tmp, name)
	}
	if err != nil {
		t.Remove(tmp)
	}
	return err
}

// replace renames a file over another. It first removes an empty directory at name, because
// rename does not replace it.
func (t *tree) replace(tmp, name string) error {
	err := t.Rename(tmp, name)
	if err == nil {
		return nil
	}
	if info, serr := t.Lstat(name); serr == nil && info.IsDir() && t.Remove(name) == nil {
		return t.Rename(tmp, name)
	}
	return err
}

// sweepTemp removes temporary files of writers that died: those at least a minute old that no
// writer has locked, and if files cannot be locked, those more than an hour old.
func (t *tree) sweepTemp() {
	files, _ := t.list(tmpDir) // a directory that cannot be listed keeps its files
	for _, e := range files {
		info, err := e.Info()
		if err != nil {
			continue // removed meanwhile
		}
		name := path.Join(tmpDir, e.Name())
		age := time.Since(info.ModTime()).Abs() // a date may be in the future, by a wrong clock or on purpose
		if age < youngWithin {
			continue
		}
		dead := age > staleAfter
		if info.Mode().IsRegular() {
			held := flock.New(t.file(name), flock.SetFlag(os.O_RDWR))
			if free, err := held.TryLock(); err == nil {
				dead = free
			}
			if dead {
				t.Remove(name)
			}
			held.Unlock()
			continue
		}
		if dead { // no writer of this package made it
			t.RemoveAll(name)
		}
	}
}

// list returns the entries of a directory by name; empty if the directory does not exist. The
// error is a *DamageError.
func (t *tree) list(dir string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(t.FS(), dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, t.damage(dir, "cannot be listed: %v", reason(err))
	}
	return entries, nil
}

// eachHash calls visit for every file of keys, blobs or tuning whose name is a digest, and ignores
// other names. It calls damaged for directories that cannot be listed. It stops at the first error of
// visit or of ctx.
func (t *tree) eachHash(ctx context.Context, dir string, visit func(h [sha256.Size]byte, name string) error, damaged func(error)) error {
	subs, err := t.list(dir)
	if err != nil {
		damaged(err)
	}
	for _, sub := range subs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if b, err := hex.DecodeString(sub.Name()); err != nil || len(b) != 1 {
			continue
		}
		files, err := t.list(path.Join(dir, sub.Name()))
		if err != nil {
			damaged(err)
		}
		for _, e := range files {
			h, err := parseHash(e.Name())
			if err != nil || e.Name()[:2] != sub.Name() {
				continue
			}
			if err := visit(h, path.Join(dir, sub.Name(), e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry reads and checks the manifest of a key.
func (t *tree) entry(id ID) (*Entry, error) {
	e, _, err := t.entryInfo(id)
	return e, err
}

// entryInfo is entry, and returns the file's information.
func (t *tree) entryInfo(id ID) (*Entry, fs.FileInfo, error) {
	name := keyFile(id)
	data, info, err := t.readInfo(name, maxManifest)
	if err != nil {
		return nil, nil, err
	}
	e, err := parseEntry(data)
	if err != nil {
		return nil, nil, t.damage(name, "%v", err)
	}
	if got := e.Key.id(); got != id {
		return nil, nil, t.damage(name, "it is the manifest of key %s", got)
	}
	return e, info, nil
}

// blob reads and checks the contents of an entry.
func (t *tree) blob(d Digest, size int64) ([]byte, error) {
	name := blobFile(d)
	data, err := t.read(name, MaxBlob)
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != size {
		return nil, t.damage(name, "%d bytes, not %d", len(data), size)
	}
	if got := DigestOf(data); got != d {
		return nil, t.damage(name, "its contents have the digest %s", got)
	}
	return data, nil
}
