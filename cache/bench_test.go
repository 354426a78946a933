package cache

import (
	"fmt"
	"testing"
)

// benchCache returns a store of 10,000 entries with programs of 16 KiB, in 300
// modules of 33 entries and the rest loose, in memory if possible.
func benchCache(b *testing.B) *Store {
	b.Helper()
	s := New(Options{Dir: fastTemp(b)})
	t, err := s.dir.create()
	if err != nil {
		b.Fatal(err)
	}
	defer t.Close()
	blob := make([]byte, 16<<10)
	ids := make([]ModuleEntry, 10_000)
	for i := range ids {
		copy(blob, fmt.Sprintf("%08d", i))
		e := &Entry{Key: testKey(i), Blob: DigestOf(blob), Size: int64(len(blob)), Provenance: testProvenance}
		ids[i] = ModuleEntry{e.Key.id(), e.Size}
		for name, data := range map[string][]byte{blobFile(e.Blob): blob, keyFile(ids[i].ID): e.encode()} {
			if err := t.write(name, data); err != nil {
				b.Fatal(err)
			}
		}
	}
	for i := range 300 {
		m := testModule(fmt.Sprint("model-", i), 0)
		m.Entries = ids[33*i : 33*(i+1)]
		if err := s.PutModule(b.Context(), m); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func Benchmark10k(b *testing.B) {
	s := benchCache(b)
	b.Run("Get", func(b *testing.B) {
		i := 0
		for b.Loop() {
			if _, ok, err := s.Get(b.Context(), testKey(i)); !ok {
				b.Fatal(err)
			}
			i = (i + 7919) % 10_000
		}
		b.SetBytes(16 << 10)
	})
	b.Run("Miss", func(b *testing.B) {
		for b.Loop() {
			if _, ok, _ := s.Get(b.Context(), testKey(10_000)); ok {
				b.Fatal("hit")
			}
		}
	})
	b.Run("Modules", func(b *testing.B) {
		for b.Loop() {
			if list, err := s.Modules(b.Context()); err != nil || len(list) != 300 {
				b.Fatal(len(list), err)
			}
		}
	})
	b.Run("Verify", func(b *testing.B) {
		for b.Loop() {
			v, err := s.Verify(b.Context())
			if err != nil || len(v.Problems) > 0 {
				b.Fatal(v, err)
			}
			b.SetBytes(v.Bytes)
		}
	})
	b.Run("Explain", func(b *testing.B) {
		keys := make([]Key, 100)
		for i := range keys {
			keys[i] = testKey(i)
			keys[i].Pipeline = "8"
		}
		for b.Loop() {
			if _, err := s.Explain(b.Context(), keys...); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("GC", func(b *testing.B) {
		for b.Loop() {
			if r, err := s.GC(b.Context(), GCOptions{MaxBytes: 1 << 40}); err != nil || r.Entries > 0 {
				b.Fatal(r, err)
			}
		}
	})
}

// BenchmarkPut stores one entry, with its syncs, in the file system of TMPDIR.
func BenchmarkPut(b *testing.B) {
	s := New(Options{Dir: b.TempDir()})
	blob := make([]byte, 64<<10)
	i := 0
	for b.Loop() {
		copy(blob, fmt.Sprintf("%08d", i))
		if err := s.Put(b.Context(), testKey(i), blob, testProvenance); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.SetBytes(int64(len(blob)))
}

// BenchmarkLock takes and releases an uncontended lock.
func BenchmarkLock(b *testing.B) {
	s := New(Options{Dir: fastTemp(b)})
	for b.Loop() {
		unlock, err := s.Lock(b.Context(), testKey(0))
		if err != nil {
			b.Fatal(err)
		}
		unlock()
	}
}
