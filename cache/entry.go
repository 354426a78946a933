package cache

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// MaxBlob bounds the bytes of one blob, and of the graph of a module.
const MaxBlob = 1 << 30

// Provenance describes the origin of an entry, for people. It is never compared.
type Provenance struct {
	Compiler string        // versions of the tools behind the target
	Origin   string        // of the piece: "@forward item 2 (model.layers.0.mlp)"
	Duration time.Duration // of compilation
}

// Entry is the manifest of a key: its blob and its provenance.
type Entry struct {
	Key        Key
	Blob       Digest
	Size       int64 // bytes of the blob
	Provenance Provenance
	Created    time.Time // when the entry was stored; in whole seconds, UTC
}

const entryHeader = "pwc cache entry 1"

// validate returns an error if a manifest cannot represent the entry.
func (e *Entry) validate() error {
	errs := []error{e.Key.Validate(), checkSize("blob", e.Size), checkTime(e.Created),
		checkString("compiler", e.Provenance.Compiler), checkString("origin", e.Provenance.Origin)}
	if e.Provenance.Duration < 0 {
		errs = append(errs, fmt.Errorf("cache: a compilation that took %v, want at least 0", e.Provenance.Duration))
	}
	return errors.Join(errs...)
}

func checkSize(what string, size int64) error {
	if size < 0 || size > MaxBlob {
		return fmt.Errorf("cache: %s of %d bytes, want 0 to %d", what, size, MaxBlob)
	}
	return nil
}

// checkTime refuses times that the layout of a manifest cannot represent.
func checkTime(t time.Time) error {
	if y := t.UTC().Year(); y < 0 || y > 9999 {
		return fmt.Errorf("cache: a time in the year %d, want 0 to 9999", y)
	}
	return nil
}

// encode returns the manifest.
func (e *Entry) encode() []byte {
	var w textWriter
	w.line(entryHeader)
	e.Key.write(&w)
	w.line("blob", e.Blob.String(), strconv.FormatInt(e.Size, 10))
	w.line("compiler", strconv.Quote(e.Provenance.Compiler))
	w.line("origin", strconv.Quote(e.Provenance.Origin))
	w.line("duration", strconv.FormatInt(int64(e.Provenance.Duration), 10))
	w.line("created", e.Created.UTC().Format(timeLayout))
	return w.seal()
}

// parseEntry parses a manifest. The error is only the reason.
func parseEntry(data []byte) (*Entry, error) {
	e := &Entry{}
	err := parseText(data, entryHeader, func(l *textLine) bool {
		switch l.word {
		case "blob":
			e.Blob, e.Size = l.digest(), l.int()
		case "compiler":
			e.Provenance.Compiler = l.quoted()
		case "origin":
			e.Provenance.Origin = l.quoted()
		case "duration":
			e.Provenance.Duration = time.Duration(l.int())
		case "created":
			e.Created = l.time()
		default:
			return e.Key.parseLine(l)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	if err := e.validate(); err != nil {
		return nil, err
	}
	if !bytes.Equal(e.encode(), data) {
		return nil, errors.New("not in the canonical form")
	}
	return e, nil
}
