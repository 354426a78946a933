package dl

import (
	"os"
	"path/filepath"
	"runtime"
)

// Toolkit lists the places where a library of the CUDA toolkit is looked for.
type Toolkit struct {
	Path  string   // the only path to try, unless empty
	Names []string // file names, the best first: tried by the loader's own rules, then in Dirs
	Dirs  []string // nil: the folders where toolkits put their libraries
}

// Paths returns the arguments for Open, in order.
func (t Toolkit) Paths() []string {
	if t.Path != "" {
		return []string{t.Path}
	}
	dirs := t.Dirs
	if dirs == nil {
		dirs = toolkitDirs()
	}
	paths := append([]string(nil), t.Names...)
	for _, d := range dirs {
		for _, n := range t.Names {
			paths = append(paths, filepath.Join(d, n))
		}
	}
	return paths
}

// toolkitDirs returns the folders of $CUDA_HOME and $CUDA_PATH, of NVIDIA's
// installer, of Arch Linux, and of the distribution's own packages.
func toolkitDirs() []string {
	var dirs []string
	for _, v := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if root := os.Getenv(v); root != "" {
			dirs = append(dirs, filepath.Join(root, "lib64"), filepath.Join(root, "lib"))
		}
	}
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return append(dirs, "/usr/local/cuda/lib64", "/opt/cuda/lib64", "/usr/lib/"+arch+"-linux-gnu", "/usr/lib64")
}
