package cli

import (
	"encoding/xml"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The losses of a run are read back with the same bits, up to the step from which it resumes. The
// picture is well-formed, also of no or one loss, and has a gap for losses that are not finite.
func TestLossLog(t *testing.T) {
	dir := t.TempDir()
	inf := float32(math.Inf(1))
	var log lossLog
	for i, x := range []float32{3, 0.1, inf, float32(math.NaN()), 1.5, 2} {
		log.add(int64(i+1), x)
	}
	if err := log.write(dir); err != nil {
		t.Fatal(err)
	}
	var back lossLog
	if err := back.read(filepath.Join(dir, lossFile), 5); err != nil {
		t.Fatal(err)
	}
	if len(back.losses) != 5 || back.losses[1] != 0.1 || back.losses[2] != inf || back.losses[4] != 1.5 || back.steps[4] != 5 {
		t.Errorf("%+v", back)
	}
	picture, err := os.ReadFile(filepath.Join(dir, curveFile))
	if err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(string(picture)))
	path := ""
	for {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "path" {
			for _, a := range e.Attr {
				if a.Name.Local == "d" {
					path = a.Value
				}
			}
		}
	}
	// 3 is at the top, 0.1 at the bottom; steps 3 and 4 are left out.
	if path != "M48.0 48.0L172.8 312.0M547.2 184.6L672.0 139.0" {
		t.Errorf("the path is %q", path)
	}
	for _, wrong := range []string{"step,loss\n1\n", "step,loss\nx,1\n", "step,loss\n1,x\n"} {
		path := filepath.Join(dir, "wrong.csv")
		if err := os.WriteFile(path, []byte(wrong), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := new(lossLog).read(path, 1); err == nil || !strings.Contains(err.Error(), "wrong.csv") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	for _, short := range []lossLog{{}, {steps: []int64{1}, losses: []float32{2}}} {
		if err := xml.Unmarshal(short.curve(), new(struct{})); err != nil || strings.Contains(string(short.curve()), "NaN") {
			t.Errorf("%d losses: %v\n%s", len(short.losses), err, short.curve())
		}
	}
}
