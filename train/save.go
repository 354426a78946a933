package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"pwc/internal/openfile"
	"pwc/safetensors"
)

// Files of a checkpoint of a run.
const (
	ModelFile     = safetensors.SingleFile  // the weights, under transformers' name
	OptimizerFile = "optimizer.safetensors" // states of the optimizer, and the progress of the run
)

// maxCopied bounds the bytes of a file that is copied into a checkpoint.
const maxCopied = 64 << 20

// formatVersion is the version of the optimizer file.
const formatVersion = "1"

// Save writes a checkpoint of the run to a new directory: the weights, which transformers and pwc
// read, and the states of the optimizer. It also copies files, such as the config. The directory
// appears with all of its files or not at all. src is the loaded checkpoint.
func (s *Step) Save(dir string, src safetensors.Source, files ...string) (err error) {
	dir = filepath.Clean(dir) // filepath.Dir("run/") is "run", not the parent of run
	weights, err := s.Weights(src)
	if err != nil {
		return err
	}
	states, err := s.optimizerTensors()
	if err != nil {
		return err
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(parent, filepath.Base(dir)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	err = safetensors.Guard(src, func() error { // tensors that are not trained have src's bytes
		return safetensors.Write(filepath.Join(tmp, ModelFile), weights, map[string]string{"format": "pt"})
	})
	if err != nil {
		return err
	}
	if err := safetensors.Write(filepath.Join(tmp, OptimizerFile), states, s.metadata()); err != nil {
		return err
	}
	if err := CopyFiles(tmp, files...); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// CopyFiles copies files that belong to weights, such as a config, to a directory. A file larger than
// 64 MiB is an error.
func CopyFiles(dir string, files ...string) error {
	for _, name := range files {
		data, err := openfile.Read(name, maxCopied)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (s *Step) metadata() map[string]string {
	return map[string]string{
		"pwc-train": formatVersion,
		"optimizer": s.program.options.Optimizer.Name(),
		"steps":     strconv.FormatInt(s.taken, 10),
		"seed":      strconv.FormatInt(s.seed, 10),
		"offset":    strconv.FormatInt(s.offset, 10),
	}
}

// Restore sets the step to the state of a run at the checkpoint in dir: weights, optimizer
// states, count of steps and random numbers. With the options, the batches and a device like those of that
// run, the following steps have its bits. The optimizer must be of the same kind. Call Restore after
// Load. It reads and checks the whole checkpoint, in host memory, before it changes the step: only a copy
// to the device that fails leaves states of both runs.
func (s *Step) Restore(dir string) (err error) {
	model, err := safetensors.Open(filepath.Join(dir, ModelFile))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	file, err := safetensors.Open(filepath.Join(dir, OptimizerFile))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	at, err := placeOf(file)
	if err != nil {
		return err
	}
	if have, want := file.Metadata()["optimizer"], s.program.options.Optimizer.Name(); have != want {
		return fmt.Errorf("%s: the run was trained with %s, not %s", file.Path(), have, want)
	}
	contents := map[string][]byte{}
	if err := errors.Join(s.readStates(file, contents), s.readWeights(model, contents)); err != nil {
		return err
	}
	for _, st := range s.program.Module.States {
		if data, ok := contents[st.Name]; ok {
			if err := s.write(st.Name, data); err != nil {
				return err
			}
		}
	}
	s.taken, s.seed, s.offset = at.steps, at.seed, at.offset
	s.forgetResults()
	return nil
}

// SavedSeed returns the seed of the run whose checkpoint is in dir. Restore uses it.
func SavedSeed(dir string) (seed int64, err error) {
	file, err := safetensors.Open(filepath.Join(dir, OptimizerFile))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	at, err := placeOf(file)
	return at.seed, err
}

// place is the progress of a run at a checkpoint.
type place struct{ steps, seed, offset int64 }

// placeOf reads the place from the metadata of an optimizer file.
func placeOf(file *safetensors.File) (at place, err error) {
	meta := file.Metadata()
	if v := meta["pwc-train"]; v != formatVersion {
		return at, fmt.Errorf("%s: the version of the format is %q, want %q", file.Path(), v, formatVersion)
	}
	for i, key := range []string{"steps", "seed", "offset"} {
		n, err := strconv.ParseInt(meta[key], 10, 64)
		if err != nil || key == "steps" && n < 0 {
			return at, fmt.Errorf("%s: %s is %q, want a whole number", file.Path(), key, meta[key])
		}
		*[]*int64{&at.steps, &at.seed, &at.offset}[i] = n
	}
	return at, nil
}

// readStates reads the states other than weights from an optimizer file, by their names.
func (s *Step) readStates(file *safetensors.File, contents map[string][]byte) error {
	var errs []error
	for _, st := range s.program.kept() {
		t, err := file.Tensor(fileName(st.Name))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var shape []int64
		for _, d := range st.Type.Shape {
			n, _ := d.Const()
			shape = append(shape, n)
		}
		if t.DType != st.Type.DType || !slices.Equal(t.Shape, shape) {
			errs = append(errs, fmt.Errorf("%s: tensor %s is %s%v, want %s", file.Path(), t.Name, t.DType, t.Shape, st.Type))
			continue
		}
		errs = append(errs, safetensors.Guard(file, func() error {
			contents[st.Name] = slices.Clone(t.Data)
			return nil
		}))
	}
	return errors.Join(errs...)
}

// readWeights reads the states that are weights from a checkpoint, by their names.
func (s *Step) readWeights(src safetensors.Source, contents map[string][]byte) error {
	var errs []error
	for _, w := range s.program.Weights {
		data, err := readWeight(src, w)
		contents[w.Name] = data
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
