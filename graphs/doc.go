// Package graphs captures work of a device into graphs and replays it, as torch.cuda.CUDAGraph
// does, with private pools and random numbers. It refuses replays that would corrupt memory.
//
// A [Session] is one device with its allocator and streams. [Capture] records the work that a
// function issues on a [Recorder]: compiled functions ([Program]), extern ops, copies and fills,
// on one stream or on several that fork and join. [Graph.Replay] runs it again on any stream.
//
// # Ownership
//
// A [Tensor] is a plain value that names memory. Its storage has an owner count, which
// [Tensor.Retain] and [Tensor.Release] change. Use after the last release is [ErrReleased], except
// by a handle of [Tensor.Weak] to a result of a graph. A read of memory that another graph of the pool
// overwrote is [ErrStale].
//
// # Sharing a pool
//
// Graphs that share a pool reuse the memory that is dead when they are captured. A replay is refused
// before the launch (C16) if it would overwrite a storage that has owners and contents ([HeldError]), or
// read a result that another graph has overwritten ([StaleError]). Any other order of replays is allowed.
// Work on two streams that overlaps in memory must be ordered ([UnorderedError]).
package graphs

import "pwc/graphs/internal/store"

// Tensor is a contiguous view of a storage. It is a plain value.
type Tensor = store.Tensor

// Storage is a block of memory with an owner count.
type Storage = store.Storage

// Maker is the writer of a storage, for messages.
type Maker = store.Maker
