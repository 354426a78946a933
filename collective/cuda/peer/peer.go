// Package peer holds the CUDA C of collectives over peer memory, for the routines of package
// collective/cuda and for kernels that compute an all_reduce themselves. peer.cu describes the
// protocol. Both kinds of kernels share the receive buffers of a group and their counters of rounds.
package peer

import (
	_ "embed"
	"fmt"
	"math"
	"strings"
)

//go:embed peer.cu
var source string

// MaxRanks is the most ranks that kernels reach over peer memory: GPUs of one host.
const MaxRanks = 8

// Sizes of peer.cu. collective/cuda.TestConstants compares the constants of both.
const (
	Threads     = 512 // of a block of a routine, at most
	Depth       = 2   // packets of a thread in a round, at most
	Packets     = Threads * Depth
	Blocks      = 128 // of a launch, at most
	Parities    = 2
	Protocols   = 2
	HeaderBytes = 4096
	PacketBytes = 16
)

// Bounds that were measured on two H100 over NVLink (docs/appendix/measurements.md).
const (
	// LatencyBytes is the most bytes of a rank that LL sends faster than LL128.
	LatencyBytes = 64 << 10

	// TwoShotBytes is how many bytes more than a two-shot a one-shot may send: as many as NVLink moves
	// in the time of the second round of a two-shot.
	TwoShotBytes = 512 << 10
)

// OneShotBytes returns the largest size, in bytes, of an all_reduce that is faster in one round than in two.
func OneShotBytes(ranks int) int64 {
	if ranks <= 2 {
		return math.MaxInt64
	}
	r := int64(ranks)
	return TwoShotBytes * r / ((r - 1) * (r - 2))
}

// Routine returns the source of a routine's kernel: C++17 without headers. algorithm, protocol and
// dtype are names of peer.cu.
func Routine(entry string, ranks int, algorithm, protocol, dtype string) string {
	return fmt.Sprintf("#define RANKS %d\n#line 1 \"peer.cu\"\n%s\nENTRY(%s, %s, %s, %s)\n", ranks, source, entry, algorithm, protocol, dtype)
}

// Inline returns the source as a namespace, peers, for a kernel that calls peers::all_reduce.
func Inline(ranks int) string {
	return fmt.Sprintf("#define RANKS %d\nnamespace peers {\n%s}\n#undef RANKS\n", ranks, source)
}

// Params are the last parameters of a kernel that calls peers::all_reduce: the values that
// [Values] returns. Their names are those that [Call] uses.
func Params() []string {
	out := []string{"unsigned int *peer_control", "unsigned long long peer_timeout", "unsigned long long peer_rank"}
	for i := range MaxRanks {
		out = append(out, fmt.Sprintf("char *recv%d", i))
	}
	return out
}

// ValueCount is the number of [Params].
const ValueCount = 3 + MaxRanks

// Values returns the values of [Params] on a rank: the address of the words that the host shares with
// kernels, the timeout of a wait for a packet in nanoseconds, the rank, and the addresses of the
// receive buffers, from that of this rank on: parameter recv<i> is that of rank + i, modulo the number
// of ranks. buffers has the addresses by rank.
func Values(control, timeout uint64, rank int, buffers []uint64) []uint64 {
	out := make([]uint64, ValueCount)
	out[0], out[1], out[2] = control, timeout, uint64(rank)
	for i := range buffers {
		out[3+i] = buffers[(rank+i)%len(buffers)]
	}
	return out
}

// Call returns the statement that sums a block's part over all ranks: bytes of src from offset on,
// to the same place in dst. most is the largest number of bytes of a block. All threads of the block
// execute the statement; afterwards each of them may read the sums.
func Call(dtype, dst, src, offset, bytes string, most int64) string {
	var args []string
	for _, p := range Params() {
		args = append(args, strings.TrimLeft(p[strings.LastIndexByte(p, ' ')+1:], "*"))
	}
	return fmt.Sprintf("peers::all_reduce<peers::%s>((char *)%s + %s, (char *)%s + %s, %s, %d, %s);",
		strings.ToUpper(dtype), dst, offset, src, offset, bytes, most, strings.Join(args, ", "))
}
