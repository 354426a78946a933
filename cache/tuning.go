package cache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"path"
	"strconv"
	"time"
)

// TuningKey is what a choice was measured for. Its fields are compared as they
// are: who records decides what they say.
type TuningKey struct {
	Device  string // the GPU's name, "NVIDIA H200"
	Library string // the library and its version, "cublaslt 130100"
	Problem string // what is computed: sizes, dtypes, layout
}

// Tuning is a record of a measurement: which of several ways is fastest on a
// device. It is an entry of its own: no program and no key of one depends on it
// (C3), and without it everything works, only slower.
type Tuning struct {
	TuningKey
	Choice  string        // what to take, in the words of the library's user
	Time    time.Duration // what it took when it was measured
	Before  time.Duration // what is taken without a record took; 0: was not measured
	Created time.Time     // in whole seconds, UTC
}

const (
	tuningHeader = "pwc tuning record 1"
	tuningDomain = "pwc tuning key 1\n"
	tuningDir    = "tuning"
)

// ID returns the id that the record is filed under.
func (k TuningKey) ID() ID {
	w := textWriter{buf: []byte(tuningDomain)}
	k.write(&w)
	return sha256.Sum256(w.buf)
}

func (k TuningKey) write(w *textWriter) {
	w.line("device", strconv.Quote(k.Device))
	w.line("library", strconv.Quote(k.Library))
	w.line("problem", strconv.Quote(k.Problem))
}

func tuningFile(id ID) string { h := id.String(); return path.Join(tuningDir, h[:2], h) }

func (t *Tuning) validate() error {
	errs := []error{checkString("device", t.Device), checkString("library", t.Library), checkString("problem", t.Problem), checkString("choice", t.Choice), checkTime(t.Created)}
	if t.Device == "" || t.Library == "" || t.Problem == "" || t.Choice == "" {
		errs = append(errs, errors.New("cache: a tuning record without device, library, problem or choice"))
	}
	if t.Time < 0 || t.Before < 0 {
		errs = append(errs, errors.New("cache: a tuning record of a negative time"))
	}
	return errors.Join(errs...)
}

func (t *Tuning) encode() []byte {
	var w textWriter
	w.line(tuningHeader)
	t.write(&w)
	w.line("choice", strconv.Quote(t.Choice))
	w.line("time", strconv.FormatInt(int64(t.Time), 10))
	w.line("before", strconv.FormatInt(int64(t.Before), 10))
	w.line("created", t.Created.UTC().Format(timeLayout))
	return w.seal()
}

// parseTuning parses a record. The error is the reason alone.
func parseTuning(data []byte) (*Tuning, error) {
	t := &Tuning{}
	err := parseText(data, tuningHeader, func(l *textLine) bool {
		switch l.word {
		case "device":
			t.Device = l.quoted()
		case "library":
			t.Library = l.quoted()
		case "problem":
			t.Problem = l.quoted()
		case "choice":
			t.Choice = l.quoted()
		case "time":
			t.Time = time.Duration(l.int())
		case "before":
			t.Before = time.Duration(l.int())
		case "created":
			t.Created = l.time()
		default:
			return false
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	if err := t.validate(); err != nil {
		return nil, err
	}
	if !bytes.Equal(t.encode(), data) {
		return nil, errors.New("not in the canonical form")
	}
	return t, nil
}

// tuning reads and checks a record.
func (t *tree) tuning(id ID) (*Tuning, error) {
	r, _, err := t.tuningInfo(id)
	return r, err
}

// tuningInfo is tuning that describes the file too.
func (t *tree) tuningInfo(id ID) (*Tuning, fs.FileInfo, error) {
	name := tuningFile(id)
	data, info, err := t.readInfo(name, maxManifest)
	if err != nil {
		return nil, nil, err
	}
	r, err := parseTuning(data)
	if err != nil {
		return nil, nil, t.damage(name, "%v", err)
	}
	if got := r.ID(); got != id {
		return nil, nil, t.damage(name, "it is the record of key %s", got)
	}
	return r, info, nil
}

// trustedTuning is tuning of a record that is trusted like machine code: it chooses
// which of a library's runs.
func (s *Store) trustedTuning(d root, t *tree, id ID) (*Tuning, error) {
	r, info, err := t.tuningInfo(id)
	if err == nil {
		err = s.vouch(d, t, r.Device, tuningFile(id), info)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Tuning returns the record of a key: from the first layer that has it whole, else
// from the directory; false where there is none. A record that is damaged, or lies
// where machine code is not trusted, is logged and not used. Nothing is written.
func (s *Store) Tuning(key TuningKey) (Tuning, bool) {
	id := key.ID()
	for _, d := range s.roots {
		t := s.openRoot(d)
		if t == nil {
			continue
		}
		r, err := s.trustedTuning(d, t, id)
		t.Close()
		if err == nil {
			return *r, true
		}
		if !errors.Is(err, fs.ErrNotExist) {
			s.unusable(d, err)
		}
	}
	return Tuning{}, false
}

// PutTuning keeps a record, in place of an older one of the same key. An error is a
// *NotCachedError, already logged, unless r cannot be a record at all.
func (s *Store) PutTuning(ctx context.Context, r Tuning) error {
	if r.Created.IsZero() {
		r.Created = time.Now()
	}
	if err := r.validate(); err != nil {
		return err
	}
	t, release, err := s.openWrite(ctx)
	if err == nil {
		err = t.write(tuningFile(r.ID()), r.encode())
		release()
	}
	if err != nil {
		return s.notCached("tuning record "+r.ID().String(), err)
	}
	return nil
}

// Tunings returns all records that are whole and trusted, of layers and the directory, by id;
// where two have one key, the one that a look-up finds. The error is the cause of
// ctx's end.
func (s *Store) Tunings(ctx context.Context) ([]Tuning, error) {
	var out []Tuning
	seen := map[ID]bool{}
	for _, d := range s.roots {
		t := s.openRoot(d)
		if t == nil {
			continue
		}
		err := t.eachHash(ctx, tuningDir, func(h [sha256.Size]byte, _ string) error {
			r, err := s.trustedTuning(d, t, h)
			switch {
			case err != nil:
				s.unusable(d, err)
			case !seen[h]:
				seen[h] = true
				out = append(out, *r)
			}
			return ctx.Err()
		}, s.damaged)
		t.Close()
		if err != nil {
			return nil, context.Cause(ctx)
		}
	}
	return out, nil
}
