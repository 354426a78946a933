package graphs

import (
	"errors"

	"pwc/runtime/device"
	"pwc/runtime/mem"
)

// Recording is a captured graph of a stream, with a use of the pool of its addresses. [Graph] is
// built on it. Callers that plan their own memory, such as piecewise, use it directly: it has no
// checks.
type Recording struct {
	graph    device.Graph
	template device.Template // if it is kept
	use      *mem.Scope
	stream   device.Stream // during the capture
}

// Record captures the work that enqueue issues on s, with addresses of pool. After an error the
// stream does not capture, and the pool has no additional use.
func Record(pool *mem.Pool, s device.Stream, mode device.CaptureMode, enqueue func(s device.Stream) error) (*Recording, error) {
	use, err := pool.BeginCapture(s)
	if err != nil {
		return nil, err
	}
	r, err := begin(use, s, mode)
	if err != nil {
		return nil, err
	}
	if err := enqueue(s); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, r.end(false)
}

// begin starts a capture of s. use redirects allocations to the pool, and is released after an error. It
// begins before the capture: while it lasts, a free by another goroutine records no event on s, which would
// become part of the graph.
func begin(use *mem.Scope, s device.Stream, mode device.CaptureMode) (*Recording, error) {
	if err := s.BeginCapture(mode); err != nil {
		return nil, errors.Join(err, use.Release())
	}
	return &Recording{use: use, stream: s}, nil
}

// end ends the capture. After an error the recording is closed.
func (r *Recording) end(template bool) (err error) {
	if template {
		if r.template, err = r.stream.EndTemplate(); err == nil {
			r.graph, err = r.template.Instantiate()
		}
	} else {
		r.graph, err = r.stream.EndCapture()
	}
	if err = errors.Join(err, r.use.End()); err != nil {
		return errors.Join(err, r.Close())
	}
	r.stream = nil
	return nil
}

// Graph returns the executable graph.
func (r *Recording) Graph() device.Graph { return r.graph }

// Close drops the recording and releases the use of the pool, once. It ends a running capture.
func (r *Recording) Close() error {
	if r.use == nil {
		return nil
	}
	var errs []error
	if r.graph != nil {
		errs = append(errs, r.graph.Close())
	}
	if r.template != nil {
		errs = append(errs, r.template.Close())
	}
	if r.stream != nil && r.stream.Capturing() {
		// An invalid capture ends with an error here, which is dropped: the caller has the first one.
		if g, err := r.stream.EndCapture(); err == nil {
			errs = append(errs, g.Close())
		}
	}
	errs = append(errs, r.use.Release())
	*r = Recording{}
	return errors.Join(errs...)
}
