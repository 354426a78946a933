package cli

import "testing"

// minDriver returns the oldest CUDA version of a driver that runs the output of a compiler.
func TestMinDriver(t *testing.T) {
	for _, c := range []struct{ target, compiler, want string }{
		{"host", "", ""},
		{"cuda:sm_90", "nvrtc 11.8", "12.0"},
		{"cuda:sm_90", "nvrtc 12.9", "12.0"},
		{"cuda:sm_90", "nvrtc 13.1", "13.0"},
		{"cuda:sm_90", "another compiler", "12.0"},
	} {
		if got := minDriver(c.target, c.compiler); got != c.want {
			t.Errorf("%s by %s: %q, want %q", c.target, c.compiler, got, c.want)
		}
	}
}
