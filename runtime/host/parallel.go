package host

// Parallel runs f once for each part in [0, parts), spread over the device's
// workers, and returns when all are done. Extern ops compute with it, at once or
// inside [Stream.Call]; f must not use a stream but for [Stream.Interrupted], which it asks
// between tasks that take long. It allocates nothing: an op keeps its f. Once the stream's work
// must stop (see [Stream.Interrupted]) Parallel runs no further parts, and the operation that the
// op is part of fails.
func (s *Stream) Parallel(parts int, f func(part int)) {
	s.dev.pool.run(funcJob(f), int64(parts), &s.lane)
}

// funcJob is Go code as a job. A func is a pointer, so that it becomes a job
// without an allocation.
type funcJob func(part int)

func (f funcJob) run(part int64, _ *lane) { f(int(part)) }
