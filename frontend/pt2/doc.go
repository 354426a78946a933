// Package pt2 imports the archives that torch.export.save writes as modules of the IR.
//
// An archive is a zip file: the graph as JSON (models/NAME.json), weights and constants as raw bytes with a JSON file
// of their shapes and strides (data/weights, data/constants). PyTorch writes this format from 2.9 on, and reading it
// needs no Python. The sources of the format are torch/_export/serde/schema.py and torch/export/pt2_archive of
// PyTorch.
//
// [Open] checks an archive and makes a [safetensors.Source] of its tensors. [Archive.Import] makes the module: a
// function @forward whose parameters are the tensor inputs of the exported program, in their order. ATen ops become ops
// of the IR; one [*ImportError] lists all ops that cannot be imported.
package pt2
