package cache

// Methods for packages that move entries between machines.

// MarshalText returns the form of String, so a digest is a string in JSON.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses the form of MarshalText, and no other.
func (d *Digest) UnmarshalText(text []byte) error {
	parsed, err := ParseDigest(string(text))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}

// Validate returns an error if m cannot be stored: its name is empty, an absolute path or has a
// backslash, a string is too long or not UTF-8, it has too many entries, a size is out of range, or
// the year is not in 0 to 9999. The order of the entries does not matter.
func (m Module) Validate() error {
	m.Entries = sortedEntries(m.Entries)
	m.graphSize = int64(len(m.Graph))
	return m.validate()
}
