// Package train trains modules. [Build] makes the functions of a step as IR: forward, loss,
// backward and optimizer of one batch are one function, which updates its weights in place as
// states; with micro-batches, or [Options.Separate], the optimizer is a second function. [New] compiles
// them with package piecewise, and [Step.Load] loads the weights and captures the functions. [Step.Run]
// copies the batch and enqueues the functions.
//
// A module is trained by a function that returns a loss, f32[]. Its parameters are the batch and
// generators of random numbers, and the f32 weights that it reads are trained. A second result, f32[], is
// the weight of the batch in the means over micro-batches and ranks.
package train
