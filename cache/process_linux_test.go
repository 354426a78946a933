package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

var platformRoles = map[string]func(args []string) error{"limit": limitRole, "full": fullRole, "frozen": frozenRole}

// mounts runs a role in a mount namespace of its own, where it can mount file systems. It
// first runs the role with "probe" before its arguments, which only mounts, and skips the
// test if that fails.
func mounts(t *testing.T, role string, args ...string) {
	t.Helper()
	probe := start(t, role, append([]string{"probe"}, args...)...)
	private := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		private = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}}
	}
	probe.SysProcAttr = private
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("this system lets a test mount nothing: %v\n%s", err, out)
	}
	cmd := start(t, role, args...)
	cmd.SysProcAttr = private
	run(t, cmd)
}

// private makes later mounts private to the process.
func private() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }

// notKept makes a key and checks that the result is right, and that it is not stored for the
// reason want.
func notKept(s *Store, i, size int, want error) error {
	blob := bytes.Repeat([]byte{byte(i)}, size)
	got, err := makeOnce(context.Background(), s, testKey(i), func() []byte { return blob })
	if err != nil || !bytes.Equal(got, blob) {
		return fmt.Errorf("key %d: %d bytes, %v", i, len(got), err)
	}
	err = s.Put(context.Background(), testKey(i), blob, testProvenance)
	if nc, ok := errors.AsType[*NotCachedError](err); !ok || !errors.Is(nc, want) {
		return fmt.Errorf("Put = %v, want a NotCachedError of %v", err, want)
	}
	if _, ok, err := s.Get(context.Background(), testKey(i)); ok || err != nil {
		return fmt.Errorf("Get of a key that was not stored: %v, %v; want a plain miss", ok, err)
	}
	return nil
}

// kept makes a key and checks that it is stored.
func kept(s *Store, i int) error {
	if _, err := makeOnce(context.Background(), s, testKey(i), func() []byte { return testBlob(i) }); err != nil {
		return err
	}
	if blob, ok, err := s.Get(context.Background(), testKey(i)); !ok || err != nil || !bytes.Equal(blob, testBlob(i)) {
		return fmt.Errorf("key %d: %d bytes, %v, %v; want its blob", i, len(blob), ok, err)
	}
	return nil
}

// tidy checks that no temporary file is left and nothing is damaged.
func tidy(s *Store) error {
	left, err := os.ReadDir(filepath.Join(s.Dir(), "v1", tmpDir))
	if err != nil || len(left) != 0 {
		return fmt.Errorf("left in tmp: %v, %v", left, err)
	}
	v, err := s.Verify(context.Background())
	return errors.Join(append(v.Problems, err)...)
}

// limitRole writes past the largest size that a file may have.
func limitRole(args []string) error {
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4096, Max: 4096}); err != nil {
		return err
	}
	s, _ := logged(args[0])
	return errors.Join(notKept(s, 0, 16384, syscall.EFBIG), kept(s, 1), tidy(s))
}

func TestFileSizeLimit(t *testing.T) { run(t, start(t, "limit", t.TempDir())) }

// fullRole fills a file system of a few pages.
func fullRole(args []string) error {
	if args[0] == "probe" {
		return errors.Join(private(), unix.Mount("tmpfs", args[1], "tmpfs", 0, "size=128k"))
	}
	if err := errors.Join(private(), unix.Mount("tmpfs", args[0], "tmpfs", 0, "size=128k")); err != nil {
		return err
	}
	s, j := logged(args[0])
	if err := errors.Join(kept(s, 0), notKept(s, 1, 256<<10, syscall.ENOSPC), tidy(s)); err != nil {
		return err
	}
	// Each filler is a page smaller, so at some size the blob may fit and the manifest not.
	filler := filepath.Join(args[0], "filler")
	if err := os.WriteFile(filler, nil, 0o666); err != nil {
		return err
	}
	for size := int64(128 << 10); size > 0; size -= 4096 {
		f, err := os.OpenFile(filler, os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(make([]byte, size))
		f.Close()
		if err != nil {
			continue
		}
		err = s.Put(context.Background(), testKey(2), testBlob(2), testProvenance)
		if nc, ok := errors.AsType[*NotCachedError](err); err != nil && (!ok || !errors.Is(nc, syscall.ENOSPC)) {
			return err
		}
		_, ok, gerr := s.Get(context.Background(), testKey(2))
		if gerr != nil || ok != (err == nil) {
			return fmt.Errorf("filler of %d: Get = %v, %v after Put = %v", size, ok, gerr, err)
		}
		if err := s.PutModule(context.Background(), testModule("toy", 1)); err != nil && !errors.Is(err, syscall.ENOSPC) {
			return err
		}
		if ok {
			break
		}
	}
	j.Take()
	if err := os.Remove(filler); err != nil {
		return err
	}
	if err := errors.Join(kept(s, 1), kept(s, 2), s.PutModule(context.Background(), testModule("toy", 3)), tidy(s)); err != nil {
		return err
	}
	if text := j.Take(); text != "" {
		return fmt.Errorf("messages after there was room again:\n%s", text)
	}
	return nil
}

func TestDiskFull(t *testing.T) { mounts(t, "full", t.TempDir()) }

// frozenRole works on a directory that even root cannot write.
func frozenRole(args []string) error {
	dir := args[len(args)-1]
	if err := errors.Join(private(), unix.Mount(dir, dir, "", unix.MS_BIND, ""),
		unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil || args[0] == "probe" {
		return err
	}
	s, j := logged(dir)
	ctx := context.Background()
	if err := errors.Join(kept(s, 0), kept(s, 1), s.PutModule(ctx, testModule("toy", 2))); err != nil {
		return err
	}
	if text := j.Take(); text != "" {
		return fmt.Errorf("messages on a warm start:\n%s", text)
	}
	if err := notKept(s, 2, 100, syscall.EROFS); err != nil {
		return err
	}
	if err := s.PutModule(ctx, testModule("new", 2)); !errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("PutModule = %v", err)
	}
	if _, err := s.Pin(ctx, "toy"); !errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("Pin = %v", err)
	}
	if _, err := s.GC(ctx, GCOptions{}); !errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("GC = %v", err)
	}
	if err := s.Clear(ctx); !errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("Clear = %v", err)
	}
	// Damage is logged even if it cannot be repaired.
	j.Take()
	bad := testModule("bad", 1)
	if err := s.PutModule(ctx, bad); !errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("PutModule = %v", err)
	}
	if text := j.Take(); !strings.Contains(text, moduleFilePath(s, bad, graphFile)) {
		return fmt.Errorf("no warning names the damaged graph:\n%s", text)
	}
	return errors.Join(kept(s, 0), kept(s, 1))
}

func TestReadOnlyDirectory(t *testing.T) {
	s, _ := logged(t.TempDir())
	fill(t, s, "toy", 2)
	bad := fill(t, s, "bad", 1)
	write(t, moduleFilePath(s, bad, graphFile), []byte("junk"))
	mounts(t, "frozen", s.Dir())
}
