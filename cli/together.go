package cli

import (
	"errors"
	"runtime"
	"sync"
)

// together calls f concurrently for the n devices of this process, for the first one in this goroutine, and waits
// for all calls. If a call fails, the groups of its device end, so that no other device waits for it.
func (w *world) together(n int, f func(rank int) error) error {
	if n == 1 {
		err := f(0)
		if err != nil && w.process != nil {
			w.fail(0, err)
		}
		return err
	}
	errs := make([]error, n)
	call := func(rank int) {
		if errs[rank] = f(rank); errs[rank] != nil {
			w.fail(rank, errs[rank])
		}
	}
	var all sync.WaitGroup
	for rank := 1; rank < n; rank++ {
		all.Go(func() {
			runtime.LockOSThread()
			call(rank)
		})
	}
	call(0)
	all.Wait()
	return errors.Join(errs...)
}
