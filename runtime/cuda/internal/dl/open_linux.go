//go:build linux && (amd64 || arm64)

package dl

import "github.com/ebitengine/purego"

// Open opens the first of paths that the loader accepts. A path without a slash
// is found by the loader's own rules: LD_LIBRARY_PATH, the run path, ld.so.cache.
func Open(library, advice string, paths []string) (*Library, error) {
	failed := &NotFoundError{Library: library, Advice: advice}
	for _, p := range paths {
		h, err := purego.Dlopen(p, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil {
			return &Library{Path: p, handle: h}, nil
		}
		failed.Attempts = append(failed.Attempts, Attempt{p, err.Error()})
	}
	return nil, failed
}

// Symbol returns the address of a function of the library.
func (l *Library) Symbol(name string) (uintptr, error) {
	p, err := purego.Dlsym(l.handle, name)
	if err != nil {
		return 0, &SymbolError{Library: l.Path, Symbol: name, Reason: err.Error()}
	}
	return p, nil
}
