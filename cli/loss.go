package cli

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"pwc/internal/openfile"
)

// Files of a run, in the directory of its weights.
const (
	lossFile  = "loss.csv"
	curveFile = "loss.svg"
)

// maxLossFile bounds a loss.csv that is read, in bytes.
const maxLossFile = 1 << 30

// lossLog has the loss of every step of a run.
type lossLog struct {
	steps  []int64
	losses []float32
}

func (l *lossLog) add(step int64, loss float32) {
	l.steps, l.losses = append(l.steps, step), append(l.losses, loss)
}

// read adds the losses of the steps up to last from the loss.csv of the run that is resumed.
func (l *lossLog) read(path string, last int64) error {
	data, err := openfile.Read(path, maxLossFile)
	if err != nil {
		return err
	}
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = 2
	rows, err := r.ReadAll()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for i, row := range rows[min(len(rows), 1):] {
		step, err1 := strconv.ParseInt(row[0], 10, 64)
		loss, err2 := strconv.ParseFloat(row[1], 32)
		if err1 != nil || err2 != nil {
			return fmt.Errorf("%s:%d: %s,%s is not a step and a loss", path, i+2, row[0], row[1])
		}
		if step <= last {
			l.add(step, float32(loss))
		}
	}
	return nil
}

// write writes loss.csv and loss.svg to a directory. A reader never sees an incomplete file.
func (l *lossLog) write(dir string) error {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write([]string{"step", "loss"}) // a buffer returns no error
	for i, step := range l.steps {
		_ = w.Write([]string{strconv.FormatInt(step, 10), strconv.FormatFloat(float64(l.losses[i]), 'g', -1, 32)})
	}
	w.Flush()
	if err := writeWhole(filepath.Join(dir, lossFile), b.Bytes()); err != nil {
		return err
	}
	return writeWhole(filepath.Join(dir, curveFile), l.curve())
}

// writeWhole writes a file under a temporary name and renames it.
func writeWhole(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Size of the picture, in pixels.
const (
	curveWidth, curveHeight = 720, 360
	curveMargin             = 48
	curvePoints             = 2000 // most points; the mean of several steps is one point if there are more steps
)

// curve draws the losses over the steps as an SVG. Losses that are not finite leave gaps.
func (l *lossLog) curve() []byte {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, x := range l.losses {
		if f := float64(x); !math.IsNaN(f) && !math.IsInf(f, 0) {
			lo, hi = min(lo, f), max(hi, f)
		}
	}
	if lo > hi {
		lo, hi = 0, 1
	}
	if lo == hi {
		hi = lo + 1
	}
	first, last := int64(0), int64(1)
	if n := len(l.steps); n > 0 {
		first, last = l.steps[0], max(l.steps[n-1], l.steps[0]+1)
	}
	x := func(step float64) float64 {
		return curveMargin + (step-float64(first))/float64(last-first)*(curveWidth-2*curveMargin)
	}
	y := func(loss float64) float64 {
		return curveHeight - curveMargin - (loss-lo)/(hi-lo)*(curveHeight-2*curveMargin)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">`+"\n", curveWidth, curveHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", curveWidth, curveHeight)
	const ticks = 4
	for i := range ticks + 1 {
		part := float64(i) / ticks
		loss, step := lo+part*(hi-lo), float64(first)+part*float64(last-first)
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1[3]f" stroke="#ddd"/>`+"\n", curveMargin, curveWidth-curveMargin, y(loss))
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%.4g</text>`+"\n", curveMargin-6, y(loss)+4, loss)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%.0f</text>`+"\n", x(step), curveHeight-curveMargin+18, step)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">step</text>`+"\n", curveWidth/2, curveHeight-10)
	fmt.Fprintf(&b, `<text x="%d" y="%d">loss</text>`+"\n", curveMargin-6, curveMargin-16)
	b.WriteString(`<path fill="none" stroke="#1f6feb" stroke-width="1.5" d="`)
	pen := "M"
	group := (len(l.losses) + curvePoints - 1) / curvePoints
	for i := 0; i < len(l.losses); i += max(group, 1) {
		end := min(i+group, len(l.losses))
		sum := 0.0
		for _, v := range l.losses[i:end] {
			sum += float64(v)
		}
		mean := sum / float64(end-i)
		if math.IsNaN(mean) || math.IsInf(mean, 0) {
			pen = "M"
			continue
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", pen, x(float64(l.steps[i]+l.steps[end-1])/2), y(mean))
		pen = "L"
	}
	b.WriteString("\"/>\n</svg>\n")
	return b.Bytes()
}
