// Package optim has optimizers as IR. An [Optimizer] emits the update of a weight from its
// gradient and the optimizer's states, by PyTorch's formulas. The learning rate and the count of
// steps are values of the function, so one compiled and captured function serves all steps.
//
// A [Schedule] emits the factor of the learning rate from the count of steps, [ClipNorm] the
// clipping of gradients by their global norm, and a [Scaler] dynamic loss scaling. All of it is
// computed in f32, except that counters of steps are i32.
package optim
