//go:build !linux || !(amd64 || arm64)

package dl

// Signals has nothing to keep where no library is opened.
type Signals struct{}

// Enter does nothing.
func (s *Signals) Enter() {}

// Leave does nothing.
func (s *Signals) Leave() {}
