// Package oci moves modules of a compiled cache between machines as OCI
// artifacts: to and from a registry (Push, Pull), an image layout in a
// directory or a tar (Export, Import), and entry by entry, when they are
// missed (Layer).
//
// # The artifact
//
// One artifact holds some modules and all entries that they use:
//
//	manifest   application/vnd.oci.image.manifest.v1+json
//	           artifactType application/vnd.pwc.cache.v1
//	config     application/vnd.pwc.cache.config.v1+json
//	layers     application/vnd.pwc.cache.program.v1   a program, as package program encodes it
//	           application/vnd.pwc.cache.graph.v1     computation_graph.ir of a module
//
// A layer is one blob as it is: neither packed nor compressed. So a registry
// holds a program once, however many artifacts have it, and a push sends what
// is new. Layers stand in the order of their digests. Contents of no bytes have
// no layer.
//
// The config lists everything else, in JSON without white space, in this order
// of fields:
//
//	{"version":1,                     of the config
//	 "cache_format":1,                cache.FormatVersion
//	 "program_formats":[1],           of the entries, rising
//	 "pipelines":["7 -cse"],          of the entries, by name
//	 "targets":[{"target":"cuda:sm_90","min_driver":"12.0","entries":12,"bytes":34567}],
//	 "bytes":45678,                   of all layers
//	 "modules":[{"name":"toy","hash":"sha256:…","target":"cuda:sm_90",
//	   "graph":{"digest":"sha256:…","size":6789},
//	   "entries":[0,1,2]}],           indices of the list below, rising; modules by cache.Module.ID
//	 "entries":[{"piece":"sha256:…","shape":"s0=[1, 512]","target":"cuda:sm_90","pipeline":"7 -cse",
//	   "externs":"","format":1,       the factors of the key; entries by its sum
//	   "blob":{"digest":"sha256:…","size":1234},
//	   "compiler":"nvrtc 12.8"}]}
//
// All but modules, entries and minimum drivers follows from those, and a config
// is refused unless its bytes are the ones that would be written for what it
// lists: a summary cannot say other than the entries.
//
// Nothing in it is a time, a duration, a path or the name of a machine, and
// lists have one order, so the same modules have the same digest, wherever and
// in whatever order they were compiled. Entries that were pulled name the
// artifact by its digest as their origin.
//
// The annotations of the manifest are those that Red Hat's Model Cache Vault
// gives to images of other caches, under the prefix cache.pwc.image:
// entry-count, cache-size-bytes, summary, format. Nothing here reads them.
//
// # What is verified
//
// Manifest, config and layers are read up to a size that was named before, and
// checked against their SHA-256. Lists are bounded, and memory is taken as bytes
// arrive, not as they are announced. A blob goes into the store only if it is a
// program (package program checks offsets, registers, bounds) for the target of
// its key, and only by cache.Store.Put: nothing that an artifact says becomes
// part of a file name. What is whole in the store is never replaced.
//
// A registry, or whoever sits between, can refuse, delay and withhold. If it is
// asked for a tag it can answer with another artifact, and so decide which
// programs run, within what loading checks: that a program was compiled from
// the piece whose key it is under cannot be seen from outside. If it is asked
// for a digest it can do neither.
//
// Loading proves that programs for the host stay in their buffers, and nothing of
// machine code. So an artifact's machine code is taken only if Options.Trust lists
// the artifact or its repository, or has a key that signed its digest, or if
// Options.Accept takes it. Signatures are cosign's, by key pairs: the image under
// the tag sha256-<hex>.sig, in the registry or the layout.
//
// It cannot have anything read or sent without encryption, unless
// Options.PlainHTTP: redirects, uploads and token services are held to it.
// Credentials do not follow a redirect to another host; the token service that
// a registry names gets those of the registry. A transfer that takes longer than
// Options.Stall and moves less than Options.MinRate ends, and what an artifact
// lists is at most Options.MaxBytes. Keys of JSON are exact.
package oci
