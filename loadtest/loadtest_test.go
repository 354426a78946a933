package loadtest

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A schedule is a function of its options. The rate does not change lengths and ids.
func TestScheduleIsAFunctionOfItsOptions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low, out := rapid.IntRange(1, 50).Draw(t, "low"), rapid.IntRange(1, 50).Draw(t, "out")
		o := Options{Seed: rapid.Uint64().Draw(t, "seed"), Requests: rapid.IntRange(1, 40).Draw(t, "requests"),
			Prompt: Lengths{low, low + rapid.IntRange(0, 50).Draw(t, "more")}, Output: Lengths{out, out + 3},
			Rate: rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(minRate, 1000)).Draw(t, "rate"), Vocabulary: rapid.IntRange(2, 1000).Draw(t, "vocabulary")}
		a, err := Schedule(o)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := Schedule(o)
		if d := cmp.Diff(a, b); d != "" {
			t.Fatal(d)
		}
		last := time.Duration(0)
		for _, q := range a {
			if q.At < last || o.Rate == 0 && q.At != 0 {
				t.Fatalf("a request arrives at %v, the one before at %v", q.At, last)
			}
			last = q.At
			if n := len(q.Prompt); n < o.Prompt.Min || n > o.Prompt.Max || q.Output < o.Output.Min || q.Output > o.Output.Max {
				t.Fatalf("%d tokens of prompt and %d of output, want %v and %v", n, q.Output, o.Prompt, o.Output)
			}
			for _, id := range q.Prompt {
				if id < 1 || int(id) >= o.Vocabulary {
					t.Fatalf("id %d, want 1 to %d", id, o.Vocabulary-1)
				}
			}
		}
		faster := o
		faster.Rate = 2*o.Rate + 1
		c, _ := Schedule(faster)
		for i := range a {
			a[i].At, c[i].At = 0, 0
		}
		if d := cmp.Diff(a, c); d != "" {
			t.Fatalf("another rate gives other prompts: %s", d)
		}
	})
}

// TestRateOfArrivals compares the mean of 20,000 exponential gaps with the rate. It must be within 4
// standard errors, which are 4/√20000 of the mean.
func TestRateOfArrivals(t *testing.T) {
	const n, rate = 20000, 50.0
	s, err := Schedule(Options{Seed: 1, Requests: n, Rate: rate, Prompt: Lengths{1, 1}, Output: Lengths{1, 1}, Vocabulary: 2})
	if err != nil {
		t.Fatal(err)
	}
	mean := s[n-1].At.Seconds() / n
	if d := math.Abs(mean*rate - 1); d > 4/math.Sqrt(n) {
		t.Errorf("a gap is %g s on average, want %g", mean, 1/rate)
	}
}

func TestScheduleRefuses(t *testing.T) {
	good := Options{Requests: 1, Prompt: Lengths{1, 1}, Output: Lengths{1, 1}, Vocabulary: 2}
	for name, change := range map[string]func(*Options){
		"requests": func(o *Options) { o.Requests = 0 }, "many": func(o *Options) { o.Requests = MaxRequests + 1 },
		"prompt": func(o *Options) { o.Prompt.Min = 0 }, "output": func(o *Options) { o.Output.Max = 0 },
		"rate": func(o *Options) { o.Rate = math.NaN() }, "endless": func(o *Options) { o.Rate = math.Inf(1) }, "vocabulary": func(o *Options) { o.Vocabulary = 1 },
	} {
		o := good
		change(&o)
		if _, err := Schedule(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for text, want := range map[string]Lengths{"7": {7, 7}, "3-9": {3, 9}} {
		if l, err := ParseLengths(text); err != nil || l != want || l.String() != text {
			t.Errorf("%s: %v, %v", text, l, err)
		}
	}
	for _, text := range []string{"", "0", "9-3", "a", "1-", "-1", "1-2-3"} {
		if l, err := ParseLengths(text); err == nil {
			t.Errorf("%q is read as %v", text, l)
		}
	}
}

// TestPercentile compares percentiles with numbers computed by hand. In 1, 2, 3, 4 the 90th percentile
// has rank 0.9 · 3 = 2.7, counted from 0, so it is 3 + 0.7.
func TestPercentile(t *testing.T) {
	for _, c := range []struct {
		values  []float64
		p, want float64
	}{
		{[]float64{1, 2, 3, 4}, 0, 1}, {[]float64{1, 2, 3, 4}, 50, 2.5}, {[]float64{1, 2, 3, 4}, 90, 3.7}, {[]float64{1, 2, 3, 4}, 100, 4},
		{[]float64{10, 20, 30}, 50, 20}, {[]float64{10, 20, 30}, 25, 15}, {[]float64{5}, 99, 5},
	} {
		if got := Percentile(c.values, c.p); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("percentile %g of %v is %g, want %g", c.p, c.values, got, c.want)
		}
	}
	if got := Percentile(nil, 50); !math.IsNaN(got) {
		t.Errorf("the median of nothing is %g", got)
	}
}

// TestReport compares a report with numbers computed by hand, for two complete and two failed requests.
// The complete ones are sent at 0 and 1 s, have their first tokens after 100 and 300 ms, and further
// tokens 50 ms apart.
func TestReport(t *testing.T) {
	const s = time.Second
	at := func(list ...int) (out []time.Duration) {
		for _, x := range list {
			out = append(out, time.Duration(x)*time.Millisecond)
		}
		return out
	}
	r := NewReport([]Measured{
		{Prompt: 10, Output: 3, Sent: 0, Tokens: at(100, 150, 200), End: s / 5},
		{Prompt: 20, Output: 2, Sent: s, Tokens: at(1300, 1350), End: 2 * s},
		{Prompt: 5, Sent: s, End: s, Err: errors.New("refused")},
		{Prompt: 5, Sent: s, End: s},
	}, Limits{TTFT: 200 * time.Millisecond, TPOT: 50 * time.Millisecond})
	want := &Report{Requests: 4, Completed: 2, Failed: 2, Error: "refused", Seconds: 2, Prompt: 30, Output: 5,
		RequestRate: 1, OutputRate: 2.5, TotalRate: 17.5, Good: 1, Goodput: 0.5,
		TTFT: Summary{2, 200, 200, 280, 290, 298, 300}, ITL: Summary{3, 50, 50, 50, 50, 50, 50},
		TPOT: Summary{2, 50, 50, 50, 50, 50, 50}, E2E: Summary{2, 600, 600, 920, 960, 992, 1000}}
	if d := cmp.Diff(want, r, cmpopts.EquateApprox(0, 1e-9), cmpopts.IgnoreUnexported(Report{})); d != "" {
		t.Error(d)
	}
	for i, m := range []Limits{{E2E: 100 * time.Millisecond}, {TPOT: time.Millisecond}, {TTFT: 50 * time.Millisecond}} {
		if m.keeps(100*time.Millisecond, 2*time.Millisecond, time.Second) {
			t.Errorf("limits %d are kept", i)
		}
	}
}

// fixed is a Target that makes a token every 10 ms, independent of other requests.
type fixed struct {
	running, most int
	gate          chan struct{}
}

func (f *fixed) Complete(ctx context.Context, q Request, token func()) (int, error) {
	f.gate <- struct{}{}
	f.running++
	f.most = max(f.most, f.running)
	<-f.gate
	defer func() {
		f.gate <- struct{}{}
		f.running--
		<-f.gate
	}()
	for n := range q.Output {
		select {
		case <-time.After(10 * time.Millisecond):
			token()
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
	return q.Output, nil
}

// In an open loop, requests are sent at their arrival times; in a closed loop, when a client is free.
func TestLoops(t *testing.T) {
	schedule := make([]Request, 6)
	for i := range schedule {
		schedule[i] = Request{At: time.Duration(i) * 5 * time.Millisecond, Prompt: []int32{1}, Output: 4}
	}
	for _, clients := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			f := &fixed{gate: make(chan struct{}, 1)}
			got, err := Run(t.Context(), f, schedule, clients)
			if err != nil {
				t.Fatal(err)
			}
			for i, m := range got {
				sent := schedule[i].At // a request takes 40 ms and overlaps with later ones
				if clients == 2 {
					sent = time.Duration(i/2) * 40 * time.Millisecond
				}
				if m.Err != nil || m.Sent != sent || m.End != sent+40*time.Millisecond || m.Output != 4 || len(m.Tokens) != 4 || m.Tokens[0] != sent+10*time.Millisecond {
					t.Errorf("%d clients: request %d, to be sent at %v: %+v", clients, i, sent, m)
				}
			}
			if want := map[int]int{0: 6, 2: 2}[clients]; f.most != want {
				t.Errorf("%d clients: %d requests ran together, want %d", clients, f.most, want)
			}
		})
	}
}

func TestRunIsCanceled(t *testing.T) {
	schedule := make([]Request, 5)
	for i := range schedule {
		schedule[i] = Request{At: time.Duration(i) * 100 * time.Millisecond, Output: 1 << 20}
	}
	for _, clients := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
			defer cancel()
			got, err := Run(ctx, &fixed{gate: make(chan struct{}, 1)}, schedule, clients)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			r := NewReport(got, Limits{})
			if r.Failed != 5 || r.Completed != 0 {
				t.Errorf("%d clients: %+v, want 5 failed requests", clients, r)
			}
		})
	}
}

// If ctx has ended before the run, no request is sent, although clients are free and requests are due.
func TestRunAfterCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, clients := range []int{0, 64} {
		f := &fixed{gate: make(chan struct{}, 1)}
		got, err := Run(ctx, f, make([]Request, 64), clients)
		if !errors.Is(err, context.Canceled) || f.most != 0 || len(got) != 64 || !errors.Is(got[63].Err, context.Canceled) {
			t.Errorf("%d clients: %d requests were sent, %v", clients, f.most, err)
		}
	}
}

// The picture is well-formed XML without NaN and Inf, also for no requests and for equal times.
func TestSVG(t *testing.T) {
	for _, m := range [][]Measured{nil, {{Output: 2, Tokens: []time.Duration{1, 2}, End: 3}}, {{Output: 1, Tokens: []time.Duration{0}}}} {
		text := NewReport(m, Limits{}).SVG("a < b & c")
		d := xml.NewDecoder(strings.NewReader(string(text)))
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if s := string(text); !strings.Contains(s, "a &lt; b &amp; c") || strings.Contains(s, "NaN") || strings.Contains(s, "Inf") {
			t.Errorf("want the escaped title, and neither NaN nor Inf: %s", s)
		}
	}
}
