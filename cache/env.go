package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Environment variables of the command line. The library reads them only in FromEnv and Dir.
const (
	EnvDir  = "PWC_CACHE_DIR"  // directory to write; default: pwc in the user's cache directory
	EnvPath = "PWC_CACHE_PATH" // read-only layers, in the form of the platform's PATH
	EnvMode = "PWC_CACHE"      // "off": no cache; "on" or unset
)

// FromEnv returns the options of the environment. off is true for PWC_CACHE=off; the options are
// then those of a store that keeps nothing. If only Dir fails, as without a home directory, the
// options have the layers and Trust, Options.Dir is empty, and the error matches ErrNoDir.
func FromEnv() (o Options, off bool, err error) {
	switch mode := os.Getenv(EnvMode); mode {
	case "off":
		return Options{}, true, nil
	case "", "on":
	default:
		return Options{}, false, fmt.Errorf("cache: %s=%q; it must be on or off", EnvMode, mode)
	}
	for _, dir := range filepath.SplitList(os.Getenv(EnvPath)) {
		if dir == "" {
			continue
		}
		if dir, err = filepath.Abs(dir); err != nil {
			return Options{}, false, fmt.Errorf("cache: %s: %w", EnvPath, err)
		}
		o.Layers = append(o.Layers, dir)
	}
	trust, err := TrustFile()
	if err == nil {
		o.Trust, err = ReadTrust(trust)
	}
	if err != nil {
		return Options{}, false, fmt.Errorf("cache: %w", err)
	}
	o.Dir, err = Dir()
	return o, false, err
}

// Dir returns PWC_CACHE_DIR, otherwise the directory pwc in the user's cache directory. The error
// matches ErrNoDir.
func Dir() (string, error) {
	if dir := os.Getenv(EnvDir); dir != "" {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return "", errors.Join(ErrNoDir, err)
		}
		return dir, nil
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w: set %s: %w", ErrNoDir, EnvDir, err)
	}
	return filepath.Join(base, "pwc"), nil
}
