// Package oci moves modules of a compiled cache between machines as OCI
// artifacts: to and from a registry (Push, Pull), and to and from an image
// layout in a directory or a tar (Export, Import). A store of Layer fetches
// single entries from a registry when the local store misses them.
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
// A layer is one blob, neither packed nor compressed. So a registry stores a
// program once for all artifacts that have it, and a push sends new programs
// only. Layers are sorted by digest. An empty blob has no layer.
//
// The config lists everything else, as JSON without white space, in this order
// of fields:
//
//	{"version":1,                     of the config
//	 "cache_format":1,                cache.FormatVersion
//	 "program_formats":[7],           of the entries, ascending
//	 "pipelines":["7 -cse"],          of the entries, sorted
//	 "targets":[{"target":"cuda:sm_90","min_driver":"12.0","entries":12,"bytes":34567}],
//	 "bytes":45678,                   of all layers
//	 "modules":[{"name":"toy","hash":"sha256:…","target":"cuda:sm_90",
//	   "graph":{"digest":"sha256:…","size":6789},
//	   "entries":[0,1,2]}],           indices of the list below, ascending; modules sorted by cache.Module.ID
//	 "entries":[{"piece":"sha256:…","shape":"s0=[1, 512]","target":"cuda:sm_90","pipeline":"7 -cse",
//	   "externs":"","format":7,       the factors of the key; entries sorted by its sum
//	   "blob":{"digest":"sha256:…","size":1234},
//	   "compiler":"nvrtc 12.8"}]}
//
// Modules, entries and minimum drivers determine all other fields. A reader
// computes the config again from them and refuses one that differs in any byte,
// so the summary cannot contradict the entries.
//
// The config contains no time, duration, path or machine name, and each list
// has one order. So the same modules from the same compilers, with the same
// minimum drivers, have the same digest on every machine. The origin of an entry that was
// pulled names the artifact, with its digest.
//
// The annotations of the manifest are those that Red Hat's Model Cache Vault
// gives to images of other caches, under the prefix cache.pwc.image:
// entry-count, cache-size-bytes, summary, format. This package does not read
// them.
//
// # What is verified
//
// The reader knows the size of the manifest, the config and each layer before
// it reads them, accepts no other size, and checks their SHA-256. Lists are
// bounded, and memory grows with the bytes that arrive, not with the announced
// size. The blob of an entry enters the store only if it is a program (package
// program checks offsets, registers, bounds) for the target of its key. Only
// cache.Store.Put and PutModule write: no text of an artifact becomes part of a
// file name. An entry that the store returns is never replaced; damaged and
// untrusted ones are fetched again.
//
// A registry, or an attacker between it and this machine, can refuse, delay and
// withhold. If the reference is a tag, it can answer with another artifact, and
// so choose the programs that run, within the checks of loading: nothing proves
// that a program was compiled from the piece of its key. If the reference is a
// digest, it cannot answer with another artifact.
//
// Loading proves that programs for the host stay within their buffers. It proves
// nothing about machine code. So machine code of an artifact is taken only if
// Options.Trust lists the artifact or its repository, or has a key that signed
// its digest, or if Options.Accept takes it. Signatures are cosign's, by key
// pairs: the image under the tag sha256-<hex>.sig, in the registry or the layout.
//
// Without Options.PlainHTTP nothing is read or sent without encryption, also for
// redirects, uploads and token services. Credentials do not follow a redirect to
// another host; the token service that a registry names gets the credentials of
// the registry. A transfer fails if it moves less than Options.MinRate over
// Options.Stall. At most Options.MaxBytes are taken from an artifact. Keys of
// JSON are exact.
package oci
