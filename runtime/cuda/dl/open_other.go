//go:build !linux || !(amd64 || arm64)

package dl

import "runtime"

// Open fails: NVIDIA's libraries are opened on linux/amd64 and linux/arm64.
func Open(library, advice string, paths []string) (*Library, error) {
	failed := &NotFoundError{Library: library, Advice: advice}
	for _, p := range paths {
		failed.Attempts = append(failed.Attempts, Attempt{p, "not opened on " + runtime.GOOS + "/" + runtime.GOARCH})
	}
	return nil, failed
}

// Symbol fails as Open does.
func (l *Library) Symbol(name string) (uintptr, error) {
	return 0, &SymbolError{Library: l.Path, Symbol: name, Reason: "not on " + runtime.GOOS + "/" + runtime.GOARCH}
}

// Call is never called where Open fails; it returns -1.
//
//go:uintptrescapes
func Call(fn uintptr, args ...uintptr) uintptr { return ^uintptr(0) }

// CallWith is never called where Open fails; it returns -1.
func CallWith(fn uintptr, args []uintptr) uintptr { return ^uintptr(0) }

// Call is never called where Open fails; it returns -1.
//
//go:uintptrescapes
func (c *Caller) Call(fn, a1, a2, a3, a4 uintptr) uintptr { return ^uintptr(0) }
