package cache

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFromEnv(t *testing.T) {
	home, wd := t.TempDir(), t.TempDir()
	t.Chdir(wd)
	for _, v := range []string{EnvDir, EnvPath, EnvMode, EnvTrust} {
		t.Setenv(v, "")
	}
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("XDG_CONFIG_HOME", "")

	base, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	o, off, err := FromEnv()
	if err != nil || off || o.Dir != filepath.Join(base, "pwc") || len(o.Layers) != 0 {
		t.Errorf("by default: %+v, %v, %v", o, off, err)
	}

	t.Setenv(EnvDir, "here")
	t.Setenv(EnvPath, strings.Join([]string{"/a", "", "b"}, string(filepath.ListSeparator)))
	t.Setenv(EnvMode, "on")
	o, off, err = FromEnv()
	if err != nil || off || o.Dir != filepath.Join(wd, "here") || !slices.Equal(o.Layers, []string{"/a", filepath.Join(wd, "b")}) {
		t.Errorf("set: %+v, %v, %v", o, off, err)
	}

	t.Setenv(EnvMode, "off")
	if o, off, err = FromEnv(); err != nil || !off || o.Dir != "" || o.Layers != nil {
		t.Errorf("off: %+v, %v, %v", o, off, err)
	}
	t.Setenv(EnvMode, "maybe")
	if _, _, err = FromEnv(); err == nil || !strings.Contains(err.Error(), EnvMode) {
		t.Errorf("maybe: %v", err)
	}
}

// Without a home directory the options have the layers, and the error matches ErrNoDir.
func TestNoHome(t *testing.T) {
	layer := t.TempDir()
	ls, _ := logged(layer)
	fill(t, ls, "toy", 1)
	for v, value := range map[string]string{EnvDir: "", EnvMode: "", EnvPath: layer, "HOME": "", "XDG_CACHE_HOME": ""} {
		t.Setenv(v, value)
	}
	if _, err := os.UserCacheDir(); err == nil {
		t.Skip("this system knows a cache directory without HOME")
	}
	o, off, err := FromEnv()
	if !errors.Is(err, ErrNoDir) || off || !strings.Contains(err.Error(), EnvDir) {
		t.Fatalf("%+v, %v, %v", o, off, err)
	}
	s := New(o)
	wantHit(t, s, 0)
	if err := s.Put(t.Context(), testKey(1), nil, testProvenance); !errors.Is(err, ErrNoDir) {
		t.Errorf("Put: %v", err)
	}
}

// A store that is made from options does not depend on PWC_CACHE_DIR, PWC_CACHE_PATH and
// PWC_CACHE.
func TestEnvironmentIsNotRead(t *testing.T) {
	other := t.TempDir()
	t.Setenv(EnvDir, other)
	t.Setenv(EnvPath, other)
	t.Setenv(EnvMode, "off")
	s, j := logged(t.TempDir())
	fill(t, s, "toy", 1)
	wantHit(t, s, 0)
	wantQuiet(t, j)
	if n := len(snapshot(t, other)); n != 1 {
		t.Errorf("%d files in PWC_CACHE_DIR", n-1)
	}
}
