package train

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"pwc/checkpoint"
	"pwc/ir"
	"pwc/runtime/device"
	"pwc/safetensors"
)

// Load allocates the memory of the plan, captures the functions, and fills the states: weights
// from a checkpoint, learning rate and scale from the options, states of the module with their initial
// values, and those of the optimizer with zeros. To resume a run, call [Step.Restore] after Load.
func (s *Step) Load(ctx context.Context, weights safetensors.Source) error {
	if err := checkpoint.Check(s.program.source, weights); err != nil {
		return err
	}
	if err := s.backend.Load(ctx, weights, nil); err != nil {
		return err
	}
	for i := range s.slots {
		var err error
		if s.slots[i].memory, err = s.dev.AllocHost(4); err != nil {
			return err
		}
		if s.slots[i].copied, err = device.NewFence(s.dev); err != nil {
			return err
		}
	}
	if err := errors.Join(s.backend.Warmup(ctx), s.backend.Capture(ctx), s.backend.Seal()); err != nil {
		return err
	}
	if err := s.loadWeights(weights); err != nil {
		return err
	}
	o := &s.program.options
	lr := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(o.LearningRate)))
	if err := s.write(stateLR, lr); err != nil {
		return err
	}
	if o.Scaler == nil {
		return nil
	}
	return s.write(stateScale, binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(o.Scaler.Initial))))
}

// loadWeights fills the states that are weights.
func (s *Step) loadWeights(src safetensors.Source) error {
	if src == nil {
		return errors.New("train: no checkpoint with the weights is given")
	}
	var errs []error
	for _, w := range s.program.Weights {
		data, err := readWeight(src, w)
		if err == nil {
			err = s.write(w.Name, data)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// readWeight returns the bytes of a weight, computed from tensors of a checkpoint.
func readWeight(src safetensors.Source, w *ir.Weight) (data []byte, err error) {
	err = safetensors.Guard(src, func() error {
		v, err := checkpoint.Compute(src, w)
		if err != nil {
			return err
		}
		data = slices.Concat(v.Parts...)
		return nil
	})
	return data, err
}

// write fills a state and waits for the copy.
func (s *Step) write(state string, data []byte) error {
	buf, err := s.backend.State(state)
	if err != nil {
		return err
	}
	if int64(len(data)) != buf.Size {
		return fmt.Errorf("train: state @%s has %d bytes, got %d", state, buf.Size, len(data))
	}
	if len(data) == 0 {
		return nil
	}
	if err := s.backend.Stream().CopyToDevice(buf, data); err != nil {
		return err
	}
	return s.backend.Stream().Synchronize()
}

// State waits for the enqueued steps and returns the bytes of a state: of a weight by its name,
// or of another state of the program's module.
func (s *Step) State(name string) ([]byte, error) {
	buf, err := s.backend.State(name)
	if err != nil || buf.Size == 0 {
		return nil, err
	}
	out := make([]byte, buf.Size)
	if err := s.backend.Stream().CopyToHost(out, buf); err != nil {
		return nil, err
	}
	return out, s.backend.Stream().Synchronize()
}

// SetLearningRate sets the learning rate before the schedule, for the following steps.
func (s *Step) SetLearningRate(lr float64) error {
	if !(lr >= 0) {
		return fmt.Errorf("train: a learning rate of %g, want at least 0", lr)
	}
	return s.write(stateLR, binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(lr))))
}

// trained returns the bytes of the weights, in the order of Program.Weights.
func (s *Step) trained() ([][]byte, error) {
	out := make([][]byte, len(s.program.Weights))
	for i, w := range s.program.Weights {
		var err error
		if out[i], err = s.State(w.Name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// CanSave returns an error if the tensors of src cannot be computed from the weights. Call it
// before training.
func (s *Step) CanSave(src safetensors.Source) error {
	_, err := checkpoint.Invert(src, s.program.Weights, make([][]byte, len(s.program.Weights)))
	return err
}

// Weights returns the tensors of a checkpoint with the current weights. src is the loaded
// checkpoint. Tensors of src from which no trained weight is computed are returned unchanged, with
// src's bytes. Tensors that the module declares equal to another one are left out.
func (s *Step) Weights(src safetensors.Source) ([]safetensors.Tensor, error) {
	if src == nil {
		return nil, errors.New("train: no checkpoint is given whose tensors are to be written")
	}
	data, err := s.trained()
	if err != nil {
		return nil, err
	}
	out, err := checkpoint.Invert(src, s.program.Weights, data)
	if err != nil {
		return nil, err
	}
	for _, name := range src.Names() {
		written := slices.ContainsFunc(out, func(t safetensors.Tensor) bool { return t.Name == name })
		equal := slices.ContainsFunc(s.program.source.Unread, func(u *ir.Unread) bool { return u.Equal != "" && u.Name == name })
		if written || equal {
			continue
		}
		t, err := src.Tensor(name)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// optimizerTensors returns the states that a checkpoint keeps other than weights, by their names in
// files.
func (s *Step) optimizerTensors() ([]safetensors.Tensor, error) {
	var out []safetensors.Tensor
	for _, st := range s.program.kept() {
		data, err := s.State(st.Name)
		if err != nil {
			return nil, err
		}
		buf := safetensors.Tensor{Name: fileName(st.Name), DType: st.Type.DType, Data: data}
		for _, d := range st.Type.Shape {
			n, _ := d.Const()
			buf.Shape = append(buf.Shape, n)
		}
		out = append(out, buf)
	}
	return out, nil
}

// kept returns the states of a checkpoint other than weights. The learning rate is an option, and the
// sums over micro-batches are 0 between steps, so a run can resume with another rate and another number
// of micro-batches.
func (p *Program) kept() []*ir.State {
	var out []*ir.State
	for _, st := range p.Module.States {
		weight := slices.ContainsFunc(p.Weights, func(w *ir.Weight) bool { return st.Name == w.Name })
		if !weight && st.Name != stateLR && !p.isSum(st.Name) {
			out = append(out, st)
		}
	}
	return out
}

// isSum reports whether a state is a sum over micro-batches.
func (p *Program) isSum(state string) bool {
	return state == stateLoss || state == stateWeight ||
		slices.ContainsFunc(p.Weights, func(w *ir.Weight) bool { return state == accumulated(w.Name) })
}

// clearSums sets the sums over micro-batches to 0, so that the next step does not add to those of a
// step that failed.
func (s *Step) clearSums() error {
	var errs []error
	for _, st := range s.program.Module.States {
		if s.program.isSum(st.Name) {
			errs = append(errs, s.write(st.Name, make([]byte, bytesOf(st.Type))))
		}
	}
	return errors.Join(errs...)
}

// fileName returns the name of a state in a file: "exp_avg.wte.weight", "step"; "state.NAME" for
// a state of the original module.
func fileName(state string) string {
	if name, ok := strings.CutPrefix(state, "train."); ok {
		return name
	}
	return "state." + state
}
