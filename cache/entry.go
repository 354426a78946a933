package cache

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// MaxBlob bounds the bytes of one blob.
const MaxBlob = 1 << 30

// Provenance is how an entry came to be. It explains and is never compared.
type Provenance struct {
	Origin    string    // the piece, for people: "toy @forward #2"
	Compilers []string  // compilers and their versions: "nvrtc 12.8.93"
	Sources   []string  // what it was compiled from, without directories: "toy.ir"
	Created   time.Time // kept to the second, UTC; the zero time is replaced by that of the Put
	Took      time.Duration
}

// Entry is the manifest of a key: what it was made from, the blob it names,
// and how it was made.
type Entry struct {
	Factors    Factors
	Blob       Digest
	Size       int64 // bytes of the blob
	Provenance Provenance
}

const entryHeader = "pwc cache entry 1"

// validate reports what cannot be written in a manifest.
func (e *Entry) validate() error {
	errs := []error{e.Factors.Validate(), checkString("origin", e.Provenance.Origin)}
	if e.Size < 0 || e.Size > MaxBlob {
		errs = append(errs, fmt.Errorf("cache: a blob of %d bytes; the most is %d", e.Size, MaxBlob))
	}
	if e.Provenance.Took < 0 {
		errs = append(errs, fmt.Errorf("cache: provenance took %v", e.Provenance.Took))
	}
	if y := e.Provenance.Created.UTC().Year(); y < 0 || y > 9999 {
		errs = append(errs, fmt.Errorf("cache: provenance created in the year %d", y))
	}
	for what, list := range map[string][]string{"compiler": e.Provenance.Compilers, "source": e.Provenance.Sources} {
		if len(list) > maxSettings {
			errs = append(errs, fmt.Errorf("cache: %d strings %s, above %d", len(list), what, maxSettings))
		}
		for _, s := range list {
			errs = append(errs, checkString(what, s))
		}
	}
	return errors.Join(errs...)
}

// encode returns the manifest.
func (e *Entry) encode() []byte {
	var w textWriter
	w.line(entryHeader)
	e.Factors.write(&w)
	w.line("blob", e.Blob.String(), strconv.FormatInt(e.Size, 10))
	w.line("origin", strconv.Quote(e.Provenance.Origin))
	for _, s := range e.Provenance.Compilers {
		w.line("compiler", strconv.Quote(s))
	}
	for _, s := range e.Provenance.Sources {
		w.line("source", strconv.Quote(s))
	}
	w.line("created", e.Provenance.Created.UTC().Format(timeLayout))
	w.line("took", strconv.FormatInt(int64(e.Provenance.Took), 10))
	return w.seal()
}

// parseEntry parses a manifest. The error is the reason alone.
func parseEntry(data []byte) (*Entry, error) {
	e := &Entry{}
	p := &e.Provenance
	err := parseText(data, entryHeader, func(l *textLine) bool {
		switch l.word {
		case "blob":
			e.Blob, e.Size = l.digest(), l.int()
		case "origin":
			p.Origin = l.quoted()
		case "compiler":
			p.Compilers = append(p.Compilers, l.quoted())
		case "source":
			p.Sources = append(p.Sources, l.quoted())
		case "created":
			p.Created = l.time()
		case "took":
			p.Took = time.Duration(l.int())
		default:
			return e.Factors.parseLine(l)
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
