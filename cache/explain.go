package cache

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"
)

// Explanation is why a look-up hits or misses.
type Explanation struct {
	Key     Key
	Hit     bool    // a directory has a whole entry, trusted if it is machine code
	Dir     string  // of a hit: the directory that has the entry
	Damaged []error // unusable files of the entry

	// Untrusted has an *UntrustedError for each directory with a whole entry whose machine code
	// is not trusted.
	Untrusted []error

	Nearest *Entry   // of a miss: the nearest entry; nil: the cache has no whole manifest
	Changes []Change // from Nearest to Key; empty if Nearest is the damaged or untrusted entry of Key
}

// Explain looks up keys, and for those that miss it finds the nearest entry of all layers and the
// directory: first among those of the same piece, then by the number of different factors, then
// the newest. It reads the entries of the keys, and every manifest of a directory unless each key
// hits in that directory or one before it. It writes nothing, and logs directories that it cannot
// list. The error is the cause of ctx's end.
func (s *Store) Explain(ctx context.Context, keys ...Key) ([]Explanation, error) {
	out := make([]Explanation, len(keys))
	nearest := make([]rank, len(keys))
	for i, k := range keys {
		out[i].Key = k
	}
	for _, d := range s.roots {
		t := s.openRoot(d)
		if t == nil {
			continue
		}
		err := s.explainTree(ctx, t, d, out, nearest)
		t.Close()
		if err != nil {
			return nil, context.Cause(ctx)
		}
	}
	for i := range out {
		e := &out[i]
		if e.Hit {
			e.Nearest = nil
		} else if e.Nearest != nil {
			e.Changes = e.Key.Changes(e.Nearest.Key)
		}
	}
	return out, nil
}

func (s *Store) explainTree(ctx context.Context, t *tree, d root, out []Explanation, nearest []rank) error {
	for i := range out {
		if err := ctx.Err(); err != nil {
			return err
		}
		e := &out[i]
		_, err := s.getTrusted(d, t, e.Key)
		_, untrusted := errors.AsType[*UntrustedError](err)
		switch {
		case err == nil && !e.Hit:
			e.Hit, e.Dir = true, d.dir
		case untrusted:
			e.Untrusted = append(e.Untrusted, err)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			e.Damaged = append(e.Damaged, err)
		}
	}
	if !slices.ContainsFunc(out, func(e Explanation) bool { return !e.Hit }) {
		return nil
	}
	return t.eachHash(ctx, keysDir, func(h [32]byte, name string) error {
		entry, err := t.entry(h)
		if err != nil {
			return nil // damage of another entry is irrelevant
		}
		for i := range out {
			r := rank{otherPiece: out[i].Key.Piece != entry.Key.Piece, changes: out[i].Key.distance(entry.Key), created: entry.Created, id: h}
			if out[i].Nearest == nil || r.compare(&nearest[i]) < 0 {
				out[i].Nearest, nearest[i] = entry, r
			}
		}
		return nil
	}, s.warnDamaged)
}

// rank is the distance of an entry from a key.
type rank struct {
	otherPiece bool
	changes    int
	created    time.Time
	id         ID
}

// compare is negative if r is nearer than q.
func (r *rank) compare(q *rank) int {
	if r.otherPiece != q.otherPiece {
		if q.otherPiece {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(r.changes, q.changes), q.created.Compare(r.created), bytes.Compare(r.id[:], q.id[:]))
}
