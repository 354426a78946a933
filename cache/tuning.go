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

// TuningKey identifies a measured choice. Its fields are compared as strings; the recorder
// defines their contents.
type TuningKey struct {
	Device  string // the GPU's name, "NVIDIA H200"
	Library string // of a GEMM: the library and its version, "cublaslt 130100"; of collectives: "nccl"
	Problem string // of a GEMM: sizes, dtypes, layout; of collectives: the number of ranks
}

// Tuning is a record of a measurement: the fastest choice on a device. It is a separate entry: no
// program and no key depends on it (C3). Without it programs may run slower, and a frozen backend
// refuses GEMMs of a library that have no record (C8).
type Tuning struct {
	TuningKey
	Choice  string        // what is fastest, in a form that the recorder defines
	Time    time.Duration // its measured time
	Before  time.Duration // of a GEMM: the time of the library's first algorithm; of collectives: over peer memory; 0: not measured
	Created time.Time     // in whole seconds, UTC
}

const (
	tuningHeader = "pwc tuning record 1"
	tuningDomain = "pwc tuning key 1\n"
	tuningDir    = "tuning"
)

// ID returns the id of the record's file.
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

// parseTuning parses a record. The error is only the reason.
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

// tuningInfo is tuning, and returns the file's information.
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

// trustedTuning is tuning for trusted records. A record needs the trust of machine code, because
// it selects machine code of a library.
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

// Tuning returns the record of a key, from the first layer with a whole record, otherwise from
// the directory; false if there is none. It logs and ignores damaged and untrusted records. It
// writes nothing.
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

// PutTuning stores a record, with the present time if Created is zero, and replaces one with the same key.
// An error is a *NotCachedError, already logged, unless r is invalid. ctx bounds the wait for a
// running collection.
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

// Tunings returns all whole and trusted records, in the order of layers and the directory, and by id in
// each. Of two records with one key it returns the one that Tuning finds. The error is the cause of ctx's end.
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
			case errors.Is(err, fs.ErrNotExist): // removed meanwhile
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
