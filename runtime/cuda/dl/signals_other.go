//go:build !linux || !(amd64 || arm64)

package dl

// Signals does nothing, since no library is opened here.
type Signals struct{}

// Enter does nothing.
func (s *Signals) Enter() {}

// Leave does nothing.
func (s *Signals) Leave() {}
