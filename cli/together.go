package cli

import (
	"errors"
	"runtime"
	"sync"
)

// together calls f for ranks 0 to n-1 of the world at the same time, for rank 0 on this goroutine, and waits
// for all of them. The groups of a rank that fails end, so that no other waits for it.
func (w *world) together(n int, f func(rank int) error) error {
	if n == 1 {
		return f(0)
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
