package loadtest

import (
	"fmt"
	"math"
	"strings"
)

// The picture has a panel for each time, with the share of requests, or of gaps between tokens, that took at most that time.
const (
	panelWidth, panelHeight = 300, 200
	marginLeft, marginTop   = 50, 40
	marginRight, marginLow  = 20, 40
)

// SVG returns a picture of the distributions of times to the first token, between tokens and to
// the end: the share that took at most each time.
func (r *Report) SVG(title string) []byte {
	panels := []struct {
		name   string
		values []float64
	}{{"time to first token", r.ttft}, {"between tokens", r.itl}, {"end to end", r.e2e}}
	width := len(panels)*(panelWidth+marginLeft+marginRight) + marginRight
	height := panelHeight + 2*marginTop + marginLow
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="20" font-size="14">%s</text>`+"\n", marginLeft, escape(title))
	for i, p := range panels {
		panel(&b, marginLeft+i*(panelWidth+marginLeft+marginRight), 2*marginTop, p.name, p.values)
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// panel draws one distribution. values are sorted.
func panel(b *strings.Builder, x, y int, name string, values []float64) {
	fmt.Fprintf(b, `<text x="%d" y="%d">%s, ms</text>`+"\n", x, y-10, name)
	most := 1.0
	if len(values) > 0 && values[len(values)-1] > 0 {
		most = rounded(values[len(values)-1])
	}
	for k := range 5 {
		part := float64(k) / 4
		px, py := float64(x)+part*panelWidth, float64(y)+(1-part)*panelHeight
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.0f %%</text>`+"\n",
			x, py, x+panelWidth, py, x-5, py+4, 100*part)
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%.3g</text>`+"\n", px, y+panelHeight+16, part*most)
	}
	if len(values) == 0 {
		return
	}
	const points = 200
	var line []string
	for k := range points + 1 {
		p := 100 * float64(k) / points
		line = append(line, fmt.Sprintf("%.1f,%.1f", float64(x)+Percentile(values, p)/most*panelWidth, float64(y)+(1-p/100)*panelHeight))
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="#1f77b4" stroke-width="1.5"/>`+"\n", strings.Join(line, " "))
}

// rounded returns the smallest of 1, 2, 4 and 8 times a power of ten that is at least v.
func rounded(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, k := range []float64{1, 2, 4, 8} {
		if k*unit >= v {
			return k * unit
		}
	}
	return 10 * unit
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}
