package cli

import (
	"errors"
	"runtime"
	"slices"
	"time"

	"pwc/loadtest"
	"pwc/piecewise"
)

const (
	slowest   = 2 * time.Second // the time that repeated runs should take together, within leastRuns and mostRuns
	mostRuns  = 50
	leastRuns = 5
	warmups   = 5 // the default of --warmup
)

// benchTimes are the times of repeated runs, in milliseconds on the device.
type benchTimes struct {
	MS     float64 `json:"ms"` // median of runs that run alone; min, max and percentiles are of the same runs
	Min    float64 `json:"min_ms"`
	P90    float64 `json:"p90_ms"`
	P99    float64 `json:"p99_ms"`
	Max    float64 `json:"max_ms"`
	InARow float64 `json:"in_a_row_ms"` // mean of runs that are issued before the previous one ends
	Issue  float64 `json:"issue_ms"`    // the host's time of a run that runs alone, median
	Runs   int     `json:"runs"`
}

// repeats has the number of runs.
type repeats struct {
	warmup int
	runs   int // 0: as many as take about two seconds, from leastRuns to mostRuns

	agree func(runs int) (int, error) // returns the number of runs of all processes, which is rank 0's; nil: one process
}

// times measures the work that issue enqueues on the meter's stream. wait, if not nil, is called
// after each run that runs alone, and after the last of the runs in a row.
func (r repeats) times(m meter, issue, wait func() error) (t benchTimes, err error) {
	if wait == nil {
		wait = func() error { return nil }
	}
	run := func(f func() error) (alone, host time.Duration, err error) {
		alone, host, err = timed(m, f)
		return alone, host, errors.Join(err, wait())
	}
	start := time.Now()
	for range r.warmup {
		if _, _, err := run(issue); err != nil {
			return t, err
		}
	}
	if t.Runs = r.runs; t.Runs == 0 {
		t.Runs = int(min(mostRuns, max(leastRuns, slowest*time.Duration(max(r.warmup, 1))/max(1, time.Since(start)))))
	}
	if r.agree != nil {
		if t.Runs, err = r.agree(t.Runs); err != nil {
			return t, err
		}
	}
	var alone, host []float64
	for range t.Runs {
		d, issued, err := run(issue)
		if err != nil {
			return t, err
		}
		alone, host = append(alone, milliseconds(d)), append(host, milliseconds(issued))
	}
	all, _, err := run(func() error {
		for range t.Runs {
			if err := issue(); err != nil {
				return err
			}
		}
		return nil
	})
	slices.Sort(alone)
	slices.Sort(host)
	at := func(p float64) float64 { return loadtest.Percentile(alone, p) }
	t.Min, t.MS, t.P90, t.P99, t.Max = alone[0], at(50), at(90), at(99), alone[len(alone)-1]
	t.Issue, t.InARow = loadtest.Percentile(host, 50), milliseconds(all)/float64(t.Runs)
	return t, err
}

// whenFree calls take until a staging slot is free.
func whenFree[T any](take func() (T, error)) (T, error) {
	for {
		v, err := take()
		if !errors.Is(err, piecewise.ErrSlotBusy) {
			return v, err
		}
		runtime.Gosched()
	}
}
