package host

// Parallel calls f once for each part in [0, parts), spread over the device's workers, and
// returns when all calls have returned. Extern ops use it, in Launch or inside
// [Stream.Call]. f must not use a stream, except for [Stream.Interrupted], which it should
// call between long tasks. Parallel allocates nothing; an op that keeps its f for all calls
// allocates nothing either. Once the stream's work must stop (see [Stream.Interrupted]), Parallel
// calls f for no further parts, and the operation that the op is part of fails.
func (s *Stream) Parallel(parts int, f func(part int)) {
	s.dev.pool.run(funcJob(f), int64(parts), &s.lane)
}

// funcJob is Go code as a job. A func is a pointer, so that it becomes a job
// without an allocation.
type funcJob func(part int)

func (f funcJob) run(part int64, _ *lane) { f(int(part)) }
