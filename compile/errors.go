package compile

import (
	"errors"
	"fmt"

	"pwc/ir"
)

// PassError is an error of a pass: a pass of [Options] returned an error or an invalid
// function, or the pipeline or the backend has a bug. An error in the model, or of the backend at
// a kernel, is an [ir.Error] at a node of the piece instead.
type PassError struct {
	Pass string
	User bool  // a pass of Options
	Err  error // an [ir.Error] or [ir.ErrorList] has positions of the piece
}

// Error returns the error with the name of the pass, after the position if it has one.
func (e *PassError) Error() string {
	what := "internal error in pass " + e.Pass + ": "
	if e.User {
		what = "pass " + e.Pass + ": "
	}
	if named, ok := eachError(e.Err, func(at *ir.Error) *ir.Error {
		c := *at
		c.Msg = what + at.Msg
		return &c
	}); ok {
		return named.Error()
	}
	return what + fmt.Sprint(e.Err)
}

// Unwrap returns Err.
func (e *PassError) Unwrap() error { return e.Err }

// Each returns the error with f applied to its errors with positions.
func (e *PassError) Each(f func(*ir.Error) *ir.Error) *PassError {
	err, _ := eachError(e.Err, f)
	return &PassError{Pass: e.Pass, User: e.User, Err: err}
}

// eachError applies f to an [ir.Error], or to all of an [ir.ErrorList]. It returns err and
// false for other errors.
func eachError(err error, f func(*ir.Error) *ir.Error) (error, bool) {
	switch err := err.(type) {
	case *ir.Error:
		return f(err), true
	case ir.ErrorList:
		out := make(ir.ErrorList, len(err))
		for i, e := range err {
			out[i] = f(e)
		}
		return out, true
	}
	return err, false
}

// nodeError is an error in the model, or of the backend, at a node of the input piece. It is no
// error of the pass that reports it.
type nodeError struct {
	origin int32
	msg    string
}

// Error is the message alone; the driver adds the position.
func (e *nodeError) Error() string { return e.msg }

// callError is an error of the arguments of Compile.
type callError struct{ error }

// passError returns the error of a pass in the form that Compile returns.
func (s *state) passError(p pass, err error) error {
	var at *nodeError
	var call callError
	switch {
	case s.ctx.Err() != nil && errors.Is(err, s.ctx.Err()):
		return err
	case errors.As(err, &at):
		return s.piece.ErrorAt(s.piece.Funcs[0], int(at.origin), "%s", at.msg)
	case errors.As(err, &call):
		return call.error
	}
	// Nodes of a rewritten function are not those of the piece, but have their IDs.
	return (&PassError{Pass: p.Name, User: p.user, Err: err}).Each(func(e *ir.Error) *ir.Error {
		if e.ID > 0 {
			return s.piece.ErrorAt(s.piece.Funcs[0], int(e.ID)-1, "%s", e.Msg)
		}
		c := *e
		c.Node = -1
		return &c
	})
}
