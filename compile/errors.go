package compile

import (
	"errors"
	"fmt"

	"pwc/ir"
)

// PassError is an error in a pass: what a pass of [Options] returned or left, or a
// fault of the pipeline itself. What a model may not ask for is no PassError, but an
// [ir.Error] at a node of the piece.
type PassError struct {
	Pass string
	User bool  // a pass of Options
	Err  error // an [ir.Error] or [ir.ErrorList] in it has positions of the piece
}

// Error names the pass, behind the position of each error that has one.
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

// eachError applies f to an error with a position, or to all of a list. It returns err
// itself and false for another one.
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

// nodeError is an error at a node of the input piece: of the model, and not of the
// pass that finds it.
type nodeError struct {
	origin int32
	msg    string
}

// Error is the message alone; the driver adds the position.
func (e *nodeError) Error() string { return e.msg }

// callError is an error of the arguments of Compile.
type callError struct{ error }

// fault returns the error of a row as the caller of Compile reads it.
func (s *state) fault(p pass, err error) error {
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
	// Nodes of a function in between are not those of the piece, but have their IDs.
	return (&PassError{Pass: p.Name, User: p.user, Err: err}).Each(func(e *ir.Error) *ir.Error {
		if e.ID > 0 {
			return s.piece.ErrorAt(s.piece.Funcs[0], int(e.ID)-1, "%s", e.Msg)
		}
		c := *e
		c.Node = -1
		return &c
	})
}
