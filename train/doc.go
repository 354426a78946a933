// Package train trains modules. [Build] makes the functions of a step as IR: forward, loss,
// backward and optimizer of one batch are one function, whose weights are states that it
// updates in place. [New] compiles, loads and captures them with package piecewise, and
// [Step.Run] is one launch of the captured graph behind the copy of the batch.
//
// A module says what is trained by a function that returns a loss, f32[]. Its parameters are the
// batch, the weights that it reads are trained. A second result, f32[], is the weight of the batch in the means over
// micro-batches and ranks.
package train
