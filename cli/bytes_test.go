package cli

import "testing"

// Units with an i are powers of 1024, others of 1000, in upper and lower case.
func TestBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "123": 123, " 7 ": 7, "5B": 5, "1KiB": 1 << 10, "1.5GiB": 3 << 29, "2TiB": 1 << 41, "1K": 1000, "10kb": 10_000, "1GB": 1_000_000_000,
		"1gib": 1 << 30, "500 MiB": 500 << 20, "2M": 2_000_000, "1Ki": 1 << 10, "0.5T": 500_000_000_000,
	} {
		if got, err := parseBytes(text); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "B", "GB", "i", "iB", "1i", "-1", "1e400", "0x10", "1PiB", "1 2", "1_000", "NaN", "Inf", "1GiBB", "9999999TiB"} {
		if got, err := parseBytes(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}
