package cache

// What packages that move entries between machines need beside Put and Get.

// MarshalText returns what String returns, so that a digest is a string in
// JSON.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses what MarshalText returns, and nothing else.
func (d *Digest) UnmarshalText(text []byte) error {
	parsed, err := ParseDigest(string(text))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}

// Validate reports why m cannot be kept: a name that is empty or a path, a
// string that is too long or not UTF-8, too many entries, a size out of range.
// The order of the entries does not matter.
func (m Module) Validate() error {
	m.Entries = sortedEntries(m.Entries)
	m.graphSize = int64(len(m.Graph))
	return m.validate()
}
