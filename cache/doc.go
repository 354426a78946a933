// Package cache keeps compiled programs on disk. A piece is compiled once and loaded by every
// process, machine and image that shares the directory.
//
// # Structure
//
// The cache is an action map (key → manifest) and a content store (SHA-256 → blob). A key is an
// allow-list of factors ([Key]) that any machine can compute without a compiler or a device. Its
// hash names the manifest. A manifest has the key's factors, the digest of its blob, and
// provenance. A [Module] is the root over the entries of one model: listing, pinning and
// collection work on modules.
//
// # Layout
//
//	DIR/v1/                          format version 1; other versions are never touched
//	  keys/ab/<64 hex>               manifest of the entry with that key
//	  blobs/cd/<64 hex>              contents with that SHA-256
//	  modules/<64 hex>/manifest      a module: name, hash, target, keys
//	  modules/<64 hex>/computation_graph.ir
//	  tuning/ef/<64 hex>             a tuning record
//	  pins/<64 hex>                  empty; the module of that id is never collected
//	  locks/<64 hex>                 empty; held while a key is compiled or fetched, or a module written
//	  locks/gc                       empty; shared by writers, exclusive to collection
//	  tmp/<32 hex>                   files being written
//
// A manifest of an entry, with explanations on the right:
//
//	pwc cache entry 1
//	piece "<64 hex>"
//	shape "s0=[1, 512]"
//	target "host"
//	pipeline "…"
//	externs "…"
//	format "7"                       program.FormatVersion
//	blob sha256:… 12345              digest, bytes
//	compiler "nvrtc 12.8"            from here on provenance
//	origin "@forward item 2 (model.layers.0.mlp)"
//	duration 1500000                 nanoseconds
//	created 2026-01-02T03:04:05Z
//	sum sha256:…                     of all bytes above
//
// and of a module:
//
//	pwc cache module 1
//	name "toy"
//	hash sha256:…                    ir.Module.Hash
//	target "host"
//	entry <64 hex> 12345             id of a key and bytes of its blob, by id
//	graph sha256:… 6789              computation_graph.ir: digest, bytes
//	created 2026-01-02T03:04:05Z
//	sum sha256:…
//
// and a tuning record, whose id is the SHA-256 of "pwc tuning key 1\n" and the lines
// from device to problem:
//
//	pwc tuning record 1
//	device "NVIDIA H200"
//	library "cublaslt 130100"
//	problem "…"
//	choice "…"
//	time 1500                        nanoseconds
//	before 2500
//	created 2026-01-02T03:04:05Z
//	sum sha256:…
//
// Strings are in Go's double quotes. A file that differs from the encoder's text of its value is
// damaged. The id of a key is the SHA-256 of "pwc cache key 1\n" and the lines from piece to
// format.
//
// # Trust
//
// All bytes are compared with their hash before use. File names are constants or hex digits, opened
// inside the directory (os.Root), so no content of a file leads out of it. Anything but a regular
// file is damage. A damaged file is a miss with a warning that names the file and the reason. The next
// Put, PutModule or PutTuning that would write the file replaces it in Options.Dir. Hashes detect
// damage, not intent: whoever can write the directory decides which programs run. Loading proves that
// programs for the host stay in their buffers. Nothing is proven about machine code. It is used from
// Options.Dir if the directory belongs to the user or root and only they and its group can write it,
// from layers that only the user and root can write, both down to the manifest, and from directories
// that [Trust] lists. Elsewhere it is a miss with an [UntrustedError].
//
// # Faults
//
// Files are written under a temporary name, synced and renamed, so a reader finds a whole file or
// none, whenever the writer is killed. Files of killed writers are removed later, because their
// lock is free. Locks save work, and correctness does not depend on them. No fault of the cache
// fails a compilation: if something could not be stored, the cache logs and returns a
// [*NotCachedError].
package cache
